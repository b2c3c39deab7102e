"""Runs a Python function as an op: eagerly, or in a graph, in program order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Body = Callable[..., list[Any]]

_token_numbers = itertools.count()


class Bridge:
    """Calls Python from TensorFlow, one call after the other in program order.

    TensorFlow keeps stateful operations that use no resource in order among
    themselves, but not relative to calls of functions and loops that use one,
    such as a variable. It orders all that use the same resource: so each call reads
    a counter before and writes it after, and the next one reads what this one wrote.
    """

    def __init__(self, *, on_device: bool) -> None:
        """Stores how values cross over.

        Args:
            on_device: True gives the Python function eager tensors, wherever
                they are; False gives NumPy arrays that share the memory of
                tensors on the CPU (read only, and only until it returns).
        """
        self._on_device = on_device
        self._token: Any = None

    def __call__(
        self, body: Body, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        """Runs `body(*inputs)` and returns its results as tensors.

        Args:
            body: Gets arrays or eager tensors and returns a list as long as `outputs`.
            inputs: What it gets.
            outputs: Dtype and, as far as it is known, shape of each result.
        """
        if self._on_device:
            # A gradient through here would be wrong: the strategy defines its own.
            # Arrays have none anyway, and each operation costs.
            inputs = [tf.stop_gradient(tensor) for tensor in inputs]
        if tf.executing_eagerly():
            args = inputs if self._on_device else [tensor.numpy() for tensor in inputs]
            return [tf.convert_to_tensor(result) for result in body(*args)]
        return self._in_graph(body, inputs, outputs)

    def _in_graph(
        self, body: Body, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        token = self._get_token()
        order = tf.raw_ops.ReadVariableOp(resource=token, dtype=tf.int64)

        def run(*args: Any) -> list[Any]:
            # A result that a graph can wait for, where the body returns nothing.
            return body(*args) or [0]

        dtypes = [spec.dtype for spec in outputs]
        wrap = tf.py_function if self._on_device else tf.numpy_function
        with tf.control_dependencies([order]):
            results = wrap(run, list(inputs), dtypes or [tf.int64])
        with tf.control_dependencies([results[0]]):
            tf.raw_ops.AssignAddVariableOp(resource=token, value=tf.ones([], tf.int64))
        results = results[: len(dtypes)]
        for result, spec in zip(results, outputs, strict=True):
            result.set_shape(spec.shape)
        return results

    def _get_token(self) -> Any:
        token = self._token
        if token is None:
            # Raw ops: a tf.Variable would pass through the variable creators of
            # the strategy in scope, which call this very communicator.
            with tf.init_scope(), tf.device("/device:CPU:0"):
                token = tf.raw_ops.VarHandleOp(
                    dtype=tf.int64,
                    shape=[],
                    shared_name=f"drumbeat_collective_order_{next(_token_numbers)}",
                )
                tf.raw_ops.AssignVariableOp(resource=token, value=tf.zeros([], tf.int64))
                self._token = token
        return token
