"""Which rows of the current global batch this worker holds.

The input iterators record it whenever they hand out a batch. A loss that is a
mean over the local rows enters the global mean with weight local rows / global
rows, and a random layer draws for its rows what one worker would have drawn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf


class Span(NamedTuple):
    """The rows `[start, start + rows)` of a global batch of `total` rows.

    Attributes:
        start: int64 scalar.
        rows: int64 scalar, may be 0.
        total: int64 scalar.
    """

    start: Any
    rows: Any
    total: Any


class BatchRows:
    """The span of the batch handed out last.

    Attributes:
        value: int64 tensor variable of shape [3]: start, rows, total. At rest
            `[rank, 1, world_size]`, which is an equal share.
        local: int64 scalar variable: the rows of a batch that a graph is called with,
            for graphs that serve batches of several sizes.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        with tf.init_scope(), tf.device("CPU:0"):
            self.value = tf.Variable(
                tf.constant(self._at_rest, tf.int64), trainable=False, name="batch_rows"
            )
            self.local = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="local_rows")
        self._listeners: list[list[int]] = []

    @property
    def _at_rest(self) -> Span:
        return Span(self._rank, 1, self._world_size)

    def record(self, span: Span) -> None:
        """Remember `span`, numbers or int64 scalar tensors."""
        self.value.assign(tf.stack([as_int64(number) for number in span]))
        if self._listeners and tf.executing_eagerly():
            self._listeners[-1].append(int(span.rows))

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
        self.record(self._at_rest)

    def span(self, local_rows: Any | None) -> Span:
        """The span of a batch that is about to be used.

        Args:
            local_rows: Its rows. When they are not those recorded last, the batch came
                from elsewhere: all workers are then taken to have as many, as in
                tf.distribute. None skips the comparison.
        """
        recorded = Span(*tf.unstack(tf.convert_to_tensor(self.value), num=3))
        if local_rows is None:
            return recorded
        rows = as_int64(local_rows)
        known = tf.equal(rows, recorded.rows)
        return Span(
            tf.where(known, recorded.start, rows * self._rank),
            rows,
            tf.where(known, recorded.total, rows * self._world_size),
        )


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
        if getattr(leaf, "shape", None) is None:
            continue
        shape: Any = tf.TensorShape(leaf.shape)  # An array has a tuple.
        if shape.rank == 0:
            continue
        if shape.rank is not None and shape[0] is not None:
            return int(shape[0])
        return tf.shape(leaf, out_type=tf.int64)[0]
    return None
