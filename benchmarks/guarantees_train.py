"""Trains one model of each kind; `guarantees.py` runs this on different numbers of workers.

    drumbeat run -n 2 benchmarks/guarantees_train.py --out FOLDER [--kinds dense ...]

An ordinary script: nothing in here is drumbeat's. It trains on scikit-learn's
handwritten digits and on sequences drawn from a fixed seed, 100 steps each; the last
batch of an epoch is shorter and doesn't divide by the number of workers. The chief
writes weights and history to `<kind>.npz`, each worker the digest of all that
training left to `<kind>.<rank>.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

RANK = int(os.environ.get("DRUMBEAT_RANK", "0"))
BATCH = 90  # 1797 rows are 19 batches and 87 rows
CLASSES = 10
VOCABULARY, LENGTH = 300, 12
CROSSENTROPY = "sparse_categorical_crossentropy"

# Makes a model and what its `fit` gets, of at most so many rows.
Kind = Callable[[int], tuple[keras.Model, dict[str, Any]]]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def digits(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of shape [rows, 8, 8] with values from 0 to 1, and labels."""
    data: Any = load_digits()
    return (data.images[:rows] / 16).astype("float32"), data.target[:rows].astype("int64")


def sentences(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Word numbers of shape [rows, LENGTH], frequent ones low and 0 after the end; 0 or 1."""
    rng = np.random.default_rng(7)
    words = np.minimum(rng.zipf(1.3, (1797, LENGTH)), VOCABULARY - 1)
    ends = rng.integers(3, LENGTH + 1, (1797, 1))
    ids = np.where(np.arange(LENGTH) < ends, words, 0)
    scores = rng.normal(size=VOCABULARY)[ids].sum(-1)
    return ids[:rows], (scores > np.median(scores)).astype("float32")[:rows]


def in_memory(x: Any, y: Any, **more: Any) -> dict[str, Any]:
    """Arrays, which fit shuffles; a part of them for validation."""
    return {
        "x": x,
        "y": y,
        "batch_size": BATCH,
        "validation_data": (x[:250], y[:250]),
        **more,
    }


def as_dataset(*columns: Any) -> dict[str, Any]:
    dataset = tf.data.Dataset.from_tensor_slices(columns).shuffle(1000, seed=3)
    return {"x": dataset.batch(BATCH)}


def perceptron(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(optimizer, CROSSENTROPY, metrics=["accuracy"])
    return model


@kind
def dense(rows: int) -> tuple[keras.Model, dict[str, Any]]:
    return perceptron(keras.optimizers.Adam(1e-3)), in_memory(*digits(rows))


def convolutional(*, synchronized: bool) -> keras.Model:
    parts: list[Any] = [keras.Input((8, 8, 1))]
    for filters in (8, 16):
        # Without bias, as normalising takes it away again.
        parts += [
            layers.Conv2D(filters, 3, padding="same", use_bias=False),
            layers.BatchNormalization(synchronized=synchronized),
            layers.ReLU(),
            layers.MaxPooling2D(),
        ]
    model = keras.Sequential([*parts, layers.Flatten(), layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


@kind
def cnn_batch_norm_synchronized(rows: int) -> tuple[keras.Model, dict[str, Any]]:
    x, y = digits(rows)
    return convolutional(synchronized=True), in_memory(x[..., None], y)


@kind
def cnn_batch_norm(rows: int) -> tuple[keras.Model, dict[str, Any]]:
    x, y = digits(rows)
    return convolutional(synchronized=False), in_memory(x[..., None], y)


class Positions(layers.Layer):
    """Adds a learnt vector to each position."""

    def build(self, input_shape: Any) -> None:
        self.vectors = self.add_weight(shape=input_shape[1:], initializer="uniform")

    def call(self, x: Any) -> Any:
        return x + self.vectors


@kind
def transformer_dropout(rows: int) -> tuple[keras.Model, dict[str, Any]]:
    # An image as eight words, its lines.
    x, y = digits(rows)
    inputs = keras.Input((8, 8))
    hidden: Any = layers.Dropout(0.1)(Positions()(layers.Dense(32)(inputs)))
    # The bias of keys has no effect, and so no gradient but rounding.
    attention = layers.MultiHeadAttention(2, 16, dropout=0.1, use_bias=False)
    hidden = layers.LayerNormalization()(hidden + attention(hidden, hidden))
    inner = layers.Dense(32)(layers.Dense(64, activation="gelu")(hidden))
    hidden = layers.LayerNormalization()(hidden + layers.Dropout(0.1)(inner))
    outputs = layers.Dense(CLASSES, activation="softmax")(layers.Flatten()(hidden))
    model: Any = keras.Model(inputs, outputs)
    schedule = keras.optimizers.schedules.CosineDecay(2e-3, 100)
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0)
    model.compile(optimizer, CROSSENTROPY, metrics=["accuracy"])
    return model, as_dataset(x, y)


def embedded(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """The gradient of its embedding is IndexedSlices: the words of the batch only."""
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(VOCABULARY, 16),
            layers.GlobalAveragePooling1D(),
            layers.Dense(16, activation="tanh"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
    return model


@kind
def embedding_adam(rows: int) -> tuple[keras.Model, dict[str, Any]]:
    return embedded(keras.optimizers.Adam(3e-3)), as_dataset(*sentences(rows))


@kind
def embedding_adagrad(rows: int) -> tuple[keras.Model, dict[str, Any]]:
    return embedded(keras.optimizers.Adagrad(0.1)), as_dataset(*sentences(rows))


@kind
def outputs_weights_masks(rows: int) -> tuple[keras.Model, dict[str, Any]]:
    ids, label = sentences(rows)
    inputs = keras.Input((LENGTH,), dtype="int32")
    hidden = layers.Embedding(VOCABULARY, 16, mask_zero=True)(inputs)
    states = layers.GRU(16, return_sequences=True)(hidden)
    outputs = {
        "common": layers.Dense(1, activation="sigmoid", name="common")(states),
        "label": layers.Dense(1, activation="sigmoid", name="label")(layers.GRU(8)(states)),
    }
    model: Any = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.RMSprop(2e-3),
        loss={"common": "binary_crossentropy", "label": "binary_crossentropy"},
        loss_weights={"common": 1.0, "label": 0.5},
        weighted_metrics={"common": ["accuracy"], "label": ["accuracy"]},
    )
    targets = {"common": (ids < 4).astype("float32")[..., None], "label": label[:, None]}
    rng = np.random.default_rng(8)
    weights = {
        "common": rng.uniform(0.5, 2, ids.shape).astype("float32"),
        "label": rng.uniform(0, 2, len(ids)).astype("float32"),
    }
    return model, as_dataset(ids, targets, weights)


def mixed(policy: str, rows: int) -> tuple[keras.Model, dict[str, Any]]:
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        model = perceptron(keras.optimizers.SGD(0.05, momentum=0.9))
        return model, in_memory(*digits(rows))
    finally:
        keras.mixed_precision.set_dtype_policy("float32")


@kind
def mixed_float16(rows: int) -> tuple[keras.Model, dict[str, Any]]:
    return mixed("mixed_float16", rows)


@kind
def mixed_bfloat16(rows: int) -> tuple[keras.Model, dict[str, Any]]:
    return mixed("mixed_bfloat16", rows)


def digest(model: keras.Model, history: dict[str, list[float]]) -> str:
    """SHA-256 of all that training leaves: weights, random state, optimizer and history."""
    found = hashlib.sha256()
    optimizer: Any = model.optimizer
    # What metrics have counted is each worker's own; the history has their results.
    counts = {id(variable) for metric in model.metrics for variable in metric.variables}
    for variable in (*model.variables, *optimizer.variables):
        if id(variable) not in counts:
            found.update(np.asarray(variable.value).tobytes())
    found.update(json.dumps(history, sort_keys=True).encode())
    return found.hexdigest()


def train(name: str, rows: int, epochs: int, out: Path) -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(2024)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model, arguments = KINDS[name](rows)
    epoch_ends = [time.monotonic()]
    clock = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: epoch_ends.append(time.monotonic())
    )
    fitted: Any = model.fit(**arguments, epochs=epochs, verbose=0, callbacks=[clock])
    history = {key: [float(value) for value in values] for key, values in fitted.history.items()}
    report = {
        "digest": digest(model, history),
        "loss": history["loss"],
        "epoch_s": np.diff(epoch_ends).tolist(),
    }
    (out / f"{name}.{RANK}.json").write_text(json.dumps(report))
    if RANK == 0:
        arrays = {f"weight {i}": weight for i, weight in enumerate(model.get_weights())}
        arrays |= {f"history {key}": np.array(values) for key, values in history.items()}
        np.savez(out / f"{name}.npz", **arrays)
        print(f"{name}: loss {history['loss'][0]:.4f} to {history['loss'][-1]:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rows", type=int, default=1797)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    for name in options.kinds:
        train(name, options.rows, options.epochs, options.out)


if __name__ == "__main__":
    main()
