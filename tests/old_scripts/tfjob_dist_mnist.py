"""A TFJob sample: arguments, chief and temporary folders for the others, model.save(folder)."""

from __future__ import absolute_import, division, print_function

import argparse
import json
import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, models


def make_datasets_unbatched():
    x = np.random.RandomState(3).randint(0, 255, (256, 8, 8, 1)).astype("float32")

    def scale(image, label):
        image = tf.cast(image, tf.float32)
        image /= 255
        return image, label

    y = np.arange(256) % 10
    return tf.data.Dataset.from_tensor_slices((x, y)).map(scale).cache().shuffle(256, seed=4)


def build_and_compile_cnn_model():
    model = models.Sequential()
    model.add(layers.Conv2D(4, (3, 3), activation="relu", input_shape=(8, 8, 1)))
    model.add(layers.MaxPooling2D((2, 2)))
    model.add(layers.Flatten())
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def decay(epoch):
    return 1e-3 if epoch < 1 else 1e-4


def main(args):
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy(
        communication=tf.distribute.experimental.CollectiveCommunication.AUTO
    )
    batch_size = 16 * strategy.num_replicas_in_sync
    with strategy.scope():
        ds_train = make_datasets_unbatched().batch(batch_size).repeat()
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        ds_train = ds_train.with_options(options)
        multi_worker_model = build_and_compile_cnn_model()

    checkpoint_prefix = os.path.join(args.checkpoint_dir, "ckpt_{epoch}")

    class PrintLR(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print(f"\nLearning rate for epoch {epoch + 1} is {self.model.optimizer.lr.numpy()}")

    callbacks = [
        tf.keras.callbacks.TensorBoard(log_dir="./logs"),
        tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
        tf.keras.callbacks.LearningRateScheduler(decay),
        PrintLR(),
    ]
    multi_worker_model.fit(ds_train, epochs=2, steps_per_epoch=4, callbacks=callbacks)

    def is_chief():
        return TASK_INDEX == 0

    if is_chief():
        model_path = args.saved_model_dir
    else:
        # Save to a path that is unique across workers.
        model_path = tempfile.mkdtemp() + "/worker_tmp_" + str(TASK_INDEX)
    multi_worker_model.save(model_path)
    print("weights", [float(np.sum(w)) for w in multi_worker_model.get_weights()])


os.environ["NCCL_DEBUG"] = "INFO"
# to decide if a worker is chief, get TASK_INDEX in Cluster info
tf_config = json.loads(os.environ.get("TF_CONFIG") or "{}")
TASK_INDEX = tf_config.get("task", {}).get("index", 0)

parser = argparse.ArgumentParser()
parser.add_argument("--saved_model_dir", type=str, default="saved_model")
parser.add_argument("--checkpoint_dir", type=str, default="training_checkpoints")
main(parser.parse_args())
