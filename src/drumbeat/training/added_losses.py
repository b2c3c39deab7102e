"""What layers give to `add_loss`: means over the rows, sums, and anything else.

A worker's number for its own rows counts as a mean over them, as Keras's own regularisers of
activities are. Where the graph of the step says that it is a sum over the rows, such as
`self.add_loss(0.1 * tf.reduce_sum(tf.square(x)))`, the workers' numbers are added instead. What is
neither, such as a norm, or a product of two means, is worked out once more from the rows of all,
see `replaying`. Where that can't be had, and in what runs eagerly, it is said.

For models of scripts that name no strategy; see `whole_batch`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import current, row_rules, step_rows
from drumbeat.training.replaying import NotRepeatable, Replay
from drumbeat.training.rowwise import CALLS, FIXED, FLAT, ROWS

logger = logging.getLogger("drumbeat")

MEAN, SUM = "mean", "sum"


def integrate() -> None:
    """Let Keras 3 count what layers add to the loss for the global batch."""
    touch.wrap(touch.ADDED_LOSS, _aggregate)


def _aggregate(original: Callable[..., Any]) -> Callable[..., Any]:
    def aggregate(self: Any, loss: Any) -> Any:
        if current.with_whole_batches() is None:
            return original(self, loss)
        layers = touch.all_layers(self)
        return original(self, as_a_mean(loss, layers, touch.added_by(loss, layers)))

    return aggregate


@tf.autograph.experimental.do_not_convert
def as_a_mean(loss: Any, layers: Sequence[Any] = (), owner: Any | None = None) -> Any:
    """An added loss as what, counted by the worker's share of the rows, is its part of all.

    Args:
        loss: A tensor; of several numbers, as Keras has it, their sum.
        layers: All of the model, as far as they are known.
        owner: The one that has added the loss, if that is known.
    """
    strategy = current.with_whole_batches()
    if strategy is None:
        return loss
    if not loss.dtype.is_floating:
        loss = tf.cast(loss, keras.config.floatx())
    if tf.executing_eagerly():
        return _eager(loss, owner, strategy)
    if loss.shape.rank != 0:
        loss = tf.reduce_sum(loss)
    rows = step_rows.of(loss.graph, step_rows.Layers(layers))
    replay = Replay(rows, strategy)
    try:
        meaning = _meaning(loss, replay)
        if meaning == SUM:
            return _as_a_mean(loss, strategy)
        return loss if meaning == MEAN else replay.whole(loss)
    except (NotRepeatable, RecursionError):
        _warn(owner, strategy)
        return loss


def _eager(loss: Any, owner: Any | None, strategy: DataParallelStrategy) -> Any:
    if loss.shape.rank:
        return _as_a_mean(tf.reduce_sum(loss), strategy)
    if owner is not None and not touch.is_keras_own(type(owner)):
        _warn(owner, strategy)
    return loss


def _as_a_mean(total: Any, strategy: DataParallelStrategy) -> Any:
    return tf.math.divide_no_nan(total, strategy.extended.loss_fraction(total.dtype))


_said: list[Any] = []


def _warn(owner: Any | None, strategy: DataParallelStrategy) -> None:
    if _said or not strategy.is_chief:
        return
    _said.append(owner)
    logger.warning(
        "Whether what %s adds to the loss is a mean over the rows of a batch or a sum can't be "
        "seen here, so it counts as a mean over each worker's own rows. If it isn't one, the model "
        "is not that of one worker: give add_loss a mean, tf.reduce_mean(...), or a number for "
        "each row, and leave run_eagerly off.",
        "a layer" if owner is None else f"the layer {owner.name}",
    )


# What a number is -----------------------------------------------------------------

_UNARY = ("Identity", "Cast", "Neg", "StopGradient", "CheckNumerics", "PreventGradient")
_SAME_SUM = ("Squeeze", "ExpandDims", "Reshape")
_SUMS = ("Add", "AddV2", "AddN", "Sub")
_QUOTIENTS = ("RealDiv", "DivNoNan")


def _meaning(number: Any, replay: Replay) -> str | None:
    """Whether what has no rows is a mean over them, a sum, but for a factor; or neither."""
    rows, operation = replay.rows, number.op
    if rows.of(number) is FIXED:
        return MEAN  # All workers have the same.
    kind, given = operation.type, list(operation.inputs)
    if kind in CALLS:
        output, within = replay.called(number)
        return _meaning(output, within)
    if kind in ("Sum", "Mean") and rows.of(given[0]) not in (ROWS, FLAT):
        share = kind == "Sum" and _is_share(given[0], replay) and 0 in row_rules.axes_of(operation)
        return MEAN if share else _meaning(given[0], replay)
    if kind in ("Sum", "Mean"):
        return {"Sum": SUM, "Mean": MEAN}[kind] if 0 in row_rules.axes_of(operation) else None
    if kind == "L2Loss":
        return SUM if rows.of(given[0]) in (ROWS, FLAT) else None
    if kind in (*_UNARY, *_SAME_SUM):
        return _meaning(given[0], replay)
    if kind in _SUMS:
        meanings = {_meaning(each, replay) for each in given}
        return meanings.pop() if len(meanings) == 1 else None
    factor = _factor(operation, replay)
    if factor is not None:
        return _meaning(factor, replay)
    if kind in _QUOTIENTS and is_count(given[1], replay):
        return MEAN if _meaning(given[0], replay) == SUM else None
    return None


def _factor(operation: Any, replay: Replay) -> Any | None:
    """What a product or quotient has beside one that is the same whatever the batch."""
    given = list(operation.inputs)
    if operation.type == "Mul" and replay.rows.of(given[0]) is FIXED:
        return given[1]
    if operation.type in ("Mul", *_QUOTIENTS) and replay.rows.of(given[1]) is FIXED:
        return given[0]
    return None


def _is_share(values: Any, replay: Replay) -> bool:
    """Whether these are numbers for each row, divided by how many rows there are."""
    operation = values.op
    if operation.type in _QUOTIENTS and is_count(operation.inputs[1], replay):
        return replay.rows.of(operation.inputs[0]) in (ROWS, FLAT)
    if operation.type in _UNARY:
        return _is_share(operation.inputs[0], replay)
    factor = _factor(operation, replay)
    return factor is not None and _is_share(factor, replay)


def is_count(number: Any, replay: Replay) -> bool:
    """Whether this is the number of rows, or that times what is the same whatever the batch."""
    operation, given = number.op, list(number.op.inputs)
    if number.shape.rank != 0:
        return False
    if replay.rows.begins_with_rows(number):
        return True
    if operation.type in ("Identity", "Cast"):
        return is_count(given[0], replay)
    if operation.type == "Size":
        return replay.rows.of(given[0]) in (ROWS, FLAT)
    if operation.type == "Prod":
        return replay.rows.begins_with_rows(given[0])
    if operation.type == "Maximum":
        # Where there are none, what is divided by them is 0.
        least = [tf.get_static_value(each) for each in given]
        return any(
            least[1 - i] is not None and np.all(least[1 - i] <= 1) and is_count(given[i], replay)
            for i in (0, 1)
        )
    factor = _factor(operation, replay)
    return factor is not None and is_count(factor, replay)
