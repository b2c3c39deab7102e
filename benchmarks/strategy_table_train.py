"""The cells of `strategy_table.py`, in one process of a job: each a small training of its own.

    strategy_table_train.py --out FOLDER --cells fit,predict          # under drumbeat run
    strategy_table_train.py --out FOLDER --cells fit --alone mirrored # TensorFlow's own classes

The chief writes FOLDER/<cell>.json: the numbers that came out, or the exception. After an
exception the process ends, as workers may be out of step then.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH, EPOCHS, CRASH_IN_EPOCH = 16, 4, 2
EVEN, SHORT, ONE_MORE = 96, 91, 81  # the last batch has 16 rows, 11, or 1
CRASH_CODE = 9
CELLS: dict[str, Callable[..., Any]] = {}


def cell(function: Callable[..., Any]) -> Callable[..., Any]:
    CELLS[function.__name__.replace("_", "-")] = function
    return function


class Job:
    """This process among the others.

    Args:
        strategy: That it trains with.
        folder: For files; the same for all processes.
        rank: 0 for the chief.
    """

    def __init__(self, strategy: Any, folder: Path, rank: int) -> None:
        self.strategy = strategy
        self.folder = folder
        self.rank = rank

    @property
    def has_servers(self) -> bool:
        return isinstance(self.strategy, tf.distribute.ParameterServerStrategy)

    def model(self) -> Any:
        """Compiled, with the same weights each time."""
        with self.strategy.scope():
            layers = [
                keras.Input((8,)),
                keras.layers.Dense(16, activation="tanh"),
                keras.layers.Dense(3),
            ]
            model = keras.Sequential(layers)
            # Of which a wrong factor shows, as it doesn't with Adam.
            optimizer = keras.optimizers.SGD(0.2, momentum=0.5)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"])
        draw = np.random.default_rng(1)
        model.set_weights([0.3 * draw.normal(size=w.shape) for w in model.get_weights()])
        return model


def data(rows: int) -> tf.data.Dataset:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 8)).astype("float32")
    y = (x @ draw.normal(size=(8, 3))).argmax(-1)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def trained(job: Job, rows: int = EVEN, **arguments: Any) -> dict[str, Any]:
    model = job.model()
    history = model.fit(data(rows), epochs=EPOCHS, verbose=0, **arguments)
    return {"loss": history.history["loss"][-1], "weights": flat(model)}


def flat(model: Any) -> list[float]:
    return np.concatenate([np.ravel(w) for w in model.get_weights()]).tolist()


@cell
def fit(job: Job) -> Any:
    return trained(job)


@cell
def custom_loop(job: Job) -> Any:
    """As TensorFlow's guides have it, for one strategy and the others."""
    model = job.model()
    losses_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = losses_of(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    with job.strategy.scope():
        model.optimizer.build(model.trainable_variables)
    train = with_coordinator if job.has_servers else in_step
    return {"loss": float(train(job, replica)), "weights": flat(model)}


def in_step(job: Job, replica: Callable[..., Any]) -> Any:
    strategy = job.strategy

    @tf.function
    def step(batch: Any) -> Any:
        parts = strategy.run(replica, args=(batch,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)

    batches = strategy.experimental_distribute_dataset(data(EVEN))
    losses = [[float(step(batch)) for batch in batches] for _ in range(EPOCHS)]
    return np.mean(losses[-1])


def with_coordinator(job: Job, replica: Callable[..., Any]) -> Any:
    coordinator = tf.distribute.coordinator.ClusterCoordinator(job.strategy)

    @tf.function
    def step(iterator: Any) -> Any:
        parts = job.strategy.run(replica, args=(next(iterator),))
        return job.strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)

    iterator = iter(coordinator.create_per_worker_dataset(lambda: data(EVEN).repeat()))
    losses = []
    for _ in range(EPOCHS):
        steps = EVEN // BATCH
        made = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]
        coordinator.join()
        losses.append(np.mean([value.fetch() for value in made]))
    return losses[-1]


@cell
def evaluate(job: Job) -> Any:
    loss, accuracy = job.model().evaluate(data(SHORT), verbose=0)
    return {"loss": loss, "exact": [loss, accuracy]}


@cell
def predict(job: Job) -> Any:
    return {"exact": np.ravel(job.model().predict(data(SHORT), verbose=0)).tolist()}


@cell
def uneven_data(job: Job) -> Any:
    first, second = trained(job, SHORT), trained(job, ONE_MORE)
    return {"loss": second["loss"], "weights": first["weights"] + second["weights"]}


@cell
def mixed_precision(job: Job) -> Any:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return {"loss": trained(job)["loss"]}
    finally:
        keras.mixed_precision.set_global_policy("float32")


@cell
def save(job: Job) -> Any:
    path = job.folder / f"model-{job.rank}.keras"
    job.model().save(path)
    again = keras.saving.load_model(path)
    x = np.concatenate([x for x, _ in data(SHORT)])
    return {"exact": np.ravel(np.asarray(again(x))).tolist()}


@cell
def restart(job: Job) -> Any:
    """The chief is gone in the middle; whoever starts it again, it goes on where it was."""
    marker = job.folder / "crashed"

    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if job.rank == 0 and epoch == CRASH_IN_EPOCH and not marker.exists():
                marker.touch()
                os._exit(CRASH_CODE)

    backup = keras.callbacks.BackupAndRestore(str(job.folder / "backup"))
    return trained(job, callbacks=[backup, Crash()])


def alone(name: str) -> tuple[Any, int]:
    """TensorFlow's own class, and this process's rank. A server's process never returns."""
    if name in ("mirrored", "central-storage"):
        (cpu,) = tf.config.list_physical_devices("CPU")
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, halves)
        devices = ["CPU:0", "CPU:1"]
        if name == "mirrored":
            return tf.distribute.MirroredStrategy(devices), 0
        return tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0"), 0
    if name == "multi-worker":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return strategy, strategy.cluster_resolver.task_id
    if name == "parameter-server":
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if resolver.task_type in ("worker", "ps"):
            tf.distribute.Server(
                resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
            ).join()
        return tf.distribute.ParameterServerStrategy(resolver), 0
    return tf.distribute.get_strategy(), 0


def said(text: str) -> str:
    """The first line that says something: Keras puts one before that and makes it bold."""
    lines = [re.sub(r"\x1b\[\d*m", "", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("Exception encountered when")]
    return lines[0] if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", required=True)
    parser.add_argument("--alone", help="a strategy, as TensorFlow and Keras have it")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    if options.alone:
        strategy, rank = alone(options.alone)
    else:
        import drumbeat

        strategy, rank = drumbeat.strategy(), int(os.environ["DRUMBEAT_RANK"])
    job = Job(strategy, options.out, rank)
    for name in options.cells.split(","):
        try:
            found = {"numbers": CELLS[name](job)}
        except Exception as error:
            traceback.print_exc()
            found = {"error": type(error).__name__, "text": said(str(error))}
        if rank == 0:
            new = options.out / f"{name}.new"
            new.write_text(json.dumps(found))
            new.replace(options.out / f"{name}.json")
        if "error" in found:
            sys.stdout.flush()
            os._exit(1)


if __name__ == "__main__":
    main()
