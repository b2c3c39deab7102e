"""Small trainings drawn at random, which test_drawn_cases.py compares with one worker.

    drumbeat run -n N drawn_cases.py OUTPUT_DIR SEED INDEX [INDEX ...]

A case depends on SEED and its INDEX alone. Each worker leaves INDEX.<rank>.npz, or
.txt with a traceback, and the chief INDEX.json, which describes the case.

Most cases compute in float64: rounding is then far below what a wrong weight,
a row left out or one counted twice would do.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

OPTIMIZERS = {
    "sgd": lambda **more: keras.optimizers.SGD(0.05, **more),
    "momentum": lambda **more: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **more),
    "adam": lambda **more: keras.optimizers.Adam(0.01, **more),
    "adamw": lambda **more: keras.optimizers.AdamW(0.01, weight_decay=0.05, **more),
    "rmsprop": lambda **more: keras.optimizers.RMSprop(0.005, **more),
    "adagrad": lambda **more: keras.optimizers.Adagrad(0.05, **more),
}
MORE = ({}, {}, {}, {"clipnorm": 0.1}, {"global_clipnorm": 0.2}, {"clipvalue": 0.02})
MORE += ({"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 3})
MORE += ({"use_ema": True, "ema_overwrite_frequency": 2},)
MODELS = ("linear", "linear", "dense", "batch_norm", "convolution", "tokens", "two_outputs")
REDUCTIONS = ("sum_over_batch_size",) * 3 + ("sum", "mean_with_sample_weight", "none")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training: of a model, on data of some size, given in some way."""

    seed: int
    dtype: str
    rows: int
    batch: int
    epochs: int
    given: str  # arrays, dataset, sequence, generator
    shuffled: bool
    drop_remainder: bool
    steps_per_epoch: int | None
    steps_per_execution: int
    eager: bool
    model: str  # linear, dense, batch_norm, convolution, tokens, two_outputs
    dropout: bool
    regularized: bool
    loss: str
    reduction: str
    optimizer: str
    more: dict[str, Any]
    weights: str  # none, sample, sample_some_zero, class
    metrics: str  # none, plain, weighted
    validation: str  # none, data, split
    evaluate_batch: int  # 0: not at all
    predict_batch: int


def draw(seed: int, index: int) -> Case:
    """The case number `index`; sizes are small, as errors live where rows are few."""
    rng = random.Random(f"{seed}/{index}")
    rows = rng.choice((rng.randint(1, 12), rng.randint(5, 70), rng.randint(30, 120)))
    given = rng.choice(("arrays", "arrays", "dataset", "dataset", "sequence", "generator"))
    batch = rng.choice((rng.randint(1, 6), rng.randint(3, 40)))
    batch = max(batch, -(-rows // 8))  # at most 8 steps an epoch
    model = rng.choice(MODELS)
    drop_remainder = given == "dataset" and rows >= batch and rng.random() < 0.3
    weights = rng.choice(("none", "none", "sample", "sample_some_zero", "class"))
    if weights == "class" and (model in ("tokens", "two_outputs") or given == "generator"):
        weights = "sample"  # Keras has class weights for one output per row
    regularized, eager = rng.random() < 0.3, rng.random() < 0.5
    reduction = rng.choice(REDUCTIONS)
    if regularized or model == "two_outputs":
        reduction = reduction.replace("none", "sum")  # Keras can't add a vector to a number
    return Case(
        seed=rng.randrange(2**31),
        dtype=rng.choice(("float64", "float64", "float64", "float32")),
        rows=rows,
        batch=batch,
        epochs=rng.randint(1, 2),
        given=given,
        shuffled=given in ("arrays", "dataset") and rng.random() < 0.6,
        drop_remainder=drop_remainder,
        steps_per_epoch=rng.randint(1, 6) if given in ("dataset", "generator") else None,
        steps_per_execution=1 if eager else rng.choice((1, 1, 1, 2)),
        eager=eager,
        model=model,
        dropout=rng.random() < 0.25,
        regularized=regularized,
        loss=rng.choice(("crossentropy", "crossentropy", "mse", "huber")),
        reduction=reduction,
        optimizer=rng.choice(tuple(OPTIMIZERS)),
        more=rng.choice(MORE),
        weights=weights,
        metrics=rng.choice(("none", "plain", "weighted")),
        validation=rng.choice(
            ("none", "none", "none", "split" if given == "arrays" and rows > 3 else "data")
        ),
        evaluate_batch=rng.randint(1, max(2, rows)) if rng.random() < 0.3 else 0,
        predict_batch=rng.randint(1, max(2, rows)) if rng.random() < 0.3 else 0,
    )


Arrays = dict[str, np.ndarray]
CLASSES = 3


def examples(case: Case, rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Inputs, targets and sample weights; the model decides on their shapes."""
    rng = np.random.default_rng(seed)
    if case.model == "tokens":
        x: Any = rng.integers(0, 8, (rows, 5))
        x[rng.random(rows) < 0.2, 1:] = 0  # masked, but for the first
        labels: Any = x % CLASSES
    elif case.model == "convolution":
        x = rng.normal(size=(rows, 6, 6, 1)).astype(case.dtype)
        labels = rng.integers(0, CLASSES, rows)
    else:
        x = rng.normal(size=(rows, 6)).astype(case.dtype)
        labels = (x[:, :CLASSES] + x[:, CLASSES:]).argmax(-1)
    y = labels if case.loss == "crossentropy" else np.eye(CLASSES, dtype=case.dtype)[labels]
    weights: Any = None
    if case.weights.startswith("sample"):
        # With a mask, Keras takes weights of single rows for weights of positions.
        weights = rng.uniform(0.1, 3, labels.shape).astype(case.dtype)
        if case.weights == "sample_some_zero":
            weights[rng.random(rows) < 0.5] = 0
    if case.model == "two_outputs":
        y = {"kind": y, "size": np.sum(x, -1, keepdims=True)}
        if weights is not None:
            weights = {"kind": weights, "size": weights[::-1].copy()}
    return x, y, weights


def build(case: Case) -> Any:
    regularizer = keras.regularizers.L2(0.02) if case.regularized else None
    layers = keras.layers
    dense = layers.Dense(7, activation="tanh", kernel_regularizer=regularizer)
    scores = layers.Dense(CLASSES, name="kind")
    if case.model == "tokens":
        parts = [keras.Input((5,), dtype="int32"), layers.Embedding(8, 4, mask_zero=True), dense]
    elif case.model == "convolution":
        parts = [keras.Input((6, 6, 1)), layers.Conv2D(3, 3, activation="relu")]
        parts += [layers.MaxPooling2D(), layers.Flatten()]
    elif case.model == "batch_norm":
        # No bias before the normalisation: its gradient is 0 but for rounding.
        parts = [keras.Input((6,)), layers.Dense(7, use_bias=False)]
        parts += [layers.BatchNormalization(synchronized=True, momentum=0.8), dense]
    else:
        parts = [keras.Input((6,)), *([] if case.model == "linear" else [dense])]
    if case.dropout:
        parts.append(layers.Dropout(0.3))
    if case.model != "two_outputs":
        return keras.Sequential([*parts, scores])
    hidden = parts[0]
    for layer in parts[1:]:
        hidden = layer(hidden)
    outputs = {"kind": scores(hidden), "size": layers.Dense(1, name="size")(parts[0])}
    return keras.Model(parts[0], outputs)


def compile_arguments(case: Case) -> dict[str, Any]:
    if case.loss == "crossentropy":
        loss: Any = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=case.reduction
        )
    elif case.loss == "mse":
        loss = keras.losses.MeanSquaredError(reduction=case.reduction)
    else:
        loss = keras.losses.Huber(0.5, reduction=case.reduction)
    arguments: dict[str, Any] = {
        "optimizer": OPTIMIZERS[case.optimizer](**case.more),
        "loss": loss,
        "steps_per_execution": case.steps_per_execution,
        "run_eagerly": case.eager,
    }
    if case.model == "two_outputs":
        arguments |= {
            "loss": {"kind": loss, "size": "mae"},
            "loss_weights": {"kind": 1.0, "size": 0.3},
        }
    if case.metrics != "none":
        name = "metrics" if case.metrics == "plain" else "weighted_metrics"
        two = case.model == "two_outputs"
        arguments[name] = {"kind": ["accuracy"], "size": ["mse"]} if two else ["accuracy"]
    return arguments


class Batches(keras.utils.PyDataset):
    def __init__(self, columns: tuple[Any, ...], rows: int, batch: int) -> None:
        super().__init__()
        self.columns, self.rows, self.batch = columns, rows, batch

    def __len__(self) -> int:
        return -(-self.rows // self.batch)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        part = slice(index * self.batch, (index + 1) * self.batch)
        return tuple(tf.nest.map_structure(lambda a: a[part], c) for c in self.columns)


def fit_arguments(case: Case) -> dict[str, Any]:
    x, y, weights = examples(case, case.rows, case.seed)
    columns = (x, y) if weights is None else (x, y, weights)
    arguments: dict[str, Any] = {"epochs": case.epochs, "verbose": 0}
    if case.given == "arrays":
        arguments |= {"x": x, "y": y, "sample_weight": weights, "batch_size": case.batch}
        arguments["shuffle"] = case.shuffled
    elif case.given == "dataset":
        dataset = tf.data.Dataset.from_tensor_slices(columns)
        if case.shuffled:
            dataset = dataset.shuffle(case.rows, seed=case.seed)
        dataset = dataset.batch(case.batch, drop_remainder=case.drop_remainder)
        arguments["x"] = dataset.repeat() if case.steps_per_epoch else dataset
        arguments["steps_per_epoch"] = case.steps_per_epoch
    else:
        batches = Batches(columns, case.rows, case.batch)
        arguments["x"] = batches
        if case.given == "generator":
            steps = case.steps_per_epoch or len(batches)
            arguments["x"] = (batches[i % len(batches)] for i in range(steps * (case.epochs + 1)))
            arguments["steps_per_epoch"] = steps
    if case.weights == "class":
        arguments["class_weight"] = {0: 0.2, 1: 1.0, 2: 3.0}
    if case.validation == "split":
        arguments["validation_split"] = 0.3
    elif case.validation == "data":
        arguments["validation_data"] = examples(case, case.rows // 2 + 1, case.seed + 1)
    return arguments


def train(case: Case, strategy: tf.distribute.Strategy) -> Arrays:
    """What must not depend on the number of workers."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(case.seed)
    keras.config.set_floatx(case.dtype)
    with strategy.scope():
        model = build(case)
        model.compile(**compile_arguments(case))
    history = model.fit(**fit_arguments(case)).history
    result = {f"weights_{i}": w.numpy() for i, w in enumerate(model.weights)}
    result |= {f"history_{name}": np.array(values) for name, values in history.items()}
    x, y, weights = examples(case, case.rows, case.seed)
    if case.evaluate_batch:
        more = {"sample_weight": weights, "batch_size": case.evaluate_batch, "return_dict": True}
        scores = model.evaluate(x, y, verbose=0, **more)
        result |= {f"evaluate_{name}": np.array(value) for name, value in scores.items()}
    if case.predict_batch:
        parts = tf.nest.flatten(model.predict(x, batch_size=case.predict_batch, verbose=0))
        result |= {f"predict_{i}": np.array(part) for i, part in enumerate(parts)}
    return result


def main() -> None:
    out, seed = Path(sys.argv[1]), int(sys.argv[2])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = strategy.communicator.rank
    for index in map(int, sys.argv[3:]):
        case = draw(seed, index)
        if rank == 0:
            (out / f"{index}.json").write_text(json.dumps(dataclasses.asdict(case)))
        try:
            np.savez(out / f"{index}.{rank}.npz", **train(case, strategy))
        except Exception:
            (out / f"{index}.{rank}.txt").write_text(traceback.format_exc())
            if strategy.communicator.last_error is not None:
                break  # the workers have parted


if __name__ == "__main__":
    main()
