"""Which pass over the data begins next: a number that pipelines read and move on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Epochs:
    """The number of the next pass, kept by TensorFlow so that pipelines can read it.

    Args:
        first: The number to start with.
    """

    def __init__(self, first: int) -> None:
        # Not a tf.Variable, which the strategy in scope would make its own.
        with tf.init_scope(), tf.device("CPU:0"):
            self._handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=_ANONYMOUS)
            self._assign(tf.constant(first, tf.int64))

    @property
    def value(self) -> int:
        """The number, outside of graphs."""
        with tf.init_scope():
            return int(self.read())

    @value.setter
    def value(self, number: int) -> None:
        with tf.init_scope(), tf.device("CPU:0"):
            self._assign(tf.constant(number, tf.int64))

    def read(self) -> Any:
        """The number as an int64 scalar tensor, in a graph or outside."""
        return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)

    def begun(self, epoch: Any) -> None:
        """The pass `epoch`, an int64 scalar tensor, has begun: the next is a later one."""
        self._assign(tf.maximum(self.read(), epoch + 1))

    def _assign(self, number: Any) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=number)


# TensorFlow's name for a resource that lives as long as its handle.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"
