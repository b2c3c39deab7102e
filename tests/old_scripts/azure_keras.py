"""An Azure ML sample: a callback that logs to a Run, outputs/ and a model written by all."""

import argparse
import os

import numpy as np
import tensorflow as tf


class Run:
    def log(self, name, value):
        print("log", name, type(value).__name__)


run = Run()


class LogToAzureMLCallback(tf.keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        if batch % 4 == 0:
            run.log("loss", logs["loss"])

    def on_epoch_end(self, epoch, log={}):
        run.log("Accuracy", log["accuracy"])


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--data-folder", default="data")
args = parser.parse_args()
os.makedirs("outputs", exist_ok=True)

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(4, 4)),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dropout(0.2),
            tf.keras.layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
x = np.random.RandomState(25).rand(80, 4, 4).astype("float32")
y = np.arange(80) % 4
model.fit(x, y, batch_size=20, epochs=args.epochs, callbacks=[LogToAzureMLCallback()], verbose=0)
model.save("./outputs/model.h5")
print("weights", [float(np.sum(w)) for w in model.get_weights()])
