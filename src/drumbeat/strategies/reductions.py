"""Small arithmetic on tensors that may be `tf.IndexedSlices`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def as_tensor(value: Any) -> Any:
    """`value` as a tensor, or as the `tf.IndexedSlices` that it is."""
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def unless(absent: Any, gradients: list[Any]) -> list[Any]:
    """`gradients`, or zeros like them where `absent` holds."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    values = tf.cond(
        absent,
        lambda: [tf.zeros_like(v) for v in values],
        lambda: [tf.identity(v) for v in values],
    )
    return [
        tf.IndexedSlices(v, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else v
        for g, v in zip(gradients, values, strict=True)
    ]


def local_sums(everyones: Sequence[Sequence[Any]]) -> list[Any]:
    """The sum of each tensor over the replicas of one worker, added in their order.

    Args:
        everyones: For each replica the same list of tensors or `tf.IndexedSlices`.
    """
    if len(everyones) == 1:
        return list(everyones[0])
    return [_sum(values) for values in zip(*everyones, strict=True)]


def _sum(values: Sequence[Any]) -> Any:
    if not any(isinstance(value, tf.IndexedSlices) for value in values):
        return functools.reduce(tf.add, values)
    first = values[0]
    return tf.IndexedSlices(
        tf.concat([value.values for value in values], 0),
        tf.concat([value.indices for value in values], 0),
        first.dense_shape,
    )


def divide(value: Any, size: int) -> Any:
    """`value / size`; whole numbers stay whole."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(divide(value.values, size), value.indices, value.dense_shape)
    return value // size if value.dtype.is_integer else value / size
