"""Trainings whose steps XLA compiles, for test_compiled.py.

    drumbeat run -n 2 jitted.py OUTPUT_FOLDER KIND

KIND is "many" or "convolution" for small models both ways, else a training that may be
killed: "fit" as `--jit` says, "chooses" as if compiling were found to pay in the first
attempt, and not to in later ones.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import drumbeat
from drumbeat.training import compiled, jit, randomness
from drumbeat.training.jit_trial import Trial

FOLDER, KIND = Path(sys.argv[1]), sys.argv[2]
RANK = int(os.environ["DRUMBEAT_RANK"])
layers = keras.layers


def rows_of_numbers(count=75, batch=32):
    random = np.random.default_rng(0)
    x = random.normal(size=(count, 6)).astype("float32")
    y = (x @ random.normal(size=(6, 3))).argmax(-1)
    return tf.data.Dataset.from_tensor_slices((x, y, random.random(count))).batch(batch)


def rows_of_words(count=75, batch=32):
    random = np.random.default_rng(0)
    x, y = random.integers(0, 50, (count, 4)), random.random((count, 1))
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)


def dense(**compiling):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, activation="tanh", kernel_regularizer="l2"),
            layers.Dropout(0.4),
            layers.BatchNormalization(),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], weighted_metrics=["accuracy"], **compiling)
    return model


def words(**compiling):
    inputs = keras.Input((4,), dtype="int64")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(50, 8)(inputs))
    model = keras.Model(inputs, layers.Dense(1)(layers.Dense(8, activation="relu")(x)))
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), "mse", steps_per_execution=2, **compiling
    )
    return model


def convolution(**compiling):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Reshape((6, 1)),
            layers.Conv1D(4, 3),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, loss, **compiling)
    return model


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


def own_step(**compiling):
    model = OwnStep([keras.Input((6,)), layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **compiling)
    return model


def normal_noise(**compiling):
    model = keras.Sequential([keras.Input((6,)), layers.GaussianNoise(0.1), layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **compiling)
    return model


def fitted(make, data, jit_option, **compiling):
    keras.utils.set_random_seed(1)
    with drumbeat.strategy(jit=jit_option).scope():
        model = make(**compiling)
    return model, model.fit(data(), epochs=2, verbose=0).history


def told(model, history):
    variables = [*model.variables, *model.optimizer.variables]
    state = [np.asarray(tf.convert_to_tensor(v)).tolist() for v in variables]
    return {"history": history, "state": state, "compiled": model in compiled._models}


def as_if_it_paid(pays=lambda times, steps: steps * times.first_compiled_s > 0):
    """Lets `auto` try short trainings too."""
    jit.LEAST_STEPS, jit.may_pay, jit.pays = 1, lambda times, steps: True, pays


def traces(model):
    """What a trial changes: nothing, of all that a training goes by."""

    def state():
        metrics = [v for metric in model.metrics for v in metric.variables]
        held = [*model.variables, *model.optimizer.variables, *metrics]
        values = [np.asarray(tf.convert_to_tensor(v)).tolist() for v in held]
        return repr((values, randomness.state()))

    shapes = (([None, 6], tf.float32), ([None], tf.int64), ([None], tf.float64))
    batch = jit._zeros(tuple(tf.TensorSpec(*each) for each in shapes), 16)
    trial, before, changed = Trial(model, drumbeat.strategy(), batch), state(), []
    with trial.without_trace():
        for way in (False, True):
            trial.step(jit=way)()
            changed.append(state() != before)
    return {"changed within": changed, "changed after": state() != before}


def many():
    """All that doesn't need a run of its own."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("drumbeat").addHandler(handler)
    found = {}
    found["words"] = both_ways(words, rows_of_words)
    found["dense"] = {"off": told(*fitted(dense, rows_of_numbers, "auto"))}
    found["dense"]["on"] = told(*fitted(dense, rows_of_numbers, "auto", jit_compile=True))
    found["said"] = [m for m in messages if "XLA" in m]
    for make in (own_step, normal_noise):
        messages.clear()
        made = told(*fitted(make, rows_of_numbers, "on"))
        found[make.__name__] = made | {"said": [m for m in messages if "XLA" in m]}
    as_if_it_paid()
    model, history = fitted(dense, rows_of_numbers, "auto")
    found["measured"] = told(model, history)
    found["traces"] = traces(model)
    return found


def both_ways(make, data):
    return {way: told(*fitted(make, data, way)) for way in ("off", "on")}


def with_convolution():
    found = both_ways(convolution, rows_of_numbers)
    as_if_it_paid()
    return found | {"auto": told(*fitted(convolution, rows_of_numbers, "auto"))}


def one(attempt):
    if KIND == "chooses":
        as_if_it_paid(lambda times, steps: attempt == 1)
    return told(*fitted(dense, rows_of_numbers, None))


if KIND in ("fit", "chooses"):
    found = one(int(os.environ["DRUMBEAT_ATTEMPT"]))
else:
    found = {"many": many, "convolution": with_convolution}[KIND]()
(FOLDER / f"{RANK}.json").write_text(json.dumps(found))
