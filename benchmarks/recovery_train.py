"""Trains the digits CNN; `recovery.py` runs this under drumbeat and under TensorFlow's strategy.

One script for both: Keras 3 there, tf_keras here, and nothing of drumbeat's. With
--kill-step the worker with --kill-rank kills itself after that step, once. Only --steps,
which measures snapshots, reaches into drumbeat.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

keras: Any = tf.keras
RANK = int((json.loads(os.environ.get("TF_CONFIG") or "{}").get("task") or {"index": 0})["index"])
BATCH = 64


class Steps(keras.callbacks.Callback):
    """Writes down each step and its time; kills this process after one of them."""

    def __init__(self, folder: Path, per_epoch: int, kill_step: int) -> None:
        super().__init__()
        self._path = folder / f"steps-{RANK}.txt"
        self._mark = folder / "killed"
        self._per_epoch = per_epoch
        self._kill_step = kill_step
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = self._epoch * self._per_epoch + batch + 1
        with self._path.open("a") as file:
            file.write(f"{step} {time.monotonic()}\n")
        if step == self._kill_step and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class StepTimes(keras.callbacks.Callback):
    """From the end of each step to that of the next, and in which of them snapshots were taken."""

    def __init__(self) -> None:
        super().__init__()
        self._ended_s = time.monotonic()
        self.steps_s: list[float] = []
        self.snapshots: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        from drumbeat.training import journal

        now_s = time.monotonic()
        # Taken when all callbacks had seen the step before.
        if journal.own().active.beat.kept[0] > self._ended_s:
            self.snapshots.append(len(self.steps_s))
        self.steps_s.append(now_s - self._ended_s)
        self._ended_s = now_s


def make_model(width: int) -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.InputLayer((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(width, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="an npz with x and y")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=64, help="of the dense layer")
    parser.add_argument("--kill-step", type=int, default=0)
    parser.add_argument("--kill-rank", type=int, default=1)
    parser.add_argument("--backup", type=Path, help="for BackupAndRestore")
    parser.add_argument("--steps", type=int, help="one epoch of so many, with the time of each")
    options = parser.parse_args()
    keras.utils.set_random_seed(3)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with np.load(options.data) as arrays:
        x, y = arrays["x"], arrays["y"]
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=5).batch(BATCH)
    with strategy.scope():
        model = make_model(options.width)
    times = StepTimes()
    callbacks: list[Any] = [times]
    if options.steps:
        data = data.repeat()
    else:
        kill_step = options.kill_step if options.kill_rank == RANK else 0
        callbacks = [Steps(options.out, -(-len(x) // BATCH), kill_step)]
    if options.backup:
        callbacks.append(keras.callbacks.BackupAndRestore(str(options.backup)))
    history = model.fit(
        data.prefetch(2),
        epochs=options.epochs,
        steps_per_epoch=options.steps,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    total = hashlib.sha256()
    for weight in model.get_weights():
        total.update(np.ascontiguousarray(weight).tobytes())
    result = {
        "weights": total.hexdigest(),
        "loss": float(history.history["loss"][-1]),
        "parameters": int(model.count_params()),
        "steps_s": times.steps_s,
        "snapshots": times.snapshots,
    }
    (options.out / f"result-{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
