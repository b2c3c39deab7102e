"""Variables that are cut over several ps tasks: which shard the code at hand works on.

TensorFlow's `ShardedVariable` is cut along its first axis. An update of it is an update of
each shard, in turn, with the part of the gradient that belongs to it. While one is under
way, whatever is cut in the same way (the slots of an optimizer) stands for its part, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from drumbeat.tf_internals import ShardedVariable


class _At(threading.local):
    shard: int | None = None


_at = _At()


def current() -> int | None:
    """The number of the shard that is being updated; None outside of an update."""
    return _at.shard


@contextlib.contextmanager
def at(shard: int) -> Iterator[None]:
    """Within this, sharded variables stand for their part of this number."""
    before, _at.shard = _at.shard, shard
    try:
        yield
    finally:
        _at.shard = before


def is_sharded(value: Any) -> bool:
    """Whether `value` is a variable in several parts."""
    return isinstance(value, ShardedVariable)


def parts_of(variable: Any) -> list[Any]:
    """The parts of a sharded variable, in the order of their rows."""
    return list(variable.variables)


def whole_of(part: Any) -> Any:
    """The variable that `part` is a part of; a variable that is none itself."""
    container = getattr(part, "_sharded_container", None)
    whole = None if container is None else container()
    return part if whole is None else whole


def starts_of(variable: Any) -> list[int]:
    """The first row of each part, and how many rows there are in all."""
    starts = [0]
    for part in parts_of(variable):
        starts.append(starts[-1] + int(part.shape[0]))
    return starts


def split(value: Any, variable: Any) -> list[Any]:
    """`value`, of the shape of the whole `variable`, cut like it.

    Args:
        value: A tensor, or `tf.IndexedSlices` with rows of the whole; None, a variable cut in
            the same way, or anything of another shape stays as it is.
        variable: Sharded.

    Returns:
        One for each part.
    """
    parts = parts_of(variable)
    if isinstance(value, tf.IndexedSlices):
        return _split_rows(value, starts_of(variable))
    if isinstance(value, tf.Tensor) and value.shape == variable.shape:
        starts = starts_of(variable)
        return [value[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    return [value] * len(parts)


def _split_rows(value: tf.IndexedSlices, starts: list[int]) -> list[tf.IndexedSlices]:
    indices = tf.convert_to_tensor(value.indices)
    bounds = tf.constant(starts[1:-1], indices.dtype)
    owner = tf.searchsorted(bounds, indices, side="right", out_type=tf.int32)
    count = len(starts) - 1
    rows = tf.dynamic_partition(value.values, owner, count)
    numbers = tf.dynamic_partition(indices, owner, count)
    shape: Any = value.values.shape[1:]
    return [
        tf.IndexedSlices(
            values=rows[i],
            indices=numbers[i] - tf.constant(starts[i], indices.dtype),
            dense_shape=tf.constant([starts[i + 1] - starts[i], *shape], tf.int64),
        )
        for i in range(count)
    ]


def join(gradients: list[Any], starts: list[int]) -> Any:
    """The gradient of the whole from those of the parts: the inverse of `split`.

    Args:
        gradients: One for each part; None where there is none.
        starts: See `starts_of`.

    Returns:
        None if there is none at all; `tf.IndexedSlices` if all that there are are such.
    """
    there = [(i, g) for i, g in enumerate(gradients) if g is not None]
    if not there:
        return None
    if all(isinstance(g, tf.IndexedSlices) for _, g in there):
        return tf.IndexedSlices(
            values=tf.concat([g.values for _, g in there], 0),
            indices=tf.concat(
                [g.indices + tf.cast(starts[i], g.indices.dtype) for i, g in there], 0
            ),
            dense_shape=tf.constant([starts[-1], *there[0][1].values.shape[1:]], tf.int64),
        )
    rows = [b - a for a, b in zip(starts, starts[1:], strict=False)]
    like = there[0][1]
    shape, dtype = (
        (like.values if isinstance(like, tf.IndexedSlices) else like).shape[1:],
        like.dtype,
    )
    return tf.concat(
        [
            tf.zeros([count, *shape], dtype) if gradient is None else _dense(gradient, count)
            for gradient, count in zip(gradients, rows, strict=True)
        ],
        0,
    )


def _dense(gradient: Any, rows: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
    return gradient
