"""Trains a workload with Keras on TensorFlow, through plain `fit`.

Stock TensorFlow, so that the same file runs under `drumbeat run`, by itself, and, with
TF_USE_LEGACY_KERAS=1, under TensorFlow's own strategy. Only the counters of drumbeat's
collectives are read from what its strategy has besides.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import clock
import numpy as np
import tensorflow as tf
import workloads
from keras_models import compiled

keras: Any = tf.keras  # Keras 3, or tf_keras if TF_USE_LEGACY_KERAS is set
COUNTERS = ("waiting_s", "transfer_s", "calls", "bytes_sent")


class EpochEnds(keras.callbacks.Callback):
    """Tells the clock; has no hooks for batches, which cost something of their own."""

    def __init__(self, mine: clock.Clock) -> None:
        super().__init__()
        self._clock = mine

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._clock.epoch()


class BatchHook(keras.callbacks.Callback):
    """Looks at each batch, as callbacks of users do."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.last = batch


def picture(path: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """A decoded, cropped, mirrored and scaled picture."""
    mixed = (number * 2_654_435_761) % 2**32
    side = 192 + mixed % 64
    room = workloads.STORED - side + 1
    top, left = (mixed // 2**8) % room, (mixed // 2**16) % room
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    image = tf.image.crop_to_bounding_box(
        image, tf.cast(top, tf.int32), tf.cast(left, tf.int32), *[tf.cast(side, tf.int32)] * 2
    )
    image = tf.image.resize(image, [workloads.SEEN, workloads.SEEN]) / 255.0
    image.set_shape([workloads.SEEN, workloads.SEEN, 3])
    return tf.where(mixed >= 2**31, image[:, ::-1], image)


def data(name: str, workers: int, steps: int, folder: Path | None) -> tf.data.Dataset:
    """The examples of an epoch in global batches."""
    workload = workloads.WORKLOADS[name]
    batch = workload.rows * workers
    if name == "images":
        assert folder is not None
        numbers = np.arange(workloads.PICTURES)
        slices = (workloads.pictures(folder), numbers, workloads.labels_of_pictures())
        files = tf.data.Dataset.from_tensor_slices(slices)
        examples = files.map(
            lambda path, number, label: (picture(path, number), label),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        return examples.batch(batch, drop_remainder=True).take(steps).prefetch(tf.data.AUTOTUNE)
    arrays = tuple(array[: batch * steps] for array in workload.examples(workers))
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch).cache().prefetch(2)


def train(options: argparse.Namespace, strategy: tf.distribute.Strategy, rank: int) -> None:
    """One step, which is timed from the start of the process, and then the epochs."""
    communicator = getattr(strategy, "communicator", None)
    times = getattr(communicator, "times", None)
    counters = (lambda: {name: float(getattr(times, name)) for name in COUNTERS}) if times else dict
    mine = clock.Clock(options, rank, counters)
    workload = workloads.WORKLOADS[options.workload]
    steps = options.steps or workload.steps
    with strategy.scope():
        model = compiled(keras, options.workload, options.sleep_ms)
    batches = data(options.workload, options.workers, steps, options.pictures)
    first = model.fit(batches.take(1), verbose=0)
    mine.first_step(float(first.history["loss"][0]))
    callbacks: list[Any] = [EpochEnds(mine)] + ([BatchHook()] if options.batch_hook else [])
    history = model.fit(batches, epochs=options.epochs, verbose=0, callbacks=callbacks)
    generation = keras.__name__.partition(".")[0]  # "keras" or "tf_keras"
    mine.write(
        steps=steps,
        rows=workload.rows * options.workers,
        losses=[float(loss) for loss in history.history["loss"]],
        parameters=sum(int(np.prod(weight.shape)) for weight in model.trainable_weights),
        replicas=strategy.num_replicas_in_sync,
        versions=f"TensorFlow {tf.__version__}, {generation} "
        f"{importlib.metadata.version(generation)}",
    )


def main() -> None:
    options = clock.arguments()
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"index": 0})
    if "TF_CONFIG" in os.environ:
        strategy: Any = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = tf.distribute.get_strategy()  # one process, all cores
    train(options, strategy, options.number + int(task["index"]))


if __name__ == "__main__":
    main()
