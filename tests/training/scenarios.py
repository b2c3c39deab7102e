"""Small trainings, each run on 1, 2 and 3 workers by test_parity.py, which compares them.

    drumbeat run -n N scenarios.py OUTPUT_DIR [NAME ...]

Each scenario is a function that returns named arrays. What must not depend on the
number of workers is returned as it is; names that start with "own_" are this
worker's alone. A scenario that raises leaves its traceback instead.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging.handlers
import os
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf

import drumbeat
from drumbeat.training import journal

strategy = tf.distribute.MultiWorkerMirroredStrategy()
RANK = strategy.extended.communicator.rank
SIZE = strategy.num_replicas_in_sync
SCENARIOS = {}
OUT = Path(sys.argv[1])


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def data(rows=330, features=6, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype("float32")
    y = (x @ rng.normal(size=(features, classes))).argmax(-1)
    return x, y


def dense_model(optimizer=None, regularizer=None, metrics=("accuracy",), **compile_arguments):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(
                    16,
                    activation="tanh",
                    kernel_regularizer=regularizer,
                    activity_regularizer=regularizer,
                ),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            optimizer=optimizer or keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            weighted_metrics=list(metrics),
            **compile_arguments,
        )
    return model


def outcome(model, history=None, **more):
    result = {f"weight_{i}": w for i, w in enumerate(model.get_weights())}
    if history is not None:
        result |= {f"history_{k}": np.array(v) for k, v in history.history.items()}
    return result | more


# Ways to give data -------------------------------------------------------------


# F1: keras#20585, every multi-worker fit and evaluate failed.
@scenario
def fit_numpy():
    # 330 rows in batches of 64: the last has 10. 9 epochs are 54 steps.
    x, y = data()
    model = dense_model()
    history = model.fit(
        x, y, batch_size=64, epochs=9, shuffle=False, verbose=0, validation_data=(x[:50], y[:50])
    )
    scores = model.evaluate(x[:33], y[:33], batch_size=8, verbose=0)
    return outcome(model, history, scores=np.array(scores))


# N1: each worker shuffled NumPy arrays by itself.
@scenario
def fit_numpy_shuffled():
    x, y = data()
    model = dense_model()
    return outcome(model, model.fit(x, y, batch_size=64, epochs=9, verbose=0))


@scenario
def fit_numpy_batch_shuffle_and_split():
    x, y = data()
    model = dense_model()
    history = model.fit(
        x, y, batch_size=64, epochs=3, shuffle="batch", validation_split=0.2, verbose=0
    )
    return outcome(model, history)


def pipeline(x, y, batch=64, **shuffle):
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if shuffle:
        dataset = dataset.shuffle(1000, **shuffle)
    return dataset.batch(batch)


@scenario
def fit_dataset():
    x, y = data()
    model = dense_model()
    history = model.fit(
        pipeline(x, y, seed=5), epochs=9, verbose=0, validation_data=pipeline(x[:50], y[:50])
    )
    return outcome(model, history)


@scenario
def fit_dataset_unseeded_shuffle():
    x, y = data()
    if RANK == 0:
        # The chief draws a number that the others don't: their streams part here.
        np.random.random(), keras.utils.set_random_seed(11)
    model = dense_model()
    return outcome(model, model.fit(x, y, epochs=2, verbose=0))


@scenario
def fit_dataset_static_batch_and_steps():
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(64, drop_remainder=True)
    model = dense_model()
    return outcome(model, model.fit(dataset, epochs=3, steps_per_epoch=4, verbose=0))


@scenario
def fit_dict_dataset_with_two_outputs():
    x, y = data()
    with strategy.scope():
        left, right = keras.Input((3,), name="left"), keras.Input((3,), name="right")
        hidden = keras.layers.Dense(8, activation="tanh")(keras.layers.concatenate([left, right]))
        outputs = {
            "kind": keras.layers.Dense(3, name="kind")(hidden),
            "size": keras.layers.Dense(1, name="size")(hidden),
        }
        model = keras.Model({"left": left, "right": right}, outputs)
        model.compile(
            keras.optimizers.SGD(0.05),
            loss={
                "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "size": "mse",
            },
            loss_weights={"kind": 1.0, "size": 0.5},
            metrics={"kind": ["accuracy"]},
            weighted_metrics={"size": ["mae"]},
        )
    inputs = {"left": x[:, :3], "right": x[:, 3:]}
    targets = {"kind": y, "size": x.sum(-1, keepdims=True)}
    weights = np.random.default_rng(2).uniform(0, 2, len(x)).astype("float32")
    weights[-15:] = 0  # Those of the last worker's last batch.
    weights = {"kind": weights, "size": weights[::-1]}
    dataset = tf.data.Dataset.from_tensor_slices((inputs, targets, weights)).batch(50)
    history = model.fit(dataset, epochs=3, verbose=0)
    predictions = model.predict(dataset, verbose=0)
    return outcome(model, history, kind=predictions["kind"], size=predictions["size"])


class Rows(keras.utils.PyDataset):
    def __init__(self, x, y, batch, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.batch = x, y, batch

    def __len__(self):
        return -(-len(self.x) // self.batch)

    def __getitem__(self, index):
        rows = slice(index * self.batch, (index + 1) * self.batch)
        return self.x[rows], self.y[rows]


@scenario
def fit_pydataset():
    x, y = data(130)
    model = dense_model()
    history = model.fit(Rows(x, y, 32), epochs=3, verbose=0)
    predictions = model.predict(Rows(x, y, 32), verbose=0)
    return outcome(model, history, predictions=predictions)


@scenario
def fit_pydataset_threads():
    x, y = data(130)
    model = dense_model()
    return outcome(model, model.fit(Rows(x, y, 32, workers=2), epochs=2, verbose=0))


@scenario
def fit_generator():
    x, y = data(130)

    def batches():
        while True:
            for i in range(0, 130, 40):
                yield x[i : i + 40], y[i : i + 40]

    model = dense_model()
    return outcome(model, model.fit(batches(), steps_per_epoch=4, epochs=3, verbose=0))


@scenario
def fit_strings():
    words = np.array(["a", "b", "c", "d"])
    x = words[np.random.default_rng(1).integers(0, 4, 100)]
    y = (x == "b").astype("float32")
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c", "d"])
    with strategy.scope():
        model = keras.Sequential(
            [lookup, keras.layers.Embedding(5, 4), keras.layers.Dense(1, activation="sigmoid")]
        )
        model.compile(keras.optimizers.SGD(0.5), loss="binary_crossentropy")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(30)
    return outcome(model, model.fit(dataset, epochs=3, verbose=0))


@scenario
def pipelines_that_each_worker_writes_or_orders():
    x, y = data(130)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).cache(str(OUT / f"cache-{SIZE}"))
    # Order isn't promised: one worker may see another than several, which must agree.
    dataset = dataset.map(lambda x, y: (x, y), num_parallel_calls=4, deterministic=False)
    batches = strategy.experimental_distribute_dataset(dataset.batch(130))
    own = np.concatenate([x.numpy() for x, _ in batches])
    return {"rows": np.sort(strategy.gather(tf.constant(own), axis=0).numpy(), axis=0)}


@scenario
def sparse_rows_and_steps_beyond_the_end():
    x, y = data(50)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,), sparse=True), keras.layers.Dense(3)])
        model.compile("sgd", loss=_reduction("mean"), steps_per_execution=2)
    rows = tf.sparse.from_dense(np.maximum(x, 0))
    dataset = tf.data.Dataset.from_tensor_slices((rows, y)).filter(lambda x, y: True).batch(20)
    return outcome(model, model.fit(dataset, epochs=2, steps_per_epoch=5, verbose=0))


def errors_of_fit(dataset):
    try:
        dense_model().fit(dataset, epochs=2, verbose=0)
    except Exception as error:
        return np.array(type(error).__name__)
    return np.array("nothing")


def parse_row(record):
    row = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [8])
    return row[:6], tf.cast(row[6], tf.int64), row[7]


# Field report, row 64: every worker read and decoded all files, or batches depended on
# the number of workers.
@scenario
def files_and_records_in_one_order():
    x, y = data(103)
    # Each worker has files of its own, as machines without a shared disk do.
    folder = OUT / f"ordered-{SIZE}-{RANK}"
    folder.mkdir()
    rows = np.concatenate([x, y[:, None], np.arange(103)[:, None]], 1).astype("float32")
    encoded = [tf.io.serialize_tensor(row).numpy() for row in rows]
    for part in range(3):
        with tf.io.TFRecordWriter(str(folder / f"{part}.tfrecord")) as writer:
            for record in encoded[40 * part : 40 * part + 40]:
                writer.write(record)
    for number, record in enumerate(encoded):
        (folder / f"{number:03}.row").write_bytes(record)
    loaded = []

    def example(record, seed):
        features, label, number = parse_row(record)
        noted = tf.numpy_function(lambda n: loaded.append(int(n)) or n, [number], tf.float32)
        with tf.control_dependencies([noted]):
            return features + tf.random.stateless_normal([6], seed, 0, 0.01), label

    records = drumbeat.data.tfrecords(folder / "*.tfrecord", batch_size=32, map=example, shuffle=4)
    files = drumbeat.data.files(
        folder / "*.row", batch_size=32, map=lambda path: parse_row(tf.io.read_file(path))[:2]
    )
    model = dense_model()
    history = model.fit(records, epochs=2, verbose=0, validation_data=files)
    fitted = len(loaded)
    # As another process would go on after three epochs.
    # Validation on the same data makes a pass of its own.
    model.fit(records, epochs=5, initial_epoch=3, verbose=0, validation_data=records)
    numbered = drumbeat.data.files(
        folder / "*.row",
        batch_size=32,
        map=lambda path: parse_row(tf.io.read_file(path))[2],
        shuffle=9,
    ).repeat(2)
    own = [b.numpy().astype(int) for b in strategy.experimental_distribute_dataset(numbered)]
    gathered = [strategy.extended.communicator.all_gather_numpy(batch) for batch in own]
    return outcome(
        model,
        history,
        epoch=np.array(records.epoch),
        ids=np.concatenate(gathered),
        rows=np.array([len(batch) for batch in gathered]),
        predictions=model.predict(files, verbose=0),
        own_loaded=np.array(loaded[:fitted]),
    )


# Every worker ran the maps of a tf.data pipeline for all rows, so that more workers didn't
# make an expensive map any faster.
@scenario
def maps_run_for_own_rows():
    x, y = data(103)
    mapped = []

    def noted(number):
        seen = tf.numpy_function(
            lambda n: mapped.append(int(n)) or n, [number], tf.int64, stateful=False
        )
        seen.set_shape([])
        return x_of[seen] * 2, y_of[seen]

    x_of, y_of = tf.constant(x), tf.constant(y)
    told = len(strategy.extended.inputs.obstacles)  # of the scenarios before
    numbers = tf.data.Dataset.range(103).shuffle(103, seed=4)
    model = dense_model(steps_per_execution=3)
    history = model.fit(
        numbers.map(noted, num_parallel_calls=2).batch(32).prefetch(2),
        epochs=2,
        verbose=0,
        validation_data=tf.data.Dataset.range(41)
        .map(lambda i: (x_of[i] * 2, y_of[i]))
        .filter(lambda *_: True)
        .batch(8),
    )
    fitted = len(mapped)
    numbered = tf.data.Dataset.range(41).enumerate().map(noted_as_row).batch(8).repeat(2)
    return outcome(
        model,
        history,
        predictions=model.predict(numbered, verbose=0),
        own_mapped=np.array(mapped[:fitted]),
        own_obstacles=np.array(strategy.extended.inputs.obstacles[told:]),
    )


def noted_as_row(number, count):
    return tf.cast(tf.stack([number, count, 1, 2, 3, 4]), tf.float32)


@scenario
def data_that_cannot_be_fitted():
    x, y = data(50)
    return {
        "empty": errors_of_fit(pipeline(x, y).take(0)),
        "unbatched": errors_of_fit(tf.data.Dataset.from_tensor_slices((x, y))),
    }


@scenario
def fit_function_of_workers_own_rows():
    # Full-batch steps: whoever holds the rows, 103 of them make one step.
    x, y = data(103)

    def rows_of(context):
        own = slice(context.input_pipeline_id, None, context.num_input_pipelines)
        return tf.data.Dataset.from_tensor_slices((x[own], y[own])).batch(103)

    model = dense_model()
    dataset = strategy.distribute_datasets_from_function(rows_of)
    history = model.fit(dataset, epochs=5, verbose=0)
    return outcome(model, history, scores=np.array(model.evaluate(dataset, verbose=0)))


@scenario
def fit_function_uneven_batches():
    # Worker i has 20 * (i + 1) rows: some run out while others go on.
    x, y = data(20 * SIZE * (SIZE + 1) // 2)
    start = 10 * RANK * (RANK + 1)
    own = tf.data.Dataset.from_tensor_slices((x, y)).skip(start).take(20 * (RANK + 1)).batch(10)
    dataset = strategy.distribute_datasets_from_function(lambda context: own)
    model = dense_model()
    seen = sum(int(batch[0].shape[0]) for batch in dataset)
    history = model.fit(dataset, epochs=2, verbose=0)
    return {f"own_weight_{i}": w for i, w in enumerate(model.get_weights())} | {
        "own_rows": np.array([seen]),
        "own_batches": np.array([sum(1 for _ in dataset)]),
        "finite": np.isfinite(history.history["loss"]),
    }


# Sharding policies ---------------------------------------------------------------


def with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(
        tf.data.experimental.AutoShardPolicy, policy
    )
    return dataset.with_options(options)


def ids_of(dataset):
    """The ids that this worker sees in a distributed dataset, batch by batch."""
    batches = [b.numpy() for b in strategy.experimental_distribute_dataset(dataset)]
    return np.concatenate(batches) if batches else np.zeros(0, "int64")


def text_files(count, rows):
    folder = OUT / f"files-{count}-{rows}-{SIZE}-{RANK}"
    folder.mkdir(exist_ok=True)
    for i in range(count):
        lines = range(i * rows, (i + 1) * rows)
        (folder / f"{i}.txt").write_text("\n".join(map(str, lines)) + "\n")
    return sorted(str(p) for p in folder.iterdir())


def number_lines(files):
    dataset = tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TextLineDataset, cycle_length=1
    )
    return dataset.map(lambda line: tf.strings.to_number(line, tf.int64)).batch(10)


# D1: FILE sharding with fewer files than workers.
@scenario
def policies():
    results = {}
    numbers = tf.data.Dataset.range(25).batch(10)
    for policy in ("AUTO", "DATA"):
        results[f"own_ids_{policy}"] = ids_of(with_policy(numbers, policy))
    results["own_ids_OFF"] = ids_of(with_policy(numbers, "OFF"))
    hint = tf.data.experimental.SHARD_HINT
    hinted = tf.data.Dataset.range(25).shard(hint, hint).batch(10)
    if SIZE > 1:
        results["own_ids_HINT"] = ids_of(with_policy(hinted, "HINT"))
    files = number_lines(text_files(4, 7))
    results["own_ids_FILE"] = ids_of(with_policy(files, "FILE"))
    results["own_ids_FILE_AUTO"] = ids_of(files)
    one_file = number_lines(text_files(1, 23))
    results["own_ids_ONE_FILE"] = ids_of(with_policy(one_file, "FILE"))
    return results


# Few rows --------------------------------------------------------------------------


@scenario
def one_example():
    x, y = data(1)
    model = dense_model()
    history = model.fit(x, y, epochs=3, verbose=0, validation_data=(x, y))
    return outcome(model, history, predictions=model.predict(x, verbose=0))


@scenario
def last_batch_of_one():
    x, y = data(33)
    model = dense_model()
    history = model.fit(pipeline(x, y, 32), epochs=3, verbose=0)
    scores = model.evaluate(x, y, batch_size=32, verbose=0)
    predictions = model.predict(x, batch_size=16, verbose=0)
    return outcome(model, history, scores=np.array(scores), predictions=predictions)


@scenario
def convolution_with_empty_slices():
    x, y = data(5, features=64)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    images = x.reshape(5, 8, 8, 1)
    # No slice is empty here, and the steps are made for that; then for the ones that are.
    model.fit(images, y, batch_size=5, verbose=0)
    return outcome(model, model.fit(images, y, batch_size=4, epochs=3, verbose=0))


# Losses, weights, optimizers -------------------------------------------------------


@scenario
def sample_weights():
    x, y = data()
    model = dense_model()
    weights = np.random.default_rng(2).uniform(0, 2, len(x)).astype("float32")
    return outcome(
        model, model.fit(x, y, sample_weight=weights, batch_size=64, epochs=3, verbose=0)
    )


@scenario
def class_weights():
    x, y = data()
    model = dense_model()
    return outcome(
        model,
        model.fit(x, y, class_weight={0: 1.0, 1: 3.0, 2: 0.5}, batch_size=64, epochs=3, verbose=0),
    )


@scenario
def regularized():
    x, y = data()
    model = dense_model(regularizer=keras.regularizers.L2(0.1))
    return outcome(model, model.fit(x, y, batch_size=64, epochs=3, verbose=0))


def _with_optimizer(optimizer):
    x, y = data()
    model = dense_model(optimizer)
    return outcome(model, model.fit(x, y, batch_size=64, epochs=3, verbose=0))


OPTIMIZERS = {
    "adam_clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.05),
    "sgd_global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    "sgd_clipvalue": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipvalue=0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=4),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9)
    ),
    "accumulation_with_clipnorm": lambda: keras.optimizers.SGD(
        0.1, clipnorm=0.05, gradient_accumulation_steps=3, use_ema=True
    ),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    # Newer than the oldest Keras that we support.
    "several": lambda: (
        keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.01, clipnorm=0.1))
        )
        if hasattr(keras.optimizers, "MultiOptimizer")
        else keras.optimizers.Adam(0.01)
    ),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}
for _name, _make in OPTIMIZERS.items():
    SCENARIOS[f"optimizer_{_name}"] = lambda make=_make: _with_optimizer(make())


@scenario
def clip_after_the_sum():
    # Gradients +5 and -4.5 of two rows, clipped to 1 after the mean 0.25: the weight
    # moves by 0.25, not by the 0 of clipping each first.
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        model.compile(keras.optimizers.SGD(1.0, clipnorm=1.0), loss=lambda y, p: y * p)
    x, y = np.array([[1.0], [1.0]], "float32"), np.array([[5.0], [-4.5]], "float32")
    model.fit(x, y, batch_size=2, epochs=1, verbose=0, shuffle=False)
    return outcome(model)


@scenario
def overflow_skips_the_step_everywhere():
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, loss="mse")
    x = np.ones((6, 1), "float32")
    model.fit(x, x * 2, batch_size=6, epochs=1, verbose=0)
    before = model.get_weights()
    bad = x.copy()
    bad[-1] = np.inf  # only the last worker sees it
    model.fit(bad, x, batch_size=6, epochs=1, verbose=0, shuffle=False)
    after = model.get_weights()
    return {
        "unchanged": np.array([np.array_equal(a, b) for a, b in zip(before, after, strict=True)]),
        "scale": optimizer.dynamic_scale.numpy(),
    }


@scenario
def embedding_sparse_gradients():
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 20, (100, 5))
    y = (ids.sum(-1) % 2).astype("float32")
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                keras.layers.Embedding(20, 4),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.05), loss="binary_crossentropy")
    return outcome(model, model.fit(ids, y, batch_size=30, epochs=3, verbose=0))


# Means of the global batch that a worker alone can't take -----------------------------


@scenario
def masked_sequence_loss():
    # The mask passes more entries on one worker than on another.
    ids = np.random.default_rng(0).integers(0, 10, (70, 7))
    ids[:20, 2:] = 0
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(10, 4, mask_zero=True),
                keras.layers.GRU(5, return_sequences=True),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.5),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            weighted_metrics=["accuracy"],
        )
    return outcome(model, model.fit(ids, ids, epochs=3, batch_size=30, shuffle=False, verbose=0))


def _with_loss(loss):
    x, y = data(130)
    weights = np.random.default_rng(2).uniform(0, 2, len(x)).astype("float32")
    # Nothing counts of the last worker's rows of one batch, nor of another batch.
    weights[47:64] = weights[96:128] = 0
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.01), loss=loss, weighted_metrics=["accuracy"])
    given = {} if loss is one_number else {"sample_weight": weights}
    history = model.fit(x, y, batch_size=32, epochs=2, verbose=0, **given)
    scores = model.evaluate(x, y, batch_size=32, verbose=0, **given)
    return outcome(model, history, scores=np.array(scores))


def one_number(y, scores):
    return tf.reduce_mean(tf.square(tf.one_hot(tf.cast(y, tf.int32), 3) - scores))


@scenario
def loss_that_is_one_number():
    return _with_loss(one_number)


def _reduction(name):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=name)


@scenario
def loss_is_a_sum():
    return _with_loss(_reduction("sum"))


@scenario
def loss_is_a_mean_by_sample_weight():
    return _with_loss(_reduction("mean_with_sample_weight"))


@scenario
def loss_is_not_reduced():
    return _with_loss(_reduction("none"))


@scenario
def losses_within_others():
    """A loss object counts once, within a layer, within a loss and as a metric too."""
    x, y = data(130)
    targets = np.eye(3, dtype="float32")[y]
    huber = keras.losses.Huber()

    class Endpoint(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.losses.MeanSquaredError()(inputs**2, inputs))
            return inputs

    def loss(y_true, y_pred):
        return tf.reduce_mean(tf.square(y_true - y_pred), -1) + huber(y_true, y_pred)

    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3), Endpoint()])
        model.compile("sgd", loss, metrics=[keras.losses.MeanAbsoluteError()])
    history = model.fit(x, targets, batch_size=32, epochs=2, verbose=0)
    scores = model.evaluate(x, targets, batch_size=32, verbose=0)
    return outcome(model, history, scores=np.array(scores))


# Layers with state --------------------------------------------------------------


@scenario
def dropout_differs():
    with strategy.scope():
        layer = keras.layers.Dropout(0.5)
        generator = layer.seed_generator
    drop = tf.function(lambda x: layer(x, training=True))
    masks = strategy.run(drop, args=(tf.ones([64]),))
    without_batch = strategy.run(tf.function(lambda: drop(tf.ones([64]))))
    eager = strategy.run(lambda: layer(tf.ones([64]), training=True))
    raw = strategy.run(tf.function(lambda: tf.random.uniform([8])))
    return {
        "own_mask": masks.numpy(),
        "own_mask_without_batch": without_batch.numpy(),
        "own_mask_eager": eager.numpy(),
        "own_raw": raw.numpy(),
        "state": generator.state.numpy(),
    }


def draws(x, generator):
    """A draw of each kind for the rows of `x`, and some that aren't for rows."""
    rows, random = tf.shape(x)[0], keras.random
    p = tf.abs(x[:, :2]) + 0.5
    steps = random.dropout(tf.reshape(x, [-1, 2]), 0.4, seed=generator)
    of_rows = {
        "uniform": random.uniform((rows, 5), -1, 3, seed=generator),
        "half": random.uniform(tf.shape(x[:, :3]), dtype="float16", seed=generator),
        "normal": random.normal((rows, 2), p, p),
        "truncated": random.truncated_normal((rows, 2), stddev=2.0, seed=3),
        "integers": random.randint((rows, 3), -5, 1000, seed=generator),
        "classes": random.categorical(x, 3, seed=generator),
        "gamma": random.gamma((rows, 2), p, seed=generator),
        "beta": random.beta((rows, 2), p, 0.5, seed=generator),
        "binomial": random.binomial((rows, 2), 10.0, p / 9, seed=generator),
        "dropout": random.dropout(x, 0.4, seed=generator),
        "dropout_of_rows": random.dropout(x, 0.4, (None, 1), seed=generator),
        "dropout_of_columns": random.dropout(x, 0.4, (1, 6), seed=generator),
        "dropout_of_steps": tf.reshape(steps, tf.shape(x)),
    }
    alike = {
        "weights": random.normal((5, 3), seed=generator),
        "number": random.uniform((), seed=generator),
    }
    return of_rows, alike


@scenario
def draws_are_those_of_one_worker():
    x, _ = data(15)
    generator = keras.random.SeedGenerator(5)

    def replica(x):
        of_rows, alike = draws(x, generator)
        kinds = [tf.cast(value, tf.float32) for value in of_rows.values()]
        return tf.concat(kinds, axis=1), alike

    traced = tf.function(replica, input_signature=[tf.TensorSpec([None, 6])])
    found = {}
    for name, function in {"eager": replica, "traced": traced}.items():
        # With one row some workers have none.
        for rows in (8, 6, 1):
            batches = tf.data.Dataset.from_tensors(x[:rows])
            (batch,) = strategy.experimental_distribute_dataset(batches)
            of_rows, alike = strategy.run(function, args=(batch,))
            found[f"{name}_{rows}"] = strategy.gather(of_rows, axis=0).numpy().view(np.int32)
            found |= {f"{name}_{rows}_{kind}": value.numpy() for kind, value in alike.items()}
    return found | {"state": generator.state.numpy()}


@scenario
def random_layers_train_as_on_one_worker():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(33, 6, 6, 2)).astype("float32"), rng.normal(size=(33, 2))
    layers = keras.layers
    with strategy.scope():
        inputs = keras.Input((6, 6, 2))
        h = layers.RandomRotation(0.2)(layers.RandomFlip()(inputs))
        h = layers.SpatialDropout2D(0.3)(layers.Conv2D(4, 3)(h))
        h = layers.GaussianNoise(0.1)(layers.Reshape((16, 4))(h))
        h = layers.MultiHeadAttention(2, 3, dropout=0.3)(h, h)
        # A mask for all rows, and one of an odd number of elements for each.
        h = layers.Dropout(0.2, noise_shape=(1, 16, 4))(h)
        h = layers.Dropout(0.5)(layers.Dense(7, activation="relu")(layers.Flatten()(h)))
        model = keras.Model(inputs, layers.Dense(2)(h))
        model.compile(keras.optimizers.SGD(0.05), "mse")
    # 33 rows in batches of 16: the last step has one row, so some workers have none.
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0)
    return outcome(model, history)


@scenario
def dropout_in_mixed_precision():
    x, y = data(80)
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with strategy.scope():
            layers = [keras.layers.Dense(9), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((6,)), *layers])
            model.compile(
                keras.optimizers.SGD(0.1),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
        model.fit(x, y, batch_size=40, epochs=1, shuffle=False, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return outcome(model)


def _batch_norm(synchronized):
    x, y = data(65)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8),
                keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.5),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    # 65 rows in batches of 32: the last step has one row, so some workers have none.
    history = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0)
    return model, history


@scenario
def batch_norm_is_alike_on_all_workers():
    model, history = _batch_norm(synchronized=False)
    values = [*model.get_weights(), np.array(history.history["loss"])]
    return {f"per_size_{i}": w for i, w in enumerate(values)} | {
        "finite": np.array([np.isfinite(w).all() for w in values])
    }


@scenario
def layers_that_normalize():
    x, y = data(65)
    normalize = keras.layers.Normalization()
    normalize.adapt(tf.data.Dataset.from_tensor_slices(x * 3 + 2).batch(10))
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                normalize,
                keras.layers.SpectralNormalization(keras.layers.Dense(8)),
                keras.layers.UnitNormalization(),
                keras.layers.Reshape((1, 8)),
                keras.layers.GroupNormalization(4),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), loss=_reduction("mean"))
    return outcome(model, model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0))


@scenario
def layers_that_adapt():
    x, numbers = data(65)
    words = np.array(["a b c", "b c", "d a", "c c"])[numbers]

    def adapted(given):
        kinds = keras.layers
        layers = [kinds.Normalization(), kinds.Discretization(num_bins=4)]
        layers += [kinds.TextVectorization(output_mode="tf_idf"), kinds.IntegerLookup()]
        inputs = [x, x, words, numbers]
        for layer, values in zip(layers, inputs, strict=True):
            layer.adapt(given(values))
        return [np.array(f(v[:9])) for f, v in zip(layers, inputs, strict=True)]

    outside = [adapted(lambda x: x), adapted(lambda x: batches_of(x))]
    with strategy.scope():
        inside = [adapted(lambda x: x), adapted(lambda x: batches_of(x))]
    return {f"{i}_{j}": v for i, r in enumerate([*outside, *inside]) for j, v in enumerate(r)}


def batches_of(values):
    return tf.data.Dataset.from_tensor_slices(values).batch(10)


@scenario
def batch_norm_synchronized():
    return outcome(*_batch_norm(synchronized=True))


# Models ------------------------------------------------------------------------------


@scenario
def subclassed_and_built_by_fit():
    class Lazy(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(8, activation="tanh")
            self.scores = keras.layers.Dense(3)

        def call(self, x):
            hidden = self.hidden(x)
            self.add_loss(0.1 * tf.reduce_mean(tf.square(hidden)))
            return self.scores(hidden)

    x, y = data(130)
    with strategy.scope():
        model = Lazy()
    # Compiled outside of the scope, with an optimizer made there (tf.distribute refuses it).
    model.compile(
        keras.optimizers.Adam(0.01), _reduction("sum_over_batch_size"), metrics=["accuracy"]
    )
    # keras#20712: the backup refused a model that isn't built yet.
    backup = keras.callbacks.BackupAndRestore(str(OUT / f"lazy-{SIZE}"))
    history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0, callbacks=[backup])
    scores = model.evaluate(x, y, batch_size=32, verbose=0)
    return outcome(model, history, scores=np.array(scores))


@scenario
def frozen_recompiled_and_fitted_again():
    x, y = data(130)
    model = dense_model()
    model.fit(x, y, batch_size=32, epochs=2, verbose=0)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(0.01), _reduction("sum"), metrics=["accuracy"])
    history = model.fit(
        x,
        y,
        batch_size=32,
        initial_epoch=2,
        epochs=4,
        verbose=0,
        validation_data=pipeline(x, y, 20).repeat(),
        validation_steps=3,
        validation_freq=2,
    )
    predictions = model.predict(x, verbose=0)
    return outcome(model, history, predictions=predictions)


@scenario
def text_vectorization_in_the_model():
    sentences = np.array(["a b", "b c c", "c", "d a"])
    x = sentences[np.random.default_rng(1).integers(0, 4, 101)]
    y = (x == "c").astype("float32")
    with strategy.scope():
        vectorize = keras.layers.TextVectorization(output_sequence_length=3)
        vectorize.adapt(x)
        model = keras.Sequential(
            [
                keras.Input((), dtype="string"),
                vectorize,
                keras.layers.Embedding(10, 4, mask_zero=True),
                keras.layers.LSTM(4),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.5), loss="mse")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(30)
    return outcome(model, model.fit(dataset, epochs=2, verbose=0))


@scenario
def two_optimizers():
    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.maker, self.judge = keras.layers.Dense(6), keras.layers.Dense(1)
            self.optimizers = [keras.optimizers.Adam(0.01) for _ in range(2)]
            self.agreement = keras.losses.BinaryCrossentropy(from_logits=True)
            self.judged = keras.metrics.Mean(name="judged")

        def train_step(self, x):
            made = self.maker(x * 0.5)
            for layer, optimizer, like in zip(
                (self.judge, self.maker), self.optimizers, (0.0, 1.0), strict=True
            ):
                with tf.GradientTape() as tape:
                    score = self.judge(self.maker(x * 0.5))
                    loss = self.agreement(tf.fill(tf.shape(score), like), score)
                gradients = tape.gradient(loss, layer.trainable_weights)
                optimizer.apply_gradients(zip(gradients, layer.trainable_weights, strict=True))
            self.judged.update_state(self.judge(made))
            return {"judged": self.judged.result()}

        def test_step(self, x):
            self.judged.update_state(self.judge(x))
            return {"judged": self.judged.result()}

        def call(self, x):
            return self.judge(self.maker(x))

    x, _ = data(131)
    with strategy.scope():
        model = Pair()
        model.compile()
    history = model.fit(x, batch_size=32, epochs=2, verbose=0)
    return outcome(model, history, judged=np.array(model.evaluate(x, verbose=0)))


@scenario
def mixed_precision():
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = dense_model()
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    x, y = data(130)
    history = model.fit(x, y, batch_size=32, epochs=3, verbose=0)
    # float16 rounds each worker's part differently.
    return {
        "loss": np.round(history.history["loss"], 2),
        **{f"per_size_{i}": w for i, w in enumerate(model.get_weights())},
    }


class Total(keras.metrics.Metric):
    def __init__(self, name="total"):
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(y_pred))

    def result(self):
        return tf.identity(self.total)


class Smoothed(keras.metrics.Metric):
    """Starts from one head in two throws, also after a reset."""

    def __init__(self, name="smoothed"):
        super().__init__(name=name)
        self.heads = self.add_variable((1,), "ones", name="heads")
        self.throws = self.add_variable((1,), keras.initializers.Constant(2.0), name="throws")
        self.rows = Total("rows")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.heads.assign_add([tf.reduce_sum(tf.cast(y_pred > 0.5, tf.float32))])
        self.throws.assign_add([tf.cast(tf.size(y_pred), tf.float32)])
        self.rows.update_state(y_true, tf.ones_like(y_pred))

    def result(self):
        share = self.heads[0] / self.throws[0]
        return {f"{self.name}_share": share, f"{self.name}_rows": self.rows.result()}

    def reset_state(self):
        super().reset_state()
        self.heads.assign(tf.ones([1]))
        self.throws.assign(2 * tf.ones([1]))


class Highest(keras.metrics.Metric):
    """Its state doesn't add up: it says how to merge two."""

    def __init__(self):
        super().__init__(name="highest")
        self.highest = self.add_variable((), keras.initializers.Constant(-9.0), name="highest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.highest.assign(tf.maximum(self.highest, tf.reduce_max(y_pred)))

    def result(self):
        return tf.identity(self.highest)

    def reset_state(self):
        self.highest.assign(-9.0)

    def merge_state(self, metrics):
        for metric in metrics:
            self.highest.assign(tf.maximum(self.highest, metric.highest))


class Rate(keras.metrics.Metric):
    """States that are not summed."""

    def __init__(self):
        super().__init__(name="rate")
        self.batches = self.add_variable((), "zeros", aggregation="mean", name="batches")
        self.scale = self.add_variable((), "ones", aggregation="only_first_replica", name="scale")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.batches.assign(3.0)
        self.scale.assign(0.5)

    def result(self):
        return self.batches * self.scale


def binary_metrics():
    kinds = keras.metrics
    return [
        kinds.AUC(num_thresholds=20),
        kinds.Precision([0.3, 0.6]),
        kinds.SensitivityAtSpecificity(0.5, num_thresholds=20),
        kinds.F1Score(threshold=0.5),
        kinds.BinaryIoU(threshold=0.4),
        kinds.R2Score(),
        kinds.RootMeanSquaredError(),
    ]


def one_hot_metrics():
    kinds = keras.metrics
    many = kinds.AUC(num_thresholds=20, multi_label=True, from_logits=True, num_labels=3)
    return [
        kinds.CategoricalAccuracy(),
        many,
        kinds.Recall(top_k=2),
        kinds.FBetaScore("weighted", beta=0.5),
        kinds.OneHotMeanIoU(3),
        kinds.CosineSimilarity(),
        kinds.MeanMetricWrapper(lambda y, p: tf.reduce_max(p, -1), name="wrapped"),
    ]


def numbers_of(results):
    flat = [(k, v if isinstance(v, dict) else {"": v}) for k, v in sorted(results.items())]
    return np.concatenate([np.reshape(v, [-1]) for _, inner in flat for v in inner.values()])


def _ways_to_ask(metrics, classes, of_batches=False):
    """What fit, evaluate and the batch-wise calls say of `metrics`, and callbacks see."""
    x, y = data(75)
    y = np.eye(3, dtype="float32")[y][:, :classes]
    weights = np.random.default_rng(2).uniform(0, 2, 75).astype("float32")
    weights[-9:] = 0  # Those of the last worker's last batch.
    activation = "sigmoid" if classes == 1 else None
    loss = keras.losses.BinaryCrossentropy(from_logits=classes > 1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(classes, activation=activation)]
        )
        model.compile("sgd", loss, metrics=metrics()[::2], weighted_metrics=metrics()[1::2])
    asked = []

    class Ask(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            asked.append([numbers_of(logs), numbers_of(self.model.get_metrics_result())])

    history = model.fit(
        x,
        y,
        batch_size=20,
        epochs=2,
        verbose=0,
        sample_weight=weights,
        validation_split=0.3,
        callbacks=[Ask()],
    )
    given = {"sample_weight": weights[:33]}
    shown = {"numbers": [p[0] for p in asked], "results": [p[1] for p in asked]}
    shown["named"] = numbers_of(model.evaluate(x[:33], y[:33], 8, 0, return_dict=True, **given))
    if of_batches:
        trained = model.train_on_batch(x[:22], y[:22], weights[-22:], return_dict=True)
        shown["trained"] = numbers_of(trained)
        shown["tested"] = numbers_of(model.test_on_batch(x[:5], y[:5], return_dict=True))
    listed = model.evaluate(x[:33], y[:33], batch_size=8, verbose=0, **given)
    shown["listed"] = np.concatenate([np.reshape(v, [-1]) for v in listed])
    return outcome(model, history) | {k: np.array(v) for k, v in shown.items()}


@scenario
def kinds_of_metrics():
    return _ways_to_ask(binary_metrics, classes=1)


@scenario
def kinds_of_metrics_of_several_classes():
    return _ways_to_ask(one_hot_metrics, classes=3)


@scenario
def metrics_of_ones_own():
    return _ways_to_ask(lambda: [Total(), Highest(), Rate(), Smoothed()], 1, of_batches=True)


# Loops, steps and callbacks ------------------------------------------------------


# F6b: variables first made inside a function that runs several steps.
@scenario
def steps_per_execution():
    x, y = data()
    model = dense_model(steps_per_execution=4)
    history = model.fit(pipeline(x, y), epochs=4, verbose=0, validation_data=pipeline(x, y))
    predictions = model.predict(x, batch_size=50, verbose=0)
    return outcome(model, history, predictions=predictions)


@scenario
def run_eagerly():
    x, y = data(70)
    model = dense_model(run_eagerly=True)
    return outcome(model, model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0))


@scenario
def jit_compile():
    x, y = data(64)
    model = dense_model(jit_compile=True)
    return outcome(model, model.fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0))


@scenario
def on_batch():
    x, y = data(50)
    model = dense_model()
    logs = [model.train_on_batch(x[i : i + 25], y[i : i + 25]) for i in (0, 25)]
    logs.append(model.train_on_batch(x[:1], y[:1]))
    tested = model.test_on_batch(x[:11], y[:11], return_dict=True)
    return outcome(model, logs=np.array(logs), tested=np.array(list(tested.values())))


@scenario
def predict_order():
    x, _ = data(47)
    model = dense_model()
    batched = tf.data.Dataset.from_tensor_slices(x).batch(10)
    return {
        "numpy": model.predict(x, batch_size=10, verbose=0),
        "dataset": model.predict(batched, verbose=0),
        "steps": model.predict(batched, steps=2, verbose=0),
        "small": model.predict(x[:1], verbose=0),
        "direct": np.array(model(x)),
    }


@scenario
def custom_train_step():
    class Squared(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {
                "mine": tf.constant(float(RANK)),
                "rows": tf.shape(x)[0],
                "norm": tf.linalg.global_norm(gradients),
            }

    x, _ = data(63)
    with strategy.scope():
        model = Squared()
        model.compile(keras.optimizers.SGD(0.05), loss="mse")
    history = model.fit(x, x.sum(-1, keepdims=True), batch_size=16, epochs=3, verbose=0)
    logged = {name: np.array(values) for name, values in history.history.items()}
    logged["exact_logs"] = np.stack([logged.pop("rows"), logged.pop("norm")])
    return outcome(model) | {f"per_size_{name}": values for name, values in logged.items()}


@scenario
def early_stopping():
    x, y = data(90)
    model = dense_model()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=0)
    decay = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
    noise = np.random.default_rng(5).integers(0, 3, 41)
    history = model.fit(
        x,
        y,
        epochs=30,
        verbose=0,
        validation_data=(x[:41], noise),
        validation_batch_size=20,
        callbacks=[stop, plateau, decay],
    )
    return outcome(model, history, epochs=np.array(len(history.history["loss"])))


@scenario
def one_worker_stops():
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if RANK == SIZE - 1 and epoch == 1:
                self.model.stop_training = True

    x, y = data(90)
    model = dense_model()
    history = model.fit(x, y, epochs=5, verbose=0, callbacks=[Stop()])
    return {"epochs": np.array(len(history.history["loss"]))}


def stop(attribute, at=None):
    """A hook by which the last worker alone stops, in its call `at`."""
    calls = []

    def hook(callback, *_, **__):
        calls.append(None)
        if RANK == SIZE - 1 and at in (None, len(calls)):
            setattr(callback.model, attribute, True)

    return hook


def with_hook(name, hook):
    return type("Stop", (keras.callbacks.Callback,), {name: hook})()


@scenario
def one_worker_stops_within_an_epoch():
    x, y = data(90)
    model = dense_model(keras.optimizers.SGD(0.1))

    def steps_of_fit(callbacks, **arguments):
        before = int(model.optimizer.iterations)
        model.fit(x, y, batch_size=10, epochs=2, verbose=0, callbacks=callbacks, **arguments)
        return int(model.optimizer.iterations) - before

    training = functools.partial(stop, "stop_training")
    of_the_model = with_hook("set_model", lambda self, model: setattr(self, "_model", model))
    inside = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: training_at_4(of_the_model)
    )
    training_at_4 = training(at=4)
    mine = [with_hook("on_train_batch_end", training(at=5))] if RANK == SIZE - 1 else None
    nested = keras.callbacks.CallbackList([with_hook("on_batch_end", training(at=3))], model=model)
    alone = keras.callbacks.CallbackList(
        with_hook("on_batch_end", training(at=2)), add_history=True, model=model
    )
    steps = [
        steps_of_fit(with_hook("on_train_batch_end", training(at=3))),
        steps_of_fit([[with_hook("on_train_batch_begin", training(at=3))]]),
        steps_of_fit([with_hook("on_train_begin", training())]),
        steps_of_fit([with_hook("on_epoch_begin", training(at=2))]),
        steps_of_fit([of_the_model, inside]),
        steps_of_fit(mine),
        steps_of_fit([nested]),
        steps_of_fit(alone),
        steps_of_fit(alone) + len(alone.callbacks),
    ]
    # In the validation of each epoch, the second batch is its last.
    batches = [0]
    count = keras.callbacks.LambdaCallback(
        on_test_batch_end=lambda batch, logs: batches.append(batch)
    )
    stops = with_hook("on_test_batch_begin", stop("stop_evaluating", at=2))
    steps_of_fit([stops, count], validation_data=pipeline(x, y, 20))
    scores = model.evaluate(
        x, y, 20, verbose=0, callbacks=with_hook("on_test_begin", stop("stop_evaluating"))
    )
    ends = with_hook("on_predict_batch_end", stop("stop_predicting", at=2))
    predictions = model.predict(x, 20, verbose=0, callbacks=[ends])
    return outcome(
        model,
        steps=np.array(steps),
        batches=np.array(batches),
        scores=np.array(scores),
        predictions=predictions,
    )


# keras.callbacks.TerminateOnNaN sees a NaN a step before the workers whose rows are well.
@scenario
def not_a_number_on_one_worker():
    x, y = data(90)
    x[29] = np.nan
    model = dense_model(keras.optimizers.SGD(0.1), steps_per_execution=2)
    history = model.fit(
        pipeline(x, y, 10),
        epochs=2,
        verbose=0,
        validation_data=(x[:20], y[:20]),
        callbacks=[keras.callbacks.TerminateOnNaN()],
    )
    return {
        "steps": model.optimizer.iterations.numpy(),
        "finite": np.isfinite(history.history["loss"]),
    }


def messages(train):
    """What drumbeat logs while `train` runs."""
    records = logging.handlers.BufferingHandler(1000)
    logging.getLogger("drumbeat").addHandler(records)
    try:
        train()
    finally:
        logging.getLogger("drumbeat").removeHandler(records)
    return np.array([record.getMessage() for record in records.buffer])


@scenario
def one_worker_changes_its_state():
    x, y = data(90)
    model = dense_model(keras.optimizers.Adam(0.01))

    class Alone(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if RANK == 1 and batch == 2:
                self.model.optimizer.learning_rate = 0.5

        def on_train_end(self, logs=None):
            if RANK == SIZE - 1:
                self.model.set_weights([w * 2 for w in self.model.get_weights()])

    logged = messages(lambda: model.fit(x, y, epochs=2, verbose=0, callbacks=[Alone()]))
    return {
        "own_logged": logged,
        "learning_rate": model.optimizer.learning_rate.numpy(),
        **{f"per_size_{i}": v.numpy() for i, v in enumerate(model.optimizer.variables)},
        **{f"per_size_weight_{i}": w for i, w in enumerate(model.get_weights())},
    }


@scenario
def collectives_of_a_fit():
    x, y = data(100)
    model = dense_model()
    communicator = strategy.extended.communicator
    quiet = [keras.callbacks.EarlyStopping("loss"), keras.callbacks.LearningRateScheduler(float)]
    looks = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    loud = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: "stop_training")

    # Beats, and snapshots at them, come by the clock.
    own = journal.own()
    identity, observer = own.identity, communicator.observer
    own.identity = dataclasses.replace(identity, snapshot_every=0)
    names = []
    communicator.observer = SimpleNamespace(
        enter=lambda number, kind, name: names.append(name), leave=lambda: None
    )

    def collectives(rows, *callbacks):
        names.clear()
        model.fit(x[:rows], y[:rows], batch_size=10, verbose=0, callbacks=[*quiet, *callbacks])
        return sum(name != "beat" for name in names)

    collectives(20)
    counts = {
        "per_size_nine_steps": np.array(collectives(90)),
        "per_size_ten_steps": np.array(collectives(100)),
        "per_size_ten_looked_at": np.array(collectives(100, looks)),
        "per_size_ten_watched": np.array(collectives(100, loud)),
    }
    own.identity, communicator.observer = identity, observer
    return counts


@scenario
def callbacks_see_the_same_numbers():
    seen = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append([logs["loss"], logs["val_loss"]])
    )
    x, y = data(101)
    model = dense_model()
    model.fit(x, y, epochs=3, verbose=0, validation_data=(x[:7], y[:7]), callbacks=[record])
    return {"seen": np.array(seen)}


@scenario
def chief_alone_restores():
    x, y = data(64)
    model = dense_model(keras.optimizers.Adam(0.01))
    if RANK == 0:
        model.set_weights([w + 1 for w in model.get_weights()])
    return outcome(model, model.fit(x, y, epochs=1, verbose=0, shuffle=False))


# Custom loops --------------------------------------------------------------------


# F6: model and optimizer first built inside a tf.function.
@scenario
def custom_loop():
    x, y = data()
    batch = 64
    dataset = strategy.experimental_distribute_dataset(pipeline(x, y, batch))
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)])
        optimizer = keras.optimizers.Adam(0.01)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = loss_of(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(x, y):
        # The model and the optimizer make their variables in here.
        losses = strategy.run(step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    losses = [float(train_step(x, y)) for _ in range(3) for x, y in dataset]
    return outcome(model, losses=np.array(losses))


@scenario
def metric_results_in_a_custom_loop():
    x, y = data(131)
    dataset = strategy.experimental_distribute_dataset(pipeline(x, y, 32))
    with strategy.scope():
        accuracy, total = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Sum()
        smoothed, averaged = Smoothed(), keras.metrics.Mean()

    @tf.function
    def step(x, y):
        strategy.run(accuracy.update_state, args=(y, x[:, :3]))
        strategy.run(total.update_state, args=(x,))
        strategy.run(smoothed.update_state, args=(y, x))
        return total.result()

    @tf.function
    def reset():
        smoothed.reset_state()

    seen = []
    for _ in range(2):
        within = [float(step(x, y)) for x, y in dataset]
        # Outside of run each worker counts the same.
        averaged.update_state(within)
        # Asking doesn't change what has been counted.
        seen.append([within[-1], *(float(m.result()) for m in (accuracy, total, accuracy, total))])
        seen[-1] += [float(averaged.result())]
        seen[-1] += [float(smoothed.result()[f"smoothed_{name}"]) for name in ("share", "rows")]
        accuracy.reset_state()
        total.reset_state()
        reset()
    return {"seen": np.array(seen)}


@scenario
def loop_inside_a_function():
    with strategy.scope():
        # All replicas, which may be several in a process, have the same values for them.
        same = tf.VariableAggregation.ONLY_FIRST_REPLICA
        total = tf.Variable(0, dtype=tf.int64, aggregation=same)
        batches = tf.Variable(0, dtype=tf.int64, aggregation=same)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(25).batch(10))

    def add(ids):
        context = tf.distribute.get_replica_context()
        total.assign_add(context.all_reduce("SUM", tf.reduce_sum(ids)))
        batches.assign_add(1)

    @tf.function
    def whole_epoch(dataset):
        for ids in dataset:
            strategy.run(add, args=(ids,))

    @tf.function
    def two_steps(iterator):
        for _ in tf.range(2):
            strategy.run(add, args=(next(iterator),))

    whole_epoch(dataset)
    two_steps(iter(dataset))
    return {"total": total.numpy(), "batches": batches.numpy()}


@scenario
def strategy_interface():
    ones = tf.ones([RANK + 1, 2]) * (RANK + 1)
    wide = tf.ones([2, RANK + 1]) * (RANK + 1)

    def gradients():
        replica = tf.distribute.get_replica_context()
        v = tf.constant([1.0, 2.0])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(v)
            reduced = replica.all_reduce("SUM", v * (RANK + 1.0))
            gathered = replica.all_gather(v[None] * (RANK + 1.0), axis=0)
            a, b = tf.reduce_sum(reduced**2), tf.reduce_sum(gathered**2)
        return reduced, tape.gradient(a, v), gathered, tape.gradient(b, v)

    reduced, d_reduced, gathered, d_gathered = strategy.run(tf.function(gradients))
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    return {
        "per_size_sum": strategy.reduce("SUM", tf.constant(RANK + 1.0), axis=None).numpy(),
        "per_size_mean": strategy.reduce("MEAN", tf.constant(RANK + 1.0), axis=None).numpy(),
        "per_size_mean_of_rows": strategy.reduce("MEAN", ones[:, 0], axis=0).numpy(),
        "per_size_gather0": strategy.gather(ones, axis=0).numpy(),
        "per_size_gather1": strategy.gather(wide, axis=1).numpy(),
        "per_size_reduced": reduced.numpy(),
        "own_d_reduced": d_reduced.numpy(),
        "per_size_gathered": gathered.numpy(),
        "own_d_gathered": d_gathered.numpy(),
        "own_values": np.array(strategy.experimental_local_results(values)),
        "own_task": np.array([strategy.cluster_resolver.task_id or 0]),
    }


@scenario
def initial_weights_are_the_chiefs():
    keras.utils.set_random_seed(100 + RANK)
    model = dense_model()
    with strategy.scope():
        variable = tf.Variable(float(RANK) + 7)
    return outcome(model, variable=variable.numpy())


@scenario
def explicit_spelling_is_the_same_strategy():
    known = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    again = tf.distribute.experimental.MultiWorkerMirroredStrategy(communication=None)
    return {"same": np.array(drumbeat.strategy() is strategy is again and known)}


# Files --------------------------------------------------------------------------


# F13: workers that share files clash; also tf#38635.
@scenario
def everyone_saves_to_one_path():
    x, y = data(64)
    model = dense_model()
    model.fit(x, y, epochs=1, verbose=0)
    folder = OUT / f"saved-{SIZE}"
    folder.mkdir(exist_ok=True)
    loaded = []
    for _ in range(5):
        model.save(folder / "model.keras")
        model.save_weights(folder / "model.weights.h5")
        model.export(str(folder / "exported"), verbose=False)
        loaded.append(keras.models.load_model(folder / "model.keras").predict(x[:3], verbose=0))
        model.load_weights(folder / "model.weights.h5")
    # A folder can't be replaced in one go: read it when nobody writes it any more.
    strategy.extended.communicator.barrier()
    exported = tf.saved_model.load(str(folder / "exported"))
    served = exported.serve(x[:3])
    strategy.extended.communicator.barrier()
    return {
        "loaded": np.array(loaded),
        "served": served.numpy(),
        "files": np.array(sorted(p.name for p in folder.iterdir())),
    }


@scenario
def chief_alone_saves_and_all_load():
    x, y = data(64)
    model = dense_model(keras.optimizers.Adam(0.01))
    model.fit(x, y, epochs=1, verbose=0)
    folder = OUT / f"chief-{SIZE}"
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    if RANK == 0:
        folder.mkdir()
        model.save(folder / "model.keras")
        tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1).save()
    strategy.extended.communicator.barrier()
    with strategy.scope():
        loaded = keras.models.load_model(folder / "model.keras")
    history = loaded.fit(x, y, epochs=1, verbose=0)
    model.fit(x, y, epochs=1, verbose=0)
    checkpoint.restore(tf.train.latest_checkpoint(folder))
    again = {f"again_{i}": w for i, w in enumerate(model.get_weights())}
    return outcome(loaded, history) | again


# F13: parts of a checkpoint have the same names in all workers.
@scenario
def everyone_saves_one_checkpoint():
    folder, barrier = OUT / f"everyones-{SIZE}", strategy.extended.communicator.barrier
    with strategy.scope():
        values = tf.Variable(np.zeros(200_000, "float32"))
    checkpoint = tf.train.Checkpoint(values=values)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    alone = OUT / f"alone-{SIZE}-{RANK}" / "mine"
    seen = []
    for _ in range(8):
        values.assign_add(tf.ones_like(values))
        barrier("step")
        saved = manager.save()
        written = checkpoint.write(alone)
        barrier("saved")
        assert saved == tf.train.latest_checkpoint(folder)
        for path in (saved, written):
            there = tf.train.load_checkpoint(path).get_tensor("values/.ATTRIBUTES/VARIABLE_VALUE")
            seen.append([there.min(), there.max()])
        barrier("read")
    return {"seen": np.array(seen), "files": np.array(sorted(p.name for p in folder.iterdir()))}


@scenario
def others_save_to_a_temporary_folder():
    x, y = data(64)
    model = dense_model()
    model.fit(x, y, epochs=1, verbose=0)
    path = OUT / f"final-{SIZE}" / "model.keras"
    if RANK:
        path = path.parent / f"workertemp_{RANK}" / path.name
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)
    if RANK:
        tf.io.gfile.rmtree(str(path.parent))
    strategy.extended.communicator.barrier()
    return {"files": np.array([p.name for p in (OUT / f"final-{SIZE}").iterdir()])}


# F13, for callbacks.
@scenario
def callbacks_share_their_paths():
    x, y = data(64)
    folder = OUT / f"callbacks-{SIZE}"
    model = dense_model()
    history = model.fit(
        x,
        y,
        epochs=2,
        verbose=0,
        validation_data=(x, y),
        callbacks=[
            keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.keras")),
            keras.callbacks.BackupAndRestore(str(folder / "backup")),
            keras.callbacks.CSVLogger(str(OUT / f"log-{SIZE}.csv")),
            keras.callbacks.TensorBoard(str(folder / "board")),
        ],
    )
    strategy.extended.communicator.barrier()
    boards = list((folder / "board").rglob("events*"))
    lines = (OUT / f"log-{SIZE}.csv").read_text().splitlines()
    return outcome(
        model,
        history,
        files=np.array(sorted(p.name for p in folder.iterdir())),
        boards=np.array(len(boards)),
        lines=np.array(len(lines)),
    )


@scenario
def backup_restores_every_worker():
    x, y = data(64)
    folder = str(OUT / f"restart-{SIZE}")

    def train(epochs, stop_after):
        class Break(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == stop_after:
                    raise KeyError("stopped on purpose")

        keras.utils.set_random_seed(1)
        model = dense_model(keras.optimizers.Adam(0.01))
        callbacks = [keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False), Break()]
        try:
            history = model.fit(x, y, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        except KeyError:
            return None
        return outcome(model, epochs=np.array(history.epoch))

    train(4, stop_after=2)
    return train(4, stop_after=None)


def main():
    names = sys.argv[2:] or list(SCENARIOS)
    for name in names:
        keras.backend.clear_session()
        keras.utils.set_random_seed(42)
        start = time.monotonic()
        base = OUT / f"{name}.{SIZE}.{RANK}"
        try:
            result = SCENARIOS[name]()
            np.savez(base.with_suffix(f"{base.suffix}.npz"), **result)
        except Exception:
            base.with_suffix(f"{base.suffix}.txt").write_text(traceback.format_exc())
            print(f"{name}: {traceback.format_exc()}", flush=True)
            if strategy.extended.communicator.last_error is not None:
                break
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    (OUT / f"done.{SIZE}.{RANK}.{len(names)}.json").write_text(json.dumps(names))
    os.sync()


main()
