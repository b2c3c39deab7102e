"""Losses and metrics that give one number for a batch, computed of the global batch.

A function that returns a loss for each row is computed for a worker's own rows: the mean over
all is the workers' part by part. Of one number nothing is known. It may be a mean, but also
a root of a mean, a sum, a ratio of sums (Dice) or a comparison of the rows with one another, and
one worker would take it over all rows. So every worker gets the targets and predictions of all,
computes the number that one worker would have, and sends its gradient through its own rows: the
sum of the workers' gradients is that of one worker.

For models of scripts that name no strategy. Whoever names one says what a loss is, as with
TensorFlow's: a mean over the rows at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import current


def integrate() -> None:
    """Give Keras's losses and metrics the global batch where they need it."""
    touch.wrap(touch.LOSS, _loss)
    touch.wrap(touch.MEAN_OF_FUNCTION, _metric)


_OF_ALL_ROWS = ("dice", "tversky")
"""Functions of Keras's that take the rows of a batch together, but with `axis`."""


def may_be_one_number(function: Any) -> bool:
    """Whether what a loss or metric calls isn't Keras's own function of each row."""
    if touch.is_keras_own(function):
        return getattr(function, "__name__", "") in _OF_ALL_ROWS
    return True


def is_one_number(value: Any) -> bool:
    """Whether this is a number for a batch, not one for each row."""
    return tf.convert_to_tensor(value).shape.rank == 0


def everyones(data: Any, strategy: DataParallelStrategy) -> Any:
    """Tensors with the rows of the global batch, where each of `data` has this replica's.

    Gradients flow to this replica's rows. A tensor may have several first entries for each row,
    one after the other. Numbers stay as they are.
    """
    return tf.nest.map_structure(lambda leaf: _everyones(leaf, strategy), data)


def _everyones(leaf: Any, strategy: DataParallelStrategy) -> Any:
    own = tf.convert_to_tensor(leaf)
    if own.shape.rank == 0:
        return own
    span = strategy.extended.span()
    count = tf.shape(own, tf.int64)[0]
    of_each = count // tf.maximum(span.rows, 1)
    start, rows, total = span.start * of_each, span.rows * of_each, span.total * of_each
    own = own[:rows]  # None of a row that stands in for none.
    around = tf.stack([start, total - start - rows])[None]
    padding = tf.pad(around, [[0, own.shape.rank - 1], [0, 0]])
    sent = tf.stop_gradient(own)
    if not sent.dtype.is_floating:
        sent = tf.cast(sent, tf.int64)
    of_all = tf.stop_gradient(strategy.extended.total(tf.pad(sent, padding)))
    of_all = tf.cast(of_all, own.dtype)
    return tf.concat([of_all[:start], own, of_all[start + rows :]], 0)


def unscaled(loss: Any, strategy: DataParallelStrategy, *, is_part: bool = True) -> Any:
    """A loss that every replica has of the global batch, as its part of a mean.

    The parts are added, and so are the gradients; but those of this loss are parts already.

    Args:
        loss: A number.
        strategy: Of the replicas.
        is_part: Return the part; if not, the number, of which the caller takes the part.
    """
    fraction = strategy.extended.loss_fraction(loss.dtype)

    @tf.custom_gradient
    def of(loss: Any) -> Any:
        if is_part:
            return loss * fraction, lambda upstream: upstream
        return tf.identity(loss), lambda upstream: tf.math.divide_no_nan(upstream, fraction)

    return of(loss)


def _loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        strategy = current.with_whole_batches()
        if strategy is None or not may_be_one_number(getattr(self, "fn", type(self))):
            return original(self, y_true, y_pred, sample_weight)
        converted: Any = keras.tree.map_structure(
            lambda leaf: keras.ops.convert_to_tensor(leaf, dtype=self.dtype), (y_true, y_pred)
        )
        true, pred = converted
        if not is_one_number(self.call(true, pred)):
            return original(self, y_true, y_pred, sample_weight)
        given = [true, pred] if sample_weight is None else [true, pred, sample_weight]
        given = everyones(given, strategy)
        with current.as_one_worker(strategy):
            loss = original(self, *given)
        return unscaled(loss, strategy)

    return call


def _metric(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        strategy = current.with_whole_batches()
        if strategy is None or sample_weight is not None or not may_be_one_number(self._fn):
            return original(self, y_true, y_pred, sample_weight)
        if not is_one_number(self._fn(y_true, y_pred, **self._fn_kwargs)):
            return original(self, y_true, y_pred)
        true, pred = everyones((y_true, y_pred), strategy)
        # All replicas have the number of this batch, which counts once.
        once = strategy.extended.loss_fraction(tf.as_dtype(self.dtype))
        with current.as_one_worker(strategy):
            number = self._fn(true, pred, **self._fn_kwargs)
        return keras.metrics.Mean.update_state(self, number, once)

    return update_state
