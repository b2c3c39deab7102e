"""Trains the digits CNN; `recovery.py` runs this under drumbeat and under TensorFlow's strategy.

One script for both: Keras 3 there, tf_keras here, and nothing of drumbeat's. With
--kill-step the worker with --kill-rank kills itself after that step, once. Only --block,
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


class Alternate(keras.callbacks.Callback):
    """Has snapshots taken in every other block of epochs only, and times the blocks.

    With, without, without, with, …: so that what changes with time cancels out.
    """

    def __init__(self, block: int) -> None:
        super().__init__()
        self._block = block
        self._began_s = 0.0
        self.walls_s: dict[str, list[float]] = {"with": [], "without": []}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        number, within = divmod(epoch, self._block)
        if within:
            return
        now_s = time.monotonic()
        if number > 1:  # The first block is a warm-up.
            self.walls_s[self._way(number - 1)].append(now_s - self._began_s)
        from drumbeat.training import journal

        every = None if self._way(number) == "with" else 0
        journal.own().active.beat.every = every
        self._began_s = time.monotonic()

    @staticmethod
    def _way(number: int) -> str:
        return "without" if number % 4 in (2, 3) else "with"


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
    parser.add_argument("--block", type=int, help="epochs of a block with or without snapshots")
    options = parser.parse_args()
    keras.utils.set_random_seed(3)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with np.load(options.data) as arrays:
        x, y = arrays["x"], arrays["y"]
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=5).batch(BATCH)
    with strategy.scope():
        model = make_model(options.width)
    walls_s: dict[str, list[float]] = {}
    if options.block:
        alternate = Alternate(options.block)
        callbacks: list[Any] = [alternate]
        walls_s = alternate.walls_s
    else:
        kill_step = options.kill_step if options.kill_rank == RANK else 0
        callbacks = [Steps(options.out, -(-len(x) // BATCH), kill_step)]
    if options.backup:
        callbacks.append(keras.callbacks.BackupAndRestore(str(options.backup)))
    history = model.fit(
        data.prefetch(2), epochs=options.epochs, shuffle=False, verbose=0, callbacks=callbacks
    )
    total = hashlib.sha256()
    for weight in model.get_weights():
        total.update(np.ascontiguousarray(weight).tobytes())
    result = {
        "weights": total.hexdigest(),
        "loss": float(history.history["loss"][-1]),
        "parameters": int(model.count_params()),
        "walls_s": walls_s,
    }
    (options.out / f"result-{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
