"""Trainings of tf_keras models for test_keras2.py to interrupt.

    drumbeat run --keras 2 -n N resumed.py OUTPUT_DIR NAME [NAME ...]

Each is made of `STEPS` steps, so that a step of the job says where in which of them it is.
Worker r writes OUTPUT_DIR/r.json: what each has come to.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from drumbeat.training.divergence import optimizer_variables

keras = tf.keras
OUT = Path(sys.argv[1])
RANK = int(os.environ["DRUMBEAT_RANK"])
ROWS, BATCH, EPOCHS = 73, 16, 4
STEPS = EPOCHS * 5
strategy = tf.distribute.MultiWorkerMirroredStrategy()
KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


rng = np.random.default_rng(0)
x = rng.normal(size=(ROWS, 6)).astype("float32")
y = (x @ rng.normal(size=(6, 3))).argmax(-1)


def pipeline():
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS).batch(BATCH)


def model(optimizer=None, *, is_lazy=False, **arguments):
    layers = [
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(3),
    ]
    with strategy.scope():
        made = keras.Sequential(layers if is_lazy else [keras.Input((6,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile(optimizer or keras.optimizers.Adam(0.01), loss, ["accuracy"], **arguments)
    return made


def outcome(trained, history):
    total = hashlib.sha256()
    for variable in (*trained.variables, *optimizer_variables(trained.optimizer)):
        total.update(np.asarray(tf.convert_to_tensor(variable)).tobytes())
    numbers = {k: [float(v) for v in vs] for k, vs in history.history.items()}
    return {"weights": total.hexdigest(), "epochs": history.epoch, "history": numbers}


@kind
def pipelines():
    """Iterators anew each epoch, of training and validation."""
    trained = model()
    early = keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True)
    tested = {"validation_data": pipeline(), "callbacks": [early]}
    return outcome(trained, trained.fit(pipeline(), epochs=EPOCHS, verbose=0, **tested))


@kind
def arrays():
    """One iterator for all epochs; a model that is built by its first step."""
    trained = model(keras.optimizers.legacy.Adam(0.01), is_lazy=True)
    return outcome(trained, trained.fit(x, y, BATCH, EPOCHS, verbose=0, validation_split=0.0))


@kind
def several_steps_at_once():
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    trained = model(optimizer, steps_per_execution=2)
    data = pipeline().take(4).repeat()
    return outcome(trained, trained.fit(data, epochs=5, steps_per_epoch=4, verbose=0))


def main():
    found = {name: KINDS[name]() for name in sys.argv[2:]}
    (OUT / f"{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
