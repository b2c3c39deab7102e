"""A training for test_compressed.py: `drumbeat run --compress ... compressed.py OUTPUT_DIR [SEED]`.

Worker r writes OUTPUT_DIR/r.json: a digest of all weights, the loss curve and the accuracy on the
digits of scikit-learn that it was not trained on.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

OUT, SEED = Path(sys.argv[1]), int(sys.argv[2])
EPOCHS = int(sys.argv[3])
keras.utils.set_random_seed(SEED)
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
x = digits.images[order].astype("float32")[..., None] / 16
y = digits.target[order]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
data = tf.data.Dataset.from_tensor_slices((x[:1400], y[:1400])).shuffle(1400, seed=1).batch(100)
history = model.fit(data, epochs=EPOCHS, verbose=0)
_, accuracy = model.evaluate(x[1400:], y[1400:], verbose=0)
weights = b"".join(np.asarray(w).tobytes() for w in model.get_weights())
found = {
    "weights": hashlib.sha256(weights).hexdigest(),
    "losses": [float(value) for value in history.history["loss"]],
    "accuracy": float(accuracy),
}
(OUT / f"{os.environ['DRUMBEAT_RANK']}.json").write_text(json.dumps(found))
