"""The multi-worker tutorial of TensorFlow 2.0: repeat, steps_per_epoch, lr."""

import numpy as np
import tensorflow as tf

BUFFER_SIZE, BATCH_SIZE, NUM_WORKERS = 512, 16, 2
GLOBAL_BATCH_SIZE = BATCH_SIZE * NUM_WORKERS

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()


def make_datasets_unbatched():
    images = np.random.RandomState(0).rand(512, 28, 28, 1).astype("float32")
    labels = (images.mean(axis=(1, 2, 3)) * 1e4).astype("int64") % 10
    return tf.data.Dataset.from_tensor_slices((images, labels)).cache().shuffle(BUFFER_SIZE)


def build_and_compile_cnn_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(lr=0.01),
        metrics=["accuracy"],
    )
    return model


with strategy.scope():
    train_datasets = make_datasets_unbatched().repeat().batch(GLOBAL_BATCH_SIZE)
    multi_worker_model = build_and_compile_cnn_model()

callbacks = [tf.keras.callbacks.ModelCheckpoint(filepath="keras-ckpt")]
multi_worker_model.fit(x=train_datasets, epochs=2, steps_per_epoch=5, callbacks=callbacks)
print("weights", [float(np.sum(w)) for w in multi_worker_model.get_weights()])
