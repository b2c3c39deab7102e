"""Losses and metrics that take the rows of a batch together, computed of the global batch.

A function that gives a loss for each row, of that row alone, is computed for a worker's own rows:
the mean over all is the workers' part by part. Of others nothing is known. They may give one
number, such as a root of a mean, a sum or a ratio of sums (Dice), or compare the rows with one
another, and one worker would take all rows. So every worker gets the targets and predictions of
all, computes what one worker would have, and sends its gradient through its own rows: the sum of
the workers' gradients is that of one worker.

For models of scripts that name no strategy. Whoever names one says what a loss is, as with
TensorFlow's: a mean over the rows at hand.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import current, first_axis, loss_parts
from drumbeat.training.rowwise import is_rowwise_function


def integrate() -> None:
    """Give Keras's losses and metrics the global batch where they need it."""
    touch.wrap(touch.LOSS, _loss)
    touch.wrap(touch.MEAN_OF_FUNCTION, _metric)
    touch.wrap(touch.MEAN_UPDATE, mean_update)


# Which need it --------------------------------------------------------------------

_OF_ALL_ROWS = ("circle",)
"""Functions of Keras's that compare the rows of a batch; others do where `axis` says so."""


def loss_mixes_rows(loss: Any, y_true: Any, y_pred: Any, strategy: DataParallelStrategy) -> bool:
    """Whether a loss, of either Keras, may take the rows of a batch together."""
    function = getattr(loss, "fn", None)
    if touch.is_keras_own(type(loss).call) and touch.is_keras_own(function):
        return _mixes_by_its_axes(function, loss._fn_kwargs, y_pred)
    # What it remembers of a trace is another's.
    another = object.__new__(type(loss))
    vars(another).update(vars(loss))
    return not _is_rowwise(another.call, (y_true, y_pred), strategy)


def metric_mixes_rows(
    metric: Any, y_true: Any, y_pred: Any, strategy: DataParallelStrategy
) -> bool:
    """Whether the function of a metric, of either Keras, may take the rows together."""
    function = metric._fn
    if touch.is_loss(function):
        is_mean = loss_parts.is_mean(function)
        return not is_mean or loss_mixes_rows(function, y_true, y_pred, strategy)
    if inspect.isfunction(function) and touch.is_keras_own(function):
        return _mixes_by_its_axes(function, metric._fn_kwargs, y_pred)
    return not _is_rowwise(
        lambda *given: function(*given, **metric._fn_kwargs), (y_true, y_pred), strategy
    )


def _is_rowwise(function: Any, given: Any, strategy: DataParallelStrategy) -> bool:
    with current.as_one_worker(strategy):
        return is_rowwise_function(function, given)


def _mixes_by_its_axes(function: Any, arguments: dict[str, Any], y_pred: Any) -> bool:
    if function.__name__ in _OF_ALL_ROWS:
        return True
    rank = getattr(getattr(y_pred, "shape", None), "rank", None)
    if not rank:
        return False
    default = inspect.signature(function).parameters.get("axis")
    axes = arguments.get("axis", -1 if default is None else default.default)
    return axes is None or 0 in np.ravel(axes) % rank


# What they get ---------------------------------------------------------------------


def everyones(data: Any, strategy: DataParallelStrategy) -> Any:
    """Tensors with the rows of the global batch, where each of `data` has this replica's.

    A gradient flows to this replica's rows. It is that of a value of which the replica takes its
    part, and yet whole: no other has it. A tensor may have several first entries for each row, as
    `first_axis.entries` says. Numbers stay as they are, and masks come along.

    Raises:
        DataError: A tensor surely has rows along two axes. In a graph, where one has other
            entries than rows, an error that `own_errors` makes one of, on all workers.
    """
    return tf.nest.map_structure(lambda leaf: _everyones(leaf, strategy), data)


def _everyones(leaf: Any, strategy: DataParallelStrategy) -> Any:
    own, mask = tf.convert_to_tensor(leaf), touch.mask_of(leaf)
    if own.shape.rank == 0:
        return own
    span = strategy.extended.span()
    entries = first_axis.entries(own, span.rows)
    start, rows, total = (entries.of_each * each for each in span)
    own = own[:rows]  # None of a row that stands in for none.
    of_all, are_known = _exchanged(own, start, total, entries.are_known, strategy)
    if own.dtype.is_floating:
        own = _with_whole_gradient(own, strategy.extended.loss_fraction(own.dtype))
    with tf.control_dependencies([first_axis.check_all(are_known, entries.count, span.rows)]):
        whole = tf.concat([of_all[:start], own, of_all[start + rows :]], 0)
    if mask is not None:
        touch.set_mask(whole, _everyones(mask, strategy))
    return whole


def _exchanged(
    own: Any, start: Any, total: Any, is_right: Any, strategy: DataParallelStrategy
) -> tuple[Any, Any]:
    """All replicas' entries, of which each has its `own`, and whether `is_right` on all."""
    sent = tf.stop_gradient(own)
    if not sent.dtype.is_floating:
        sent = tf.cast(sent, tf.int64)
    around = tf.stack([start, total - start - tf.shape(own, tf.int64)[0]])[None]
    sent = tf.pad(sent, tf.pad(around, [[0, own.shape.rank - 1], [0, 0]]))
    # What another replica finds wrong comes with its entries, as one more.
    wrong = tf.fill(tf.shape(sent[:1]), tf.cast(~is_right, sent.dtype))
    of_all = tf.stop_gradient(strategy.extended.total(tf.concat([sent, wrong], 0)))
    return tf.cast(of_all[:-1], own.dtype), tf.reduce_all(of_all[-1] == 0)


def _with_whole_gradient(own: Any, fraction: Any) -> Any:
    @tf.custom_gradient
    def of(own: Any) -> Any:
        return tf.identity(own), lambda upstream: tf.math.divide_no_nan(upstream, fraction)

    return of(own)


def _loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if current.in_replica() is None:
            return original(self, y_true, y_pred, sample_weight)
        with loss_parts.computed(self) as place:
            strategy = current.with_whole_batches() if place.is_compiled else None
            if strategy is None:
                return original(self, y_true, y_pred, sample_weight)
            true, pred = (_converted(each, self.dtype) for each in (y_true, y_pred))
            if not loss_mixes_rows(self, true, pred, strategy):
                return original(self, y_true, y_pred, sample_weight)
            given = [true, pred] if sample_weight is None else [true, pred, sample_weight]
            given = everyones(given, strategy)
            with current.as_one_worker(strategy):
                loss = original(self, *given)
            return loss * strategy.extended.loss_fraction(loss.dtype)

    return call


def _converted(data: Any, dtype: Any) -> Any:
    """As Keras's losses convert what they are given, but with its masks."""

    def convert(leaf: Any) -> Any:
        tensor, mask = keras.ops.convert_to_tensor(leaf, dtype=dtype), touch.mask_of(leaf)
        if mask is not None:
            touch.set_mask(tensor, mask)
        return tensor

    return keras.tree.map_structure(convert, data)


# How metrics count it --------------------------------------------------------------


class _Counted(threading.local):
    weight: Callable[[Any, Any], Any] | None = None
    """Makes the weight of values that a mean counts from the one given."""


_counted = _Counted()


@contextlib.contextmanager
def counted_in_part(
    strategy: DataParallelStrategy, dtype: Any, *, is_whole: bool
) -> Iterator[None]:
    """Within this, a mean counts by this replica's share of the rows what it would count once.

    Args:
        strategy: Of the replica.
        dtype: Of the metric.
        is_whole: All replicas have the values of the global batch. If not, it is a number that
            counts so, as a mean over the replica's rows.
    """
    fraction = strategy.extended.loss_fraction(tf.as_dtype(dtype))

    def weight(values: Any, given: Any) -> Any:
        if given is not None:
            return tf.cast(given, fraction.dtype) * fraction if is_whole else given
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0:
            return fraction
        return tf.fill(tf.shape(values)[:1], fraction) if is_whole else None

    before, _counted.weight = _counted.weight, weight
    try:
        yield
    finally:
        _counted.weight = before


def mean_update(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the `update_state` of means, of either Keras."""

    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        if _counted.weight is not None:
            sample_weight = _counted.weight(values, sample_weight)
        return original(self, values, sample_weight)

    return update_state


def _metric(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        given = [y_true, y_pred] if sample_weight is None else [y_true, y_pred, sample_weight]
        return counted_of_all(original, self, given)

    return update_state


def counted_of_all(original: Callable[..., Any], metric: Any, given: list[Any]) -> Any:
    """What `update_state` of a mean of a function, of either Keras, does for all workers."""
    strategy = current.in_replica()
    if strategy is None:
        return original(metric, *given)
    of_all = current.with_whole_batches()
    with loss_parts.called(loss_parts.WITHIN):
        if of_all is None or not metric_mixes_rows(metric, given[0], given[1], of_all):
            with counted_in_part(strategy, metric.dtype, is_whole=False):
                return original(metric, *given)
        given = everyones(given, strategy)
        with (
            counted_in_part(strategy, metric.dtype, is_whole=True),
            current.as_one_worker(strategy),
        ):
            return original(metric, *given)
