"""Keras on JAX, data-parallel: each process holds the model and has its rows of each batch.

    drumbeat run --backend jax -n 2 examples/jax_data_parallel.py
    KERAS_BACKEND=jax python examples/jax_data_parallel.py          # alone: the same loss

Started again with the same --model-dir, by hand or by drumbeat after a failure, it goes on after
the last epoch that was finished.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import keras
import numpy as np

import digits

BATCH = 128


class Rows(keras.utils.PyDataset):
    """This process's rows of each global batch. What Keras gets is one process's part of it."""

    def __init__(self, x: np.ndarray, y: np.ndarray, first_epoch: int) -> None:
        super().__init__()
        self._x, self._y = x, y
        self._epoch = first_epoch
        self._rows = BATCH // jax.process_count()

    def __len__(self) -> int:
        return len(self._x) // BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        # The same order in all processes, another in each epoch.
        order = np.random.default_rng(self._epoch).permutation(len(self._x))
        start = index * BATCH + jax.process_index() * self._rows
        rows = order[start : start + self._rows]
        return self._x[rows], self._y[rows]

    def on_epoch_end(self) -> None:
        """Keras calls it."""
        self._epoch += 1


def make() -> keras.Model:
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
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--model-dir", type=Path, default=Path("jax-models"))
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
    keras.distribution.set_distribution(parallel)

    # What touches weights, all processes do: reading them is a step of all in JAX. Each saves, to
    # a folder of its own, and all go on from what the first has saved.
    folder = options.model_dir / str(jax.process_index())
    folder.mkdir(parents=True, exist_ok=True)
    saved = sorted((options.model_dir / "0").glob("*.keras"))
    model = keras.saving.load_model(saved[-1]) if saved else make()
    first = int(saved[-1].stem) if saved else 0
    (x, y), _ = digits.load()
    history = model.fit(
        Rows(x, y, first),
        epochs=options.epochs,
        initial_epoch=first,
        shuffle=False,
        verbose=0,
        callbacks=[keras.callbacks.ModelCheckpoint(folder / "{epoch:03d}.keras")],
    )
    for epoch, (loss, accuracy) in enumerate(
        zip(history.history["loss"], history.history["accuracy"], strict=True), first + 1
    ):
        print(f"epoch {epoch}: loss {loss:.6f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
