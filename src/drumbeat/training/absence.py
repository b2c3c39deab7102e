"""Steps in which a worker has no rows.

A global batch with fewer rows than workers leaves some without any. They must
still take part in the step's collectives, but kernels and layers are not made for
empty batches (oneDNN's max-pooling gradient aborts the process, BatchNormalization
gives NaN). So in Keras's own loops such a worker runs the step on one row of
zeros, whose gradients, metrics and statistics are then left out.

What that takes makes a small step 5 to 10% longer. Where it is sure before a `fit` that
every worker has rows of every batch, its steps go without.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.data.rows import num_rows
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import current, row_marks


def integrate() -> None:
    """Give train, test and predict steps a stand-in row where they have none."""
    touch.wrap(touch.STEP_FUNCTION, _make_function)
    touch.wrap(touch.PREDICT_STEP, _predict_step)
    touch.wrap(touch.VARIABLE_ASSIGN, _direct_assign)
    touch.wrap(touch.BATCH_MOMENTS, _moments)


def _make_function(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_function(self: Any, step_function: Callable[..., Any]) -> Any:
        if step_function == self.train_step and _always_has_rows.get(self, False):
            return original(self, lambda batch: step_function(row_marks.of_any_number(batch)))
        return original(self, lambda batch: with_rows(step_function, batch)[0])

    return make_function


def has_always_rows(model: Any) -> bool:
    """Whether every worker has rows in every step of `model`'s `train_function`."""
    return _always_has_rows.get(model, False)


_always_has_rows: Any = weakref.WeakKeyDictionary()
"""For models: whether every worker has rows in every step of the `train_function`."""


def expect(model: Any, strategy: DataParallelStrategy, least_rows: int) -> None:
    """Tells what the steps of `model` that come next have in common, on all workers.

    Args:
        model: With the `train_function` of earlier steps, or None.
        strategy: Of its workers.
        least_rows: The rows of the smallest global batch, or fewer.
    """
    extended = strategy.extended
    units = extended.shares.units
    # Shares that follow the workers' speed may become small, and shards are another matter.
    sure = extended.inputs.rebalancer is None and extended.exact is None
    sure = sure and least_rows * min(units) >= sum(units) * extended.replicas.count
    if model.train_function is None:
        _always_has_rows[model] = sure
    elif _always_has_rows.get(model, False) and not sure:
        _always_has_rows[model] = False
        model.train_function = None


def _predict_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def predict_step(self: Any, data: Any) -> Any:
        outputs, absent = with_rows(functools.partial(original, self), data)
        if absent is None:
            return outputs
        return tf.nest.map_structure(lambda leaf: left_out(leaf, absent), outputs)

    return predict_step


def with_rows(step_function: Callable[[Any], Any], batch: Any) -> tuple[Any, Any]:
    """What the step returns for `batch`, or for a row of zeros if it has none; and if it hasn't.

    The latter is a bool tensor, or None where the batch surely has rows.
    """
    strategy = current.in_replica()
    rows = num_rows(batch)
    if strategy is None or rows is None or (isinstance(rows, int) and rows > 0):
        return step_function(row_marks.of_any_number(batch)), None
    absent = tf.equal(rows, 0)
    batch = tf.nest.map_structure(lambda leaf: _stand_in(leaf, absent), batch)
    with strategy.extended.standing_in(absent):
        return step_function(row_marks.of_any_number(batch)), absent


def left_out(output: Any, absent: Any) -> Any:
    """`output` of a step, without the row that stood in for none where `absent` holds."""
    if not isinstance(output, tf.Tensor) or output.shape.rank == 0:
        return output
    return output[: tf.where(absent, 0, tf.shape(output)[0])]


def _stand_in(leaf: Any, absent: Any) -> Any:
    if isinstance(leaf, np.ndarray):  # Of train_on_batch, where it runs eagerly.
        leaf = tf.convert_to_tensor(leaf)
    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
        return leaf

    def zeros() -> Any:
        shape = tf.concat([[1], tf.shape(leaf)[1:]], 0)
        return tf.ensure_shape(tf.zeros(shape, leaf.dtype), [None, *leaf.shape[1:]])

    return tf.cond(absent, zeros, lambda: tf.identity(leaf))


def _direct_assign(original: Callable[..., Any]) -> Callable[..., Any]:
    def direct_assign(self: Any, value: Any) -> Any:
        strategy = current.in_replica()
        absent = None if strategy is None else strategy.extended.absent
        # Metrics are read by combining all workers' counts; other state is assigned
        # alike everywhere, with or without rows.
        if absent is None or self.synchronization != "on_read":
            return original(self, value)
        kept = tf.convert_to_tensor(self.value)
        return original(self, tf.where(absent, kept, tf.cast(value, kept.dtype)))

    return direct_assign


def _moments(original: Callable[..., Any]) -> Callable[..., Any]:
    def moments(self: Any, inputs: Any, mask: Any) -> Any:
        strategy = current.in_replica()
        absent = None if strategy is None else strategy.extended.absent
        if absent is None:
            return original(self, inputs, mask)
        if self.synchronized:
            # Summed over all workers, where no rows add nothing.
            inputs = tf.cond(absent, lambda: inputs[:0], lambda: tf.identity(inputs))
            return original(self, inputs, mask)
        mean, variance = original(self, inputs, mask)
        return (
            tf.where(absent, tf.cast(self.moving_mean, mean.dtype), mean),
            tf.where(absent, tf.cast(self.moving_variance, variance.dtype), variance),
        )

    return moments
