"""Trains the digits CNN and notes what it trained on; `chaos.py` runs this under failures.

    drumbeat run -n 2 benchmarks/chaos_train.py --out FOLDER

An ordinary script: it doesn't know of failures, snapshots or restarts. Two fits with
an evaluation between them, a shuffled pipeline, dropout, Adam and callbacks that have
state of their own. Each worker appends a line to `ledger-<rank>.jsonl` for every step
that it makes: which examples it trained on, and when. At its end it writes digests of
everything that training left to `result-<rank>.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

RANK = int(os.environ.get("DRUMBEAT_RANK", "0"))
TRAINED, BATCH = 1400, 64
STEPS_PER_EPOCH = -(-TRAINED // BATCH)


class Ledger(keras.callbacks.Callback):
    """Writes down each step once it is finished, with the examples that this worker had."""

    def __init__(self, path: Path, phase: int) -> None:
        super().__init__()
        self._path = str(path)
        self._phase = phase
        self._epoch = 0
        # State that a restart must bring back, as any callback of a user's may have.
        self.batches = 0
        self.loss_sum = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.loss_sum += float((logs or {})["loss"])
        line = {
            "phase": self._phase,
            "epoch": self._epoch,
            "batch": batch,
            "ids": drawn.pop() if drawn else [],
            "time_s": time.monotonic(),
            "cpu_s": time.process_time(),
            "pid": os.getpid(),
        }
        drawn.clear()
        # One write: a line is there or not, whatever happens to this process.
        descriptor = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.close(descriptor)


drawn: list[list[int]] = []


def note(ids: np.ndarray) -> None:
    """Remembers the examples of the step at hand."""
    drawn.append(ids.tolist())


class Recorded(keras.Model):
    """A model that is given a number with each example, and notes it."""

    def train_step(self, data: Any) -> Any:
        x, y, ids = data
        tf.numpy_function(note, [ids], [], stateful=True)
        return super().train_step((x, y))


def build() -> keras.Model:
    image = keras.Input((8, 8, 1))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(image)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dropout(0.3)(x)
    x = layers.Dense(64, activation="relu")(x)
    x = layers.Dropout(0.2)(x)
    model = Recorded(image, layers.Dense(10)(x))
    model.compile(
        keras.optimizers.Adam(2e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        jit_compile=False,
    )
    return model


def digest(arrays: list[Any]) -> str:
    """SHA-256 over the bytes, shapes and types of arrays."""
    total = hashlib.sha256()
    for array in map(np.asarray, arrays):
        total.update(f"{array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, nargs=2, default=(6, 4), help="of the two fits")
    options = parser.parse_args()
    keras.utils.set_random_seed(11)
    data: Any = load_digits()
    images = (data.images / 16).astype("float32")[..., None]
    labels = data.target.astype("int64")
    ids = np.arange(len(labels), dtype=np.int64)
    train = tf.data.Dataset.from_tensor_slices((images[:TRAINED], labels[:TRAINED], ids[:TRAINED]))
    train = train.shuffle(TRAINED, seed=5).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    test = tf.data.Dataset.from_tensor_slices((images[TRAINED:], labels[TRAINED:])).batch(200)

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = build()
    ledgers = [Ledger(options.out / f"ledger-{RANK}.jsonl", phase) for phase in (0, 1)]
    slower = keras.callbacks.ReduceLROnPlateau(
        monitor="loss", factor=0.7, patience=0, min_delta=0.2
    )
    best = keras.callbacks.EarlyStopping(monitor="loss", patience=99, restore_best_weights=True)
    first = model.fit(
        train,
        epochs=options.epochs[0],
        verbose=0,
        shuffle=False,
        callbacks=[ledgers[0], slower, best],
    )
    between = model.evaluate(test, verbose=0)
    second = model.fit(
        train,
        epochs=options.epochs[1],
        verbose=0,
        shuffle=False,
        validation_data=test,
        callbacks=[
            ledgers[1],
            keras.callbacks.LearningRateScheduler(lambda epoch: 1e-3 / (epoch + 1)),
        ],
    )
    result = {
        "weights": digest([weight.numpy() for weight in model.weights]),
        "state": digest([variable.numpy() for variable in model.variables]),
        "optimizer": digest([variable.numpy() for variable in model.optimizer.variables]),
        "history": [first.history, second.history],
        "epochs": [first.epoch, second.epoch],
        "evaluation": [between, model.evaluate(test, verbose=0)],
        "callbacks": [[ledger.batches, ledger.loss_sum] for ledger in ledgers],
        "plateau": [slower.best, slower.wait],
    }
    (options.out / f"result-{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
