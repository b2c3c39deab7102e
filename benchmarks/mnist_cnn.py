"""One worker of the comparison: trains a small network and measures its steps.

Stock TensorFlow and nothing else, so that the same file runs under `drumbeat run`
and, with TF_USE_LEGACY_KERAS=1, under TensorFlow's own strategy. The data has the
shape of MNIST and comes from a seed. The chief writes a JSON object to --out.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import time
from typing import Any

import numpy as np
import tensorflow as tf

keras: Any = tf.keras  # Keras 3, or tf_keras if TF_USE_LEGACY_KERAS is set
SEED = 1


class StepTimes(keras.callbacks.Callback):
    """Seconds from the end of one step to the end of the next, without those across epochs."""

    def __init__(self, warmup_steps: int) -> None:
        super().__init__()
        self._warmup_steps = warmup_steps
        self._last_s: float | None = None
        self._seen = 0
        self.times_s: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._last_s = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now_s = time.perf_counter()
        self._seen += 1
        if self._last_s is not None and self._seen > self._warmup_steps:
            self.times_s.append(now_s - self._last_s)
        self._last_s = now_s


def make_data(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of noise, labelled by a random linear map: a network can learn them."""
    random = np.random.default_rng(SEED)
    images = random.random((num_rows, 28, 28, 1), np.float32)
    scores = (images.reshape(num_rows, -1) - 0.5) @ random.normal(size=(784, 10))
    return images, scores.argmax(axis=1).astype(np.int64)


def make_model(name: str) -> Any:
    """The network `name` with weights from the seed, the same in both Keras generations."""
    layers = keras.layers
    hidden = {
        # The model of TensorFlow's multi-worker tutorial, with 8 filters: 54,170 parameters.
        "cnn": lambda: [layers.Conv2D(8, 3, activation="relu"), layers.Flatten()],
        # 24.9 million parameters, 100 MB of gradients.
        "dense": lambda: [
            layers.Flatten(),
            *(layers.Dense(width, activation="relu") for width in (4096, 4096, 1200)),
        ],
    }[name]()
    model = keras.Sequential([layers.Input((28, 28, 1)), *hidden, layers.Dense(10)])
    random = np.random.default_rng(SEED)
    model.set_weights(
        [
            random.normal(0, 1 / np.sqrt(np.prod(w.shape[:-1])), w.shape).astype(w.dtype)
            if w.ndim > 1
            else np.zeros_like(w)
            for w in model.get_weights()
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def fit(model: Any, way: str, options: argparse.Namespace) -> dict[str, float]:
    """Trains through plain `fit`; returns step times in ms and the loss of the last epoch."""
    images, labels = make_data(options.batches * options.batch_size)
    times = StepTimes(options.warmup)
    epochs = -(-(options.warmup + options.steps) // (options.batches - 1))
    if way == "numpy":
        arguments: dict[str, Any] = {"x": images, "y": labels, "batch_size": options.batch_size}
    else:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
        arguments = {"x": dataset.batch(options.batch_size).cache().prefetch(2)}
    history = model.fit(**arguments, epochs=epochs, verbose=0, callbacks=[times])
    return {
        "median_ms": 1e3 * statistics.median(times.times_s),
        "mean_ms": 1e3 * statistics.fmean(times.times_s),
        "steps": len(times.times_s),
        "loss": float(history.history["loss"][-1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", choices=("cnn", "dense"), default="cnn")
    parser.add_argument("--ways", nargs="+", choices=("dataset", "numpy"), default=["dataset"])
    parser.add_argument("--batch-size", type=int, default=512, help="global")
    parser.add_argument("--batches", type=int, default=40, help="in an epoch")
    parser.add_argument(
        "--warmup",
        type=int,
        default=20,
        help="steps not measured; the first of each epoch is not either",
    )
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    generation = keras.__name__.partition(".")[0]  # "keras" or "tf_keras"
    results: dict[str, Any] = {
        "tensorflow": tf.__version__,
        "keras": f"{generation} {importlib.metadata.version(generation)}",
        "replicas": strategy.num_replicas_in_sync,
    }
    for way in options.ways:
        with strategy.scope():
            model = make_model(options.model)
        results[way] = fit(model, way, options)
        results["parameters"] = model.count_params()
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"index": 0})
    if int(task["index"]) == 0:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
