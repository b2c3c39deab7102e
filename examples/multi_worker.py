"""Keras on several workers with nothing but TensorFlow's own API.

    python examples/multi_worker.py                       # one worker
    drumbeat run -n 2 examples/multi_worker.py            # two, the same script

The program does what TensorFlow's guide to multi-worker training asks for: it makes the model in
the strategy's scope, batches the data by the global batch, and lets every worker save, but only
the chief where it counts.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import digits
import recipe


def this_task() -> tuple[str, int]:
    """Type and index of this process in TF_CONFIG; the only worker where there is none."""
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
    return task.get("type", "worker"), int(task.get("index", 0))


def is_chief(task_type: str, task_index: int) -> bool:
    """Whether the task is the one that saves: the chief, or worker 0 of a cluster without one."""
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    if "chief" in cluster:
        return task_type == "chief"
    return task_type == "worker" and task_index == 0


def make_dataset(examples: digits.Examples, batch_size: int, *, shuffle: bool) -> tf.data.Dataset:
    """Global batches of `examples`, in a new order each epoch if `shuffle`."""
    dataset = tf.data.Dataset.from_tensor_slices(examples)
    if shuffle:
        dataset = dataset.shuffle(len(examples[0]), seed=1)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.batch(batch_size).with_options(options)


def save(model: keras.Model, folder: Path) -> None:
    """Save from every worker, since saving may involve all; what non-chiefs write is deleted."""
    if is_chief(*this_task()):
        folder.mkdir(parents=True, exist_ok=True)
        model.save(folder / "model.keras")
        return
    scratch = Path(tempfile.mkdtemp(prefix="not-the-chief-"))
    model.save(scratch / "model.keras")
    shutil.rmtree(scratch)


def main() -> None:
    options = recipe.parse_options(__file__)
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    train, test = digits.load(options.data)

    with strategy.scope():
        model = recipe.build_network(train[0].shape[1:])
        model.compile(
            optimizer=keras.optimizers.Adam(2e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    test_batches = make_dataset(test, options.batch_size, shuffle=False)
    model.fit(
        make_dataset(train, options.batch_size, shuffle=True),
        epochs=options.epochs,
        validation_data=test_batches,
        verbose=2,
    )
    loss, accuracy = model.evaluate(test_batches, verbose=0)
    scores = model.predict(test_batches, verbose=0)
    wrong = int(np.sum(np.argmax(scores, axis=-1) != test[1]))
    save(model, options.model_dir)
    task_type, task_index = this_task()
    print(
        f"{task_type} {task_index}: test loss {loss:.4f}, test accuracy {accuracy:.4f}, "
        f"{wrong} of {len(scores)} digits misread"
    )


if __name__ == "__main__":
    main()
