"""Methods and attributes of old on Keras's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import legacy_names as names
from drumbeat.errors import ConfigError
from drumbeat.training.legacy.notice import tell, users_only

_CLASSES = {
    "Metric": keras.metrics.Metric,
    "Model": keras.Model,
    "Optimizer": keras.optimizers.Optimizer,
}


def install_on_strategies() -> None:
    """Give tf.distribute's strategies their old methods, whichever Keras there is."""
    for name, new in names.RENAMED.items():
        kind, _, last = name.partition(".")
        if kind == "Strategy":
            setattr(tf.distribute.Strategy, last, _alias(name, new))
    tf.distribute.Strategy.experimental_make_numpy_dataset = _numpy_dataset


def install() -> None:
    """Give the classes their old methods."""
    install_on_strategies()
    for name, new in names.RENAMED.items():
        kind, _, last = name.partition(".")
        if kind == "Strategy":
            continue
        if last in names.GENERATORS:
            setattr(_CLASSES[kind], last, _generator(name, new))
        elif name == "Optimizer.lr":
            setattr(_CLASSES[kind], last, _alias_property(name, new))
        elif name != "Metric.reset_states":
            setattr(_CLASSES[kind], last, _alias(name, new))
    _reset_states(keras.metrics.Metric)
    keras.Model.reset_states = _reset_model
    optimizer = keras.optimizers.Optimizer
    optimizer.minimize = _minimize
    optimizer.weights = property(_optimizer_weights)
    optimizer.get_weights = _get_weights
    optimizer.apply_gradients = _apply_gradients(optimizer.apply_gradients)
    keras.Sequential.predict_classes = _predict_classes
    keras.Sequential.predict_proba = _predict_proba
    keras.layers.Layer.input_shape = _Shape("input")
    keras.layers.Layer.output_shape = _Shape("output")


def _alias(name: str, new: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        tell(names.renamed(name))
        return getattr(self, new)(*args, **kwargs)

    return method


def _generator(name: str, new: str) -> Callable[..., Any]:
    """`fit_generator` and the like: other names, another order."""
    positions = names.GENERATORS[name.rpartition(".")[2]]

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        tell(names.renamed(name))
        given = {**dict(zip(positions, args, strict=False)), **kwargs}
        return getattr(self, new)(given.pop("generator"), **given)

    return method


def _reset_model(self: Any) -> None:
    tell(names.MODEL_RESET_STATES)
    waiting = list(self.layers)
    while waiting:
        layer = waiting.pop()
        waiting.extend(getattr(layer, "layers", ()))
        if getattr(layer, "stateful", False):
            layer.reset_state()


def _alias_property(name: str, new: str) -> property:
    def get(self: Any) -> Any:
        users_only(name)
        tell(names.renamed(name))
        return getattr(self, new)

    def put(self: Any, value: Any) -> None:
        tell(names.renamed(name))
        setattr(self, new, value)

    return property(get, put)


def _reset_states(metric: Any) -> None:
    """A script may call it, and its own metrics may define it; Keras calls `reset_state`."""
    original = metric.reset_state

    def reset_states(self: Any) -> None:
        tell(names.renamed("Metric.reset_states"))
        # Called from a reset_states of the script's own, it is that one's base.
        original(self) if getattr(self, "_in_reset_states", False) else self.reset_state()

    def reset_state(self: Any) -> None:
        own = type(self).reset_states
        if own is reset_states or getattr(self, "_in_reset_states", False):
            original(self)
            return
        tell(names.renamed("Metric.reset_states"))
        object.__setattr__(self, "_in_reset_states", True)
        try:
            own(self)
        finally:
            object.__setattr__(self, "_in_reset_states", False)

    metric.reset_states = reset_states
    metric.reset_state = reset_state


def _minimize(self: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
    tell(names.MINIMIZE)
    if callable(loss):
        with tf.GradientTape() as tape:
            if not callable(var_list):
                tape.watch(var_list)
            value = loss()
            if callable(var_list):
                var_list = var_list()
    elif tape is None:
        raise ConfigError(
            "Optimizer.minimize got a loss that is no function, and no tape; expected a function, "
            "or tape= that has recorded it."
        )
    else:
        value = loss
    gradients = tape.gradient(value, var_list, grad_loss)
    return self.apply_gradients(zip(gradients, var_list, strict=True))


def _optimizer_weights(self: Any) -> list[Any]:
    users_only("weights")
    tell(names.OPTIMIZER_WEIGHTS)
    return list(self.variables)


def _get_weights(self: Any) -> list[Any]:
    tell(names.OPTIMIZER_WEIGHTS)
    return [np.array(variable) for variable in self.variables]


def _apply_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        old = ("experimental_aggregate_gradients", "skip_gradients_aggregation")
        given = {name: kwargs.pop(name) for name in old if name in kwargs}
        if given:
            tell(names.AGGREGATE)
            summed = not given.get(old[0], True) or bool(given.get(old[1], False))
            if summed and tf.distribute.get_strategy().num_replicas_in_sync > 1:
                raise ConfigError(
                    f"apply_gradients got {given}: the gradients are summed over the workers "
                    "already. Keras 3 sums them itself and can't be told not to. Hand over the "
                    "worker's own gradients, and leave out the all_reduce and the argument."
                )
        return original(self, grads_and_vars, *args, **kwargs)

    return apply_gradients


def _predict_classes(self: Any, x: Any, batch_size: int = 32, verbose: int = 0) -> Any:
    tell(names.PREDICT_CLASSES)
    found = self.predict(x, batch_size=batch_size, verbose=verbose)
    return found.argmax(axis=-1) if found.shape[-1] > 1 else (found > 0.5).astype("int32")


def _predict_proba(self: Any, x: Any, batch_size: int = 32, verbose: int = 0) -> Any:
    tell(names.PREDICT_PROBA)
    return self.predict(x, batch_size=batch_size, verbose=verbose)


class _Shape:
    """`layer.output_shape`, unless the layer itself has such an attribute."""

    def __init__(self, end: str) -> None:
        self._end = end

    def __get__(self, layer: Any, owner: Any = None) -> Any:
        if layer is None:
            return self
        users_only(f"{self._end}_shape")  # Keras looks whether a layer has its own
        tensors = getattr(layer, self._end)
        tell(names.LAYER_SHAPES)
        return keras.tree.map_structure(lambda tensor: tensor.shape, tensors)


def _numpy_dataset(self: Any, numpy_input: Any, session: Any = None) -> Any:
    del self, session
    tell(names.NUMPY_DATASET)
    return tf.data.Dataset.from_tensor_slices(numpy_input)
