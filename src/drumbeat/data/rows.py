"""Which part of the current global batch this worker holds.

A loss that is a mean over the local rows enters the global mean with weight
local rows / global rows. The input iterators record both numbers whenever they
hand out a batch; the loss scaling reads them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class BatchRows:
    """The local and the global number of rows of the batch handed out last.

    Attributes:
        value: int64 tensor variable of shape [2]: local rows, global rows. At
            rest `[1, world_size]`, the weight of equal shares.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        with tf.init_scope(), tf.device("CPU:0"):
            self.value = tf.Variable(
                tf.constant([1, world_size], tf.int64), trainable=False, name="batch_rows"
            )
        self._listeners: list[list[int]] = []

    def record(self, rows: Any) -> None:
        """Remember `rows`, an int64 tensor `[local, global]`."""
        self.value.assign(rows)
        if self._listeners and tf.executing_eagerly():
            self._listeners[-1].append(int(rows[0]))

    @contextlib.contextmanager
    def listen(self) -> Iterator[list[int]]:
        """A list that grows by the local rows of each batch fetched eagerly within."""
        heard: list[int] = []
        self._listeners.append(heard)
        try:
            yield heard
        finally:
            self._listeners.remove(heard)

    def reset(self) -> None:
        """Back to equal shares: the next data does not come from our iterators."""
        self.record([1, self._world_size])

    def fraction(self, local_rows: Any | None) -> Any:
        """This worker's share of the global batch, float64 scalar in [0, 1].

        Args:
            local_rows: Rows of the batch that is about to be used. When they are
                not those recorded last, the batch came from elsewhere and its
                share is `1 / world_size`, as tf.distribute has it. None skips
                the comparison.
        """
        local, total = tf.unstack(tf.cast(self.value, tf.float64))
        fraction = tf.math.divide_no_nan(local, total)
        if local_rows is None:
            return fraction
        recorded = tf.logical_or(
            tf.equal(tf.cast(local_rows, tf.float64), local), tf.equal(total, 0.0)
        )
        return tf.where(recorded, fraction, tf.constant(1.0 / self._world_size, tf.float64))


def as_int64(number: Any) -> Any:
    """An int, or an integer tensor, as an int64 scalar tensor."""
    return tf.cast(number, tf.int64)


def num_rows(structure: Any) -> Any:
    """Rows of the first tensor of a batch structure that has a first axis.

    Returns:
        An int when it is known statically, else an int64 scalar tensor; None when no
        leaf has an axis.
    """
    for leaf in tf.nest.flatten(structure):
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows(out_type=tf.int64)
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[0]
        shape = getattr(leaf, "shape", None)
        if shape is None or shape.rank == 0:
            continue
        if shape.rank is not None and shape[0] is not None:
            return int(shape[0])
        return tf.shape(leaf, out_type=tf.int64)[0]
    return None
