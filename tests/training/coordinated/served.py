"""What test_coordinated.py has trained: `served.py FOLDER NAME...`, in the chief of a job.

Each function returns facts, as JSON has them; they are written to FOLDER/NAME.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import drumbeat.metrics

IDS, ROWS, BATCH = 501, 310, 50

strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.TFConfigClusterResolver(),
    variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(1000, 2),
)
random = np.random.default_rng(1)
ids = random.integers(0, IDS, size=(ROWS, 3))
wanted = random.normal(size=(ROWS, 1)).astype("float32")
numbers = random.normal(size=(ROWS, 8)).astype("float32")
classes = (numbers @ random.normal(size=(8, 3))).argmax(1)


def with_table(optimizer: Any, **layer: Any) -> keras.Model:
    """A table and a kernel that are cut into parts, and moving statistics."""
    given = keras.Input((3,), dtype="int32")
    rows = keras.layers.Embedding(IDS, 8, name="table", **layer)(given)
    hidden = keras.layers.Dense(64, activation="relu")(keras.layers.Flatten()(rows))
    hidden = keras.layers.BatchNormalization()(hidden)
    model = keras.Model(given, keras.layers.Dense(1)(hidden))
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def classifier(**arguments: Any) -> keras.Model:
    """Of `numbers` into `classes`."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(3, dtype="float32"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        **{"optimizer": keras.optimizers.Adam(0.01), "loss": loss, "metrics": ["accuracy"]}
        | arguments
    )
    return model


def served_classifier(**arguments: Any) -> keras.Model:
    """With its variables on the ps tasks."""
    with strategy.scope():
        return classifier(**arguments)


def gaps(optimizer: Any, **layer: Any) -> dict[str, Any]:
    """How far a model on the ps tasks comes from one of Keras alone, with one worker."""
    keras.utils.set_random_seed(1)
    alone = with_table(optimizer(), **layer)
    with strategy.scope():
        served = with_table(optimizer(), **layer)
    served.set_weights(alone.get_weights())
    arguments = {"epochs": 2, "batch_size": BATCH, "verbose": 0, "shuffle": False}
    histories = [model.fit(ids, wanted, **arguments).history for model in (alone, served)]
    tested = [model.evaluate(ids, wanted, batch_size=90, verbose=0) for model in (alone, served)]
    predicted = [model.predict(ids, batch_size=90, verbose=0) for model in (alone, served)]
    table: Any = served.get_layer("table").embeddings
    slots = [v for v in served.optimizer.variables if tuple(v.shape) == tuple(table.shape)]
    return {
        "weights": largest(alone.get_weights(), served.get_weights()),
        "history": largest(*[[np.array(v) for v in each.values()] for each in histories]),
        "keys": list(histories[0]) == list(histories[1]),
        "evaluated": largest([np.array(tested[0])], [np.array(tested[1])]),
        "predicted": largest(*[[each] for each in predicted]),
        "optimizer": largest(
            [v.numpy() for v in alone.optimizer.variables],
            [v.numpy() for v in served.optimizer.variables],
        ),
        "devices": [[part.device for part in each.value] for each in (table, *slots)],
    }


def largest(some: Any, others: Any) -> float:
    """The largest difference of an entry, relative to the largest entry of its array."""
    pairs = list(zip(some, others, strict=True))
    return max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-9)) for a, b in pairs)


def sparse() -> dict[str, Any]:
    """Gradients of rows of the table only."""
    return gaps(lambda: keras.optimizers.Adagrad(0.3))


def clipped() -> dict[str, Any]:
    """Dense slots; a norm over all gradients."""
    return gaps(lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1))


def scaled() -> dict[str, Any]:
    """An update within a condition."""
    return gaps(lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)))


def accumulated() -> dict[str, Any]:
    """Of a regularized and constrained table."""
    return gaps(
        lambda: keras.optimizers.SGD(
            0.1, momentum=0.9, weight_decay=1e-3, use_ema=True, gradient_accumulation_steps=2
        ),
        embeddings_regularizer=keras.regularizers.L2(1e-3),
        embeddings_constraint=keras.constraints.MaxNorm(0.05, axis=1),
    )


def saved() -> dict[str, Any]:
    """Files of a table in parts, read by models whose table is in one."""
    with strategy.scope():
        served = with_table(keras.optimizers.Adam(0.01))
    served.fit(ids, wanted, batch_size=BATCH, verbose=0)
    served.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    checkpoint = tf.train.Checkpoint(model=served, optimizer=served.optimizer)
    path = checkpoint.save(str(folder / "checkpoint"))
    with strategy.scope():
        other = with_table(keras.optimizers.Adam(0.01))
        other.optimizer.build(other.trainable_variables)
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    same = [v.numpy() for v in (*served.variables, *served.optimizer.variables)]
    return {
        "loaded": largest(
            same, [v.numpy() for v in (*loaded.variables, *loaded.optimizer.variables)]
        ),
        "restored": largest(
            same, [v.numpy() for v in (*other.variables, *other.optimizer.variables)]
        ),
        "whole": list(served.get_weights()[0].shape),
    }


# With two workers -----------------------------------------------------------------


def counted() -> dict[str, Any]:
    """No update is lost, and no row is counted twice, however many workers there are."""
    model = served_classifier(metrics=["accuracy", keras.metrics.Sum(name="rows")])
    model = served_classifier()
    history = model.fit(numbers, classes, epochs=4, batch_size=10, verbose=0).history
    metric = model.metrics[1].metrics[0]
    return {
        "updates": int(model.optimizer.iterations),
        "rows": float(metric.variables[1].numpy()),
        "losses": history["loss"],
        "staleness": list(drumbeat.metrics.staleness()),
        "device": model.optimizer.iterations.value.device,
    }


def functions() -> dict[str, Any]:
    """Datasets of the workers' own: finite ones, of unknown length, endless ones."""
    seen = []

    def pipeline(context: Any) -> tf.data.Dataset:
        seen.append([context.num_input_pipelines, context.input_pipeline_id])
        data = tf.data.Dataset.from_tensor_slices((numbers, classes))
        return data.shard(context.num_input_pipelines, context.input_pipeline_id).batch(10)

    model = served_classifier(steps_per_execution=3)
    model.fit(pipeline, epochs=2, verbose=0)
    updates = [int(model.optimizer.iterations)]
    model.fit(lambda context: pipeline(context).filter(lambda x, y: True), verbose=0)
    updates.append(int(model.optimizer.iterations))
    endless = strategy.distribute_datasets_from_function(lambda c: pipeline(c).repeat())
    model.fit(endless, steps_per_epoch=6, verbose=0, validation_data=pipeline)
    updates.append(int(model.optimizer.iterations))
    tested = model.evaluate(pipeline, verbose=0), model.evaluate(numbers, classes, verbose=0)
    refused = []
    for data in (lambda: pipeline(seen_context).repeat(), lambda: 3):
        try:
            model.fit(data, verbose=0)
        except drumbeat.errors.DataError as error:
            refused.append(str(error))
    return {"seen": seen[:2], "updates": updates, "tested": tested, "refused": refused}


seen_context = tf.distribute.InputContext(1, 0, 1)


def told() -> dict[str, Any]:
    """Callbacks, which see each batch once, and stop a fit."""
    seen: list[list[Any]] = []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(["begin", batch])

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(["end", batch, sorted(logs)])
            self.model.stop_training = batch == 9

    model = served_classifier()
    checkpoint = keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True)
    history = model.fit(
        numbers,
        classes,
        batch_size=20,
        epochs=3,
        verbose=0,
        validation_split=0.2,
        callbacks=[Looks(), checkpoint, keras.callbacks.LearningRateScheduler(lambda e, r: r / 2)],
    )
    return {
        "seen": seen,
        "keys": sorted(history.history),
        "saved": (folder / "best.keras").exists(),
        "rate": float(model.optimizer.learning_rate),
        "updates": int(model.optimizer.iterations),
    }


def mixed() -> dict[str, Any]:
    """Half precision, and a `compile` outside of the strategy's scope."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with strategy.scope():
            model = classifier()
        model.compile("adam", model.loss, metrics=["accuracy"])
        losses = model.fit(numbers, classes, epochs=6, batch_size=20, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    scale: Any = model.optimizer.dynamic_scale
    return {"losses": losses, "scale": scale.value.device}


def wrong() -> dict[str, Any]:
    """What fails on a worker, and what is trained after it."""
    with strategy.scope():
        model = with_table(keras.optimizers.SGD(0.1))
    message = ""
    try:
        model.fit(ids + IDS, wanted, verbose=0)
    except tf.errors.InvalidArgumentError as error:
        message = str(error)
    return {"message": message, "losses": model.fit(ids, wanted, verbose=0).history["loss"]}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        (folder / f"{name}.json").write_text(json.dumps(globals()[name]()))
