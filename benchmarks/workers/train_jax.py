"""Trains a workload with Keras on JAX, under keras.distribution.DataParallel.

KERAS_BACKEND is to be jax. With BENCH_JAX_ADDRESS there are several processes, of which
this is number RANK; else one, with as many virtual devices as there are workers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
from typing import Any

import clock
import jax
import keras
import numpy as np
import workloads
from keras_models import compiled

RANK = int(os.environ.get("RANK", "0"))
ADDRESS = os.environ.get("BENCH_JAX_ADDRESS", "")


class EpochEnds(keras.callbacks.Callback):
    def __init__(self, mine: clock.Clock) -> None:
        super().__init__()
        self._clock = mine

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._clock.epoch()


class Batches(keras.utils.PyDataset):
    """This process's rows of each global batch."""

    def __init__(self, options: argparse.Namespace, steps: int, processes: int) -> None:
        super().__init__()
        self._workload = workloads.WORKLOADS[options.workload]
        self._rows = self._workload.rows * options.workers // processes
        self._processes = processes
        self._steps = steps
        self._arrays = self._workload.examples(options.workers)

    def __len__(self) -> int:
        return self._steps

    def _span(self, batch: int) -> slice:
        start = (batch * self._processes + RANK % self._processes) * self._rows
        return slice(start, start + self._rows)

    def __getitem__(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        span = self._span(batch)
        return self._arrays[0][span], self._arrays[1][span]


class Pictures(Batches):
    def __init__(self, options: argparse.Namespace, steps: int, processes: int) -> None:
        keras.utils.PyDataset.__init__(self, workers=2, use_multiprocessing=False)
        self._rows = workloads.WORKLOADS["images"].rows * options.workers // processes
        self._processes = processes
        self._steps = steps
        self._paths = workloads.pictures(options.pictures)
        self._labels = workloads.labels_of_pictures()

    def __getitem__(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        from decoding import picture

        span = self._span(batch)
        numbers = range(span.start, span.stop)
        pixels = np.stack([picture(self._paths[number], number) for number in numbers])
        return pixels, self._labels[span]


def main() -> None:
    options = clock.arguments()
    processes = options.workers if ADDRESS else 1
    if ADDRESS:
        keras.distribution.initialize(ADDRESS, processes, RANK)
    if options.workers > 1:
        parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(parallel)
    mine = clock.Clock(options, RANK)
    workload = workloads.WORKLOADS[options.workload]
    steps = options.steps or workload.steps
    model = compiled(keras, options.workload)
    kind = Pictures if options.workload == "images" else Batches
    # PyDataset would shuffle the batches.
    first = model.fit(kind(options, 1, processes), verbose=0, shuffle=False)
    mine.first_step(float(first.history["loss"][0]))
    history = model.fit(
        kind(options, steps, processes),
        epochs=options.epochs,
        verbose=0,
        shuffle=False,
        callbacks=[EpochEnds(mine)],
    )
    mine.write(
        steps=steps,
        rows=workload.rows * options.workers,
        losses=[float(loss) for loss in history.history["loss"]],
        parameters=sum(int(np.prod(weight.shape)) for weight in model.trainable_weights),
        devices=[str(device) for device in jax.devices()],
        versions=f"JAX {jax.__version__}, keras {importlib.metadata.version('keras')}",
    )


if __name__ == "__main__":
    main()
