"""Whether the first axis of a tensor has the rows of a batch, as far as its graph shows it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from drumbeat.errors import DataError
from drumbeat.training import row_rules


class Entries(NamedTuple):
    """The entries that each row has along the first axis of a tensor.

    Attributes:
        of_each: How many, one row after the other; an int64 scalar.
        are_known: Whether that is so; a bool scalar tensor.
        count: How many there are of all rows; an int64 scalar tensor.
    """

    of_each: Any
    are_known: Any
    count: Any


def entries(tensor: Any, rows: Any) -> Entries:
    """What the first axis of `tensor` has of a batch.

    It has one entry for each row, or several where the graph shows that they are of one tensor
    that has, reshaped. Others, such as tensors behind one another, have no order of rows.

    Args:
        tensor: With a first axis.
        rows: Of the batch: an int64 scalar, 0 also where a row stands in for none.

    Raises:
        DataError: It has rows along its second axis, too.
    """
    count, here = tf.shape(tensor, tf.int64)[0], tf.maximum(rows, 1)
    is_one = tf.equal(count, here) | tf.equal(count, rows)
    one = tf.ones([], tf.int64)
    sources = [] if tf.executing_eagerly() else _reshaped(tensor)
    if not sources:
        return Entries(one, is_one, count)
    of_rows = [tf.equal(tf.shape(source, tf.int64)[0], here) for source in sources]
    is_whole = tf.reduce_any(of_rows) & tf.equal(count % here, 0)
    several = tf.where(is_one | ~is_whole, one, count // here)
    return Entries(several, is_one | is_whole, count)


def _reshaped(tensor: Any) -> list[Any]:
    """The tensors that may have rows and are reshaped on the way to `tensor`, nothing mixed."""
    sources: dict[str, Any] = {}
    waiting, seen = [tensor], set()
    while waiting:
        result = waiting.pop()
        if result.name in seen:
            continue
        seen.add(result.name)
        operation = result.op
        given = list(operation.inputs)
        if operation.type == "IdentityN":
            waiting.append(given[result.value_index])
            continue
        if operation.type == "Reshape":
            given, may_have = given[:1], [_may_have_rows(given[0])]
            sources.update({each.name: each for each in given if may_have[0]})
        elif None in [each.shape.rank for each in (result, *given)]:
            continue
        else:
            may_have = [_may_have_rows(each) for each in given]
            _check(result, given)
            keeps = row_rules.RULES.get(operation.type)
            if keeps is None or not any(may_have):
                continue
            if not keeps(operation, given, [not each for each in may_have]):
                continue
        waiting += [each for each, may in zip(given, may_have, strict=True) if may]
    return list(sources.values())


def _may_have_rows(tensor: Any) -> bool:
    return bool(tensor.shape.rank) and tensor.shape[0] is None


_CROSSING = ("MatMul", "Einsum", "Add", "AddV2", "Sub", "Mul", "RealDiv", "SquaredDifference")


def _check(result: Any, given: list[Any]) -> None:
    """Raises DataError where an operation gives `result` the rows along two axes."""
    if result.op.type not in _CROSSING or not _has_unknown_axes(result):
        return
    if not any(map(_has_unknown_axes, given)):
        raise DataError(
            "an output of the model has shape [rows, rows], as the model compares the rows of a "
            "batch with one another, and each worker has its own rows only; received by a loss "
            "or metric that takes all rows, which expects [rows, ...]. Return what is compared, "
            "and compare it in the loss, which gets the rows of all workers; or train on one "
            "worker: drumbeat run -n 1."
        )


def _has_unknown_axes(tensor: Any) -> bool:
    shape = tensor.shape
    return shape.rank > 1 and shape[0] is None and shape[1] is None


def check_all(are_known: Any, count: Any, rows: Any) -> Any:
    """`tf.debugging.Assert` that the entries are known on all workers, as an operation or None.

    Raises:
        DataError: Now, where no graph is at hand; else when it is run, within `own_errors`.
    """
    text = (
        "DataError: a loss or metric that takes the rows of a batch together received a tensor "
        "with {} entries along its first axis for {} rows of this worker; expected one for each "
        "row, on all workers, or a reshape of a tensor that has them. Put what belongs to a row "
        "along another axis, such as by tf.stack([a, b], axis=1) in place of tf.concat([a, b], "
        "axis=0), or train on one worker: drumbeat run -n 1."
    )
    if not tf.executing_eagerly():
        return tf.debugging.Assert(are_known, [tf.strings.format(text, (count, rows))])
    if not are_known:
        text += " Without run_eagerly a reshape would be seen."
        raise DataError(text.format(int(count), int(rows)).removeprefix("DataError: "))
    return None
