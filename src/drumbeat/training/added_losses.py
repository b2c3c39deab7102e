"""What layers give to `add_loss`: means over the rows, and sums.

A worker's number for its own rows counts as a mean over them, as Keras's own regularisers of
activities are. Where the graph of the step says that it is a sum over the rows, such as
`self.add_loss(0.1 * tf.reduce_sum(tf.square(x)))`, the workers' numbers are added instead.

For models of scripts that name no strategy; see `whole_batch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.training import current


def integrate() -> None:
    """Let Keras 3 count sums as sums."""
    touch.wrap(touch.ADDED_LOSS, _aggregate)


def _aggregate(original: Callable[..., Any]) -> Callable[..., Any]:
    def aggregate(self: Any, loss: Any) -> Any:
        return original(self, as_a_mean(loss))

    return aggregate


def as_a_mean(loss: Any) -> Any:
    """An added loss as what, counted by the worker's share of the rows, is its part of all."""
    strategy = current.with_whole_batches()
    if strategy is None or not is_sum_over_rows(loss):
        return loss
    return tf.math.divide_no_nan(loss, strategy.extended.loss_fraction(loss.dtype))


_UNARY = ("Identity", "Cast", "Neg", "StopGradient", "CheckNumerics")
_PRODUCTS = ("Mul", "RealDiv", "DivNoNan")
_SUMS = ("Add", "AddV2", "AddN", "Sub")
_OF_EACH = (
    *(*_UNARY, *_PRODUCTS, *_SUMS, "Square", "Abs", "Pow", "SquaredDifference", "Log", "Exp"),
    *("Sqrt", "Maximum", "Minimum", "Sum", "Mean", "Max", "Min"),
)
_FIXED = ("Const", "ReadVariableOp")


def is_sum_over_rows(loss: Any) -> bool:
    """Whether a number is a sum of numbers for each row, as far as a graph says so.

    Rows are what there is an unknown number of. Not where they are divided by how many there are.
    """
    if not isinstance(loss, tf.Tensor) or tf.executing_eagerly() or loss.shape.rank != 0:
        return False
    kind, given = loss.op.type, list(loss.op.inputs)
    if kind in _UNARY:
        return is_sum_over_rows(given[0])
    if kind in _SUMS:
        return all(map(is_sum_over_rows, given))
    if kind in _PRODUCTS:
        first, second = given
        if kind == "Mul" and _is_fixed(first):
            first, second = second, first
        return is_sum_over_rows(first) and _is_fixed(second)
    if kind == "L2Loss":
        return _is_of_rows(given[0])
    if kind != "Sum":
        return False
    axes, rank = tf.get_static_value(given[1]), given[0].shape.rank
    if axes is None or not rank:
        return False
    return 0 in np.ravel(axes) % rank and _is_of_rows(given[0])


def _is_fixed(number: Any) -> bool:
    """Whether a number is the same whatever the batch."""
    operation = number.op
    if operation.type in _FIXED:
        return True
    return operation.type in (*_UNARY, *_PRODUCTS, *_SUMS) and all(map(_is_fixed, operation.inputs))


def _is_of_rows(values: Any) -> bool:
    """Whether these are values for each row, not weighted by how many there are."""
    if not values.shape.rank or values.shape[0] is not None:
        return False
    if values.op.type not in _OF_EACH:
        return True
    for each in values.op.inputs:
        if each.shape.rank == 0 and not _is_fixed(each):
            return False
        if each.shape.rank and each.shape[0] is None and not _is_of_rows(each):
            return False
    return True
