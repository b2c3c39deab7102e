"""Trainings by local SGD for test_local_sgd.py: `drumbeat run -n 2 local.py OUTPUT_DIR [KIND ...]`.

Worker r writes OUTPUT_DIR/r.json: what each kind has found.
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

import drumbeat
from drumbeat.cluster.averaging import Averaging
from drumbeat.errors import ConfigError
from drumbeat.strategies.local_sgd import LocalSgd

OUT = Path(sys.argv[1])
RANK = int(os.environ["DRUMBEAT_RANK"])
KINDS = {}
strategy = drumbeat.strategy()
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
x = digits.images[order].astype("float32")[..., None] / 16
y = digits.target[order]


def kind(function):
    KINDS[function.__name__] = function
    return function


class Counted:
    """Notes which collectives are made."""

    def __init__(self, behind):
        self.behind = behind
        self.names = []

    def enter(self, number, kind, name):
        self.names.append(name or kind)
        self.behind.enter(number, kind, name)

    def leave(self):
        self.behind.leave()


def use(every, outer=None):
    """What else is settled for a whole process; here one tries several."""
    local = None if every is None else LocalSgd(strategy.communicator, Averaging.of(every, outer))
    strategy.extended.local_sgd = local


def trained(optimizer, epochs, rows=1400, batch=100, **arguments):
    keras.utils.set_random_seed(1)
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
        model.compile(optimizer, loss, metrics=["accuracy"], **arguments)
    data = tf.data.Dataset.from_tensor_slices((x[:rows], y[:rows])).shuffle(rows, seed=1)
    history = model.fit(data.batch(batch), epochs=epochs, verbose=0, validation_data=test())
    return model, history.history


def test():
    return tf.data.Dataset.from_tensor_slices((x[1400:], y[1400:])).batch(100)


def flat(model):
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


def digest(*variables):
    total = hashlib.sha256()
    for variable in variables:
        total.update(np.asarray(tf.convert_to_tensor(variable)).tobytes())
    return total.hexdigest()


@kind
def averaged_in_every_step():
    """Batches of 32, and last one of 1 row, of which one worker has none."""
    found = {}
    for every in (None, 1):
        use(every)
        model, history = trained(keras.optimizers.SGD(0.1), 2, rows=161, batch=32)
        found[every] = flat(model), history
    gap = np.abs(found[1][0] - found[None][0]).max() / np.abs(found[None][0]).max()
    losses = [found[every][1]["loss"] for every in (None, 1)]
    return {"gap": float(gap), "losses": losses, "weights": digest(found[1][0])}


@kind
def learns():
    return {
        "sync": learned(None, None),
        "local": learned(8, None),
    }


@kind
def learns_with_outer():
    return {
        "local": learned(8, None),
        "diloco": learned(8, "nesterov"),
        "mixed": learned(8, None, keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(2e-3))),
        "moving average": learned(8, None, keras.optimizers.Adam(2e-3, use_ema=True)),
        "several at once": learned(8, None, steps_per_execution=5),
        "eager": learned(8, None, run_eagerly=True),
    }


def learned(every, outer, optimizer=None, **arguments):
    use(every, outer)
    counted = strategy.communicator.observer = Counted(strategy.communicator.observer)
    model, history = trained(optimizer or keras.optimizers.Adam(2e-3), 8, **arguments)
    strategy.communicator.observer = counted.behind
    return {
        "accuracy": float(history["val_accuracy"][-1]),
        "weights": digest(*model.weights),
        "optimizer": digest(*model.optimizer.variables),
        "averages": counted.names.count("weights since their last average"),
        "sums": counted.names.count("all_reduce"),
    }


@kind
def refused():
    use(4)
    with strategy.scope():
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(synchronized=True)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile("sgd", "mse")
    try:
        model.fit(np.zeros((8, 3)), np.zeros((8, 4)), verbose=0)
    except ConfigError as error:
        return str(error)
    return ""


@kind
def outer_steps():
    """One weight, of which everything can be computed by hand; in a loop of one's own."""
    use(2, "nesterov:0.5,0.75")
    with strategy.scope():
        weight = keras.Variable(np.ones(3, "float32"))
        optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def step():
        def replica():
            # Each worker pulls elsewhere; gradients are parts of a mean over both.
            pull = tf.constant([1.0, 2.0, 3.0]) * (RANK + 1)
            optimizer.apply([pull / 2], [weight])

        strategy.run(replica)

    seen = []
    for _ in range(5):
        step()
        seen.append(np.asarray(weight).tolist())
    drumbeat.average_weights(optimizer)
    return {"seen": [*seen, np.asarray(weight).tolist()], "steps": int(optimizer.iterations)}


@kind
def killed():
    use(6, "nesterov")
    with strategy.scope():
        optimizer = keras.optimizers.Adam(2e-3)
    model, history = trained(optimizer, 2, rows=401, batch=25)
    return {
        "weights": digest(*model.weights),
        "optimizer": digest(*optimizer.variables),
        "history": history,
    }


@kind
def killed_loop():
    """A loop of one's own, as resumable."""
    use(3, "nesterov")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
        optimizer = keras.optimizers.Adam(1e-2)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = tf.data.Dataset.from_tensor_slices((x.reshape(-1, 64)[:401], y[:401])).batch(25)
    data = strategy.experimental_distribute_dataset(data)

    def replica(batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    step = tf.function(lambda batch: strategy.reduce("SUM", strategy.run(replica, (batch,)), None))
    progress = drumbeat.state.resumable(model=model, optimizer=optimizer, losses=[], alike=[])
    for _ in progress.epochs(2):
        for batch in progress.batches(data):
            progress.losses.append(float(step(batch)))
        drumbeat.average_weights(optimizer)
        progress.alike.append(digest(*model.weights))
    return {"losses": progress.losses, "alike": progress.alike, "own": digest(*optimizer.variables)}


if __name__ == "__main__":
    found = {name: KINDS[name]() for name in sys.argv[2:]}
    (OUT / f"{RANK}.json").write_text(json.dumps(found))
