"""The job of `make demo`: a small network learns handwritten digits on a few workers.

`make demo` prepares all it needs and runs the first of these; the second trains alone:

    drumbeat run -n 2 examples/demo.py
    python examples/demo.py
"""

from __future__ import annotations

import time
from pathlib import Path

import keras
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import digits
import drumbeat
import recipe


class Stopwatch(keras.callbacks.Callback):
    """Measures training alone: without validation, and without the first epoch, which compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.epochs = 0
        self._epoch = 0
        self._started_at = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Remember which epoch it is."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Start with the epoch's first batch."""
        if batch == 0:
            self._started_at = time.perf_counter()

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Stop: validation begins where the epoch's last batch ended."""
        if self._epoch > 0:
            self.seconds += time.perf_counter() - self._started_at
            self.epochs += 1


def train(
    strategy: tf.distribute.Strategy, options: recipe.Options, files: dict[str, Path]
) -> tuple[float, float | None]:
    """Train, evaluate and save; return test accuracy and examples per second, if measured."""
    (x_train, y_train), (x_test, y_test) = digits.load(options.data)
    with strategy.scope():
        model = recipe.build_network(x_train.shape[1:])
        model.compile(
            optimizer=keras.optimizers.Adam(2e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    stopwatch = Stopwatch()
    batches = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train), seed=1)
    test_batches = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(options.batch_size)
    model.fit(
        batches.batch(options.batch_size).prefetch(tf.data.AUTOTUNE),
        epochs=options.epochs,
        validation_data=test_batches,
        callbacks=[
            keras.callbacks.ModelCheckpoint(files["best model"], save_best_only=True),
            keras.callbacks.TensorBoard(files["TensorBoard"]),
            keras.callbacks.CSVLogger(files["log"]),
            stopwatch,
        ],
    )
    _, accuracy = model.evaluate(test_batches, verbose=0)
    model.save(files["model"])
    rate = len(x_train) * stopwatch.epochs / stopwatch.seconds if stopwatch.epochs else None
    return accuracy, rate


def print_summary(
    workers: int, accuracy: float, rate: float | None, files: dict[str, Path]
) -> None:
    """What came out and where it is."""
    table = Table(title="Handwritten digits", show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("workers", str(workers))
    table.add_row("test accuracy", f"{accuracy:.4f}")
    speed = "not measured: needs 2 epochs or more" if rate is None else f"{rate:,.0f} examples/s"
    table.add_row("training speed", speed)
    Console().print(table)
    # Paths stay outside of the table, which would break them over lines.
    for name, path in files.items():
        print(f"{name}: {path}")
    print(f"Look at it: tensorboard --logdir {files['TensorBoard']}")


def main() -> None:
    options = recipe.parse_options(__file__)
    keras.utils.set_random_seed(1)
    strategy = drumbeat.strategy()
    folder = options.model_dir
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "model": folder / "model.keras",
        "best model": folder / "best.keras",
        "log": folder / "train.csv",
        "TensorBoard": folder / "tensorboard",
    }
    accuracy, rate = train(strategy, options, files)
    if recipe.is_chief(strategy):
        print_summary(strategy.num_replicas_in_sync, accuracy, rate, files)


if __name__ == "__main__":
    main()
