"""Ray Train's example: a train_func(config) with a ReportCallback, outside of Ray."""

import argparse
import json
import os

import numpy as np
import tensorflow as tf


class ReportCallback(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("report", epoch, sorted(logs))


def mnist_dataset(batch_size):
    x = np.random.RandomState(22).rand(300, 6, 6).astype("float32")
    y = (x.sum(axis=(1, 2)) % 10).astype("int64")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(300).repeat().batch(batch_size)


def build_cnn_model():
    return tf.keras.Sequential(
        [
            tf.keras.Input(shape=(6, 6)),
            tf.keras.layers.Reshape(target_shape=(6, 6, 1)),
            tf.keras.layers.Conv2D(4, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )


def train_func(config):
    per_worker_batch_size = config.get("batch_size", 32)
    tf_config = json.loads(os.environ.get("TF_CONFIG") or '{"cluster": {"worker": ["localhost"]}}')
    num_workers = len(tf_config["cluster"]["worker"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_batch_size = per_worker_batch_size * num_workers
    dataset = mnist_dataset(global_batch_size)
    with strategy.scope():
        model = build_cnn_model()
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.SGD(learning_rate=config.get("lr", 0.001)),
            metrics=["accuracy"],
        )
    history = model.fit(dataset, epochs=2, steps_per_epoch=3, callbacks=[ReportCallback()])
    print("weights", [float(np.sum(w)) for w in model.get_weights()])
    return history.history


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    arguments, _ = parser.parse_known_args()
    train_func({"lr": 1e-2, "batch_size": 16, "epochs": arguments.epochs})
