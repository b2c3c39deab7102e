"""Keras's variables on ps tasks: in several parts, added to by several workers, looked up in place.

What Keras does with a variable works on one process's memory: it reads a whole table to
take some rows of it, and adds by reading, adding and writing. On a ps, rows are taken and
added there, and a variable in parts is one variable of Keras's, whose slots in an optimizer
are in the same parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.strategies import locks, shards
from drumbeat.strategies.parameter_server import ParameterServerStrategy
from drumbeat.tf_internals import CompositeTensorGradient
from drumbeat.training.coordinated import views


def integrate() -> None:
    """Put this under Keras's variables."""
    touch.wrap(touch.VARIABLE_INITIALIZE, _initialize)
    touch.wrap(touch.VARIABLE_ASSIGN_ADD, _adding("assign_add"))
    touch.wrap(touch.VARIABLE_ASSIGN_SUB, _adding("assign_sub"))
    touch.wrap(touch.VARIABLE_KEY, _var_key)
    touch.wrap(touch.TAKE, _take)


def is_on_ps(variable: Any) -> bool:
    """Whether the value of a Keras variable is on ps tasks."""
    value = getattr(variable, "_value", None)
    if isinstance(value, tf.Tensor) or not hasattr(value, "assign"):
        return False
    return isinstance(getattr(value, "_distribute_strategy", None), ParameterServerStrategy)


# Variables in parts ---------------------------------------------------------------


class _Handles(tf.__internal__.CompositeTensor):
    """What a gradient is taken with respect to: the parts, of which each has a handle."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable

    @property
    def _type_spec(self) -> Any:
        raise NotImplementedError("stands for a variable only where gradients are taken")

    @property
    def __composite_gradient__(self) -> Any:
        return _GradientOfParts()


class _GradientOfParts(CompositeTensorGradient):
    def get_gradient_components(self, value: Any) -> Any:
        return [part.handle for part in shards.parts_of(value.variable)]

    def replace_gradient_components(self, value: Any, component_grads: Any) -> Any:
        return shards.join(list(component_grads), shards.starts_of(value.variable))


class ShardedKerasVariable(keras.Variable):
    """A variable of Keras's whose value is in several parts, cut along its first axis.

    Outwardly it is a variable like any other: it has the shape of the whole, is read, assigned
    and saved as a whole, and a gradient with respect to it is one tensor, or one
    `tf.IndexedSlices` with row numbers of the whole. While an optimizer updates a part of it,
    it stands for that part, see `strategies.shards`.
    """

    def _part(self) -> Any:
        number = shards.current()
        return None if number is None else shards.parts_of(self._value)[number]

    @property
    def value(self) -> Any:
        """The part at hand, or all of it; a tensor where it is to be cast."""
        part = self._part()
        return self._maybe_autocast(self._value if part is None else part)

    @property
    def shape(self) -> Any:
        """Of the part at hand, or of the whole."""
        part = self._part()
        return tf.TensorShape(self._shape) if part is None else part.shape

    @property
    def handle(self) -> Any:
        """What gradients are taken with respect to."""
        part = self._part()
        return _Handles(self._value) if part is None else part.handle

    def _direct_assign(self, value: Any) -> None:
        if views.took(self, value):
            return
        part = self._part()
        own: Any = self._value
        (own if part is None else part).assign(tf.cast(value, own.dtype))

    def numpy(self) -> np.ndarray:
        """All of it, shape `shape`."""
        return np.concatenate([part.numpy() for part in shards.parts_of(self._value)])

    def __array__(self, dtype: Any = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        # As one tensor, so that a checkpoint fits variables in other parts, or in none.
        return {"VARIABLE_VALUE": tf.convert_to_tensor(self._value)}

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        own: Any = self._value
        own.assign(tf.ensure_shape(restored_tensors["VARIABLE_VALUE"], self._shape))
        return own

    def __getitem__(self, idx: Any) -> Any:
        return tf.convert_to_tensor(self.value)[idx]


def _initialize(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize(self: Any, value: Any) -> None:
        original(self, value)
        if shards.is_sharded(self._value):
            self.__class__ = ShardedKerasVariable

    return initialize


def _var_key(original: Callable[..., Any]) -> Callable[..., Any]:
    def var_key(self: Any, variable: Any) -> Any:
        return original(self, variable if shards.current() is None else shards.whole_of(variable))

    return var_key


# Reads and updates ----------------------------------------------------------------


def _take(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(x: Any, indices: Any, axis: Any = None) -> Any:
        if axis != 0 or not isinstance(x, keras.Variable) or not is_on_ps(x):
            return original(x, indices, axis=axis)
        table = x.value
        if isinstance(table, tf.Tensor) or isinstance(indices, tf.SparseTensor):
            return original(x, indices, axis=axis)
        if isinstance(indices, tf.RaggedTensor):
            return indices.with_values(take(x, indices.values, axis=0))
        indices = tf.convert_to_tensor(indices)
        rows = tf.constant(int(x.shape[0]), indices.dtype)
        # Keras counts negative ones from the end.
        indices = tf.where(indices < 0, indices + rows, indices)
        if not shards.is_sharded(table):
            return table.sparse_read(indices)
        return _look_up(table, indices)

    return take


def _look_up(table: Any, indices: Any) -> Any:
    """Rows of a table in parts, each taken where its part is.

    Raises at run time:
        tf.errors.InvalidArgumentError: There is no such row.
    """
    starts = shards.starts_of(table)
    flat = tf.reshape(indices, [-1])
    limit = tf.constant(starts[-1], indices.dtype)
    fits = tf.debugging.Assert(
        tf.reduce_all((flat >= 0) & (flat < limit)),
        [
            f"row numbers outside of the table's {starts[-1]} rows, the largest:",
            tf.reduce_max(flat),
        ],
    )
    with tf.control_dependencies([] if fits is None else [fits]):
        flat = tf.identity(flat)
    owner = tf.searchsorted(tf.constant(starts[1:-1], flat.dtype), flat, side="right")
    count = len(starts) - 1
    numbers = tf.dynamic_partition(flat, owner, count)
    places = tf.dynamic_partition(tf.range(tf.size(flat)), owner, count)
    rows = [
        part.sparse_read(numbers[i] - tf.constant(starts[i], flat.dtype))
        for i, part in enumerate(shards.parts_of(table))
    ]
    shape = table.shape[1:]
    together = tf.dynamic_stitch(places, rows)
    result = tf.reshape(together, tf.concat([tf.shape(indices), shape], 0))
    result.set_shape(indices.shape.concatenate(shape))
    return result


def _adding(name: str) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def add(self: Any, value: Any) -> Any:
            variable = _to_add_to(self)
            if variable is None:
                return original(self, value)
            # An optimizer counts an update that has been made; nothing else makes it wait.
            with locks.after_updates():
                getattr(variable, name)(tf.cast(value, variable.dtype))
            return tf.convert_to_tensor(variable)

        return add

    return make


def _to_add_to(variable: Any) -> Any:
    """TensorFlow's variable on the ps tasks, if that is what is to be added to; else None."""
    if touch.in_stateless_scope():
        return None
    owner = views.owner_of(variable)
    if owner is None and is_on_ps(variable):
        # A tensor where it is cast for mixed precision.
        owner = None if isinstance(variable.value, tf.Tensor) else variable.value
    return owner
