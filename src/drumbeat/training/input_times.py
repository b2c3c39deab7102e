"""How long a training step waits for its next batch.

Keras asks for it inside of a tf.function, where Python can't look on: so two clocks are
read there, before and after, and what lies between is added to a variable. It costs a few
microseconds a step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from drumbeat.tf_internals import is_op_determinism, wrap_next

_VARIABLE = "drumbeat_input_time"


class InputTimes:
    """The waiting for batches of this process, as far as it was listened to."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self._handle: Any = None
        self._eager_s = 0.0

    @property
    def total_s(self) -> float:
        """All of it so far, seconds. Costs some 20 microseconds."""
        if self._handle is None:
            return self._eager_s
        in_graphs = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.float64)
        return self._eager_s + float(in_graphs)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Batches that this thread asks for are counted; functions traced here always do it."""
        before = getattr(self._thread, "listens", False)
        self._thread.listens = True
        try:
            yield
        finally:
            self._thread.listens = before

    def fetch(self, original: Callable[[], Any]) -> Any:
        """What `original` returns, an iterator's next element."""
        if not getattr(self._thread, "listens", False):
            return original()
        if tf.executing_eagerly():
            began_s = time.perf_counter()
            element = original()
            self._eager_s += time.perf_counter() - began_s
            return element
        if is_op_determinism():
            return original()  # TensorFlow then refuses to read a clock, as exact mode has it.
        with tf.device("CPU:0"):
            before = tf.timestamp()
        with tf.control_dependencies([before]):
            element = original()
        leaves = tf.nest.flatten(element, expand_composites=True)
        there = [leaf.op for leaf in leaves if isinstance(leaf, tf.Tensor)]
        with tf.control_dependencies(there), tf.device("CPU:0"):
            after = tf.timestamp()
            tf.raw_ops.AssignAddVariableOp(resource=self._variable(), value=after - before)
        # Or a worker with one thread would run the step first, and look at the clock then.
        with tf.control_dependencies([after]):
            return tf.nest.map_structure(_same, element, expand_composites=True)

    def _variable(self) -> Any:
        if self._handle is None:
            # Raw ops: a tf.Variable would be one of the strategy that is in scope.
            with tf.init_scope(), tf.device("CPU:0"):
                self._handle = tf.raw_ops.VarHandleOp(
                    dtype=tf.float64, shape=[], shared_name=_VARIABLE
                )
                zero = tf.zeros([], tf.float64)
                tf.raw_ops.AssignVariableOp(resource=self._handle, value=zero)
        return self._handle


def _same(leaf: Any) -> Any:
    return tf.identity(leaf) if isinstance(leaf, tf.Tensor) else leaf


OF_PROCESS = InputTimes()


def integrate() -> None:
    """Look on where TensorFlow's iterators hand out their elements."""
    wrap_next(OF_PROCESS.fetch)
