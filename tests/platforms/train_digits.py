"""A small network learns the digits, with a pause after each step: there is time to kill somebody.

    train_digits.py FOLDER PAUSE_S

Each worker writes how far it is and what it learned into the folder, under its host's name.
"""

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

out, pause_s = Path(sys.argv[1]), float(sys.argv[2])
name = os.environ.get("HOSTNAME", "") + os.environ.get("DRUMBEAT_NODE_RANK", "")


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause_s)

    def on_epoch_end(self, epoch, logs=None):
        (out / f"epoch-{name}").write_text(str(epoch))


strategy = tf.distribute.MultiWorkerMirroredStrategy()
rows, labels = sklearn.datasets.load_digits(return_X_y=True)
keras.utils.set_random_seed(7)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
history = model.fit(
    rows, labels, batch_size=64, epochs=8, shuffle=False, verbose=0, callbacks=[Slow()]
).history
found = {
    "loss": history["loss"],
    "accuracy": history["accuracy"][-1],
    "weights": [float(np.sum(np.abs(each))) for each in model.get_weights()],
}
(out / f"result-{name}.json").write_text(json.dumps(found))
