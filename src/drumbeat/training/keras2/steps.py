"""Steps of tf_keras's loops in which a worker has no rows, as `training.absence` has them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from drumbeat import tf_keras_internals as touch
from drumbeat.training import absence, current, row_marks

_STEPS = ("train_step", "test_step", "predict_step")


def integrate() -> None:
    """Leave stand-in rows out of the statistics of all workers."""
    touch.wrap(touch.SYNC_MOMENTS, _moments)


def follow(model: Any) -> None:
    """Has the steps of `model` run on a stand-in row where they have none.

    Its class may have steps of its own; what its loops ask for are attributes of the model.
    """
    for name in _STEPS:
        if name not in vars(model):
            # Not by setattr, in which Keras looks for layers and variables to track.
            step = functools.partial(_step, weakref.ref(model), name)
            vars(model)[name] = functools.update_wrapper(step, getattr(type(model), name))


def _step(model_of: Callable[[], Any], name: str, data: Any) -> Any:
    model = model_of()
    step = functools.partial(getattr(type(model), name), model)
    if name == "train_step" and absence.has_always_rows(model):
        return step(row_marks.of_any_number(data))
    outputs, absent = absence.with_rows(functools.partial(_without_trace, model, step), data)
    if absent is None or name != "predict_step":
        return outputs
    return tf.nest.map_structure(lambda leaf: absence.left_out(leaf, absent), outputs)


def _without_trace(model: Any, step: Callable[[Any], Any], data: Any) -> Any:
    """`step`, after which layers' statistics are as before, if the row stands in for none."""
    strategy = current.in_replica()
    absent = None if strategy is None else strategy.extended.absent
    if absent is None:
        return step(data)
    if not model.built:
        # Traced beside, it makes the variables.
        tf.function(step).get_concrete_function(data)
    kept = [(v, tf.identity(v)) for v in model.non_trainable_weights if v.dtype.is_floating]
    outputs = step(data)
    for variable, value in kept:
        # All workers' moments are the same in all, and so is what comes of them.
        if not _is_of_all(model, variable):
            variable.assign(tf.where(absent, value, variable))
    return outputs


def _is_of_all(model: Any, variable: Any) -> bool:
    layers = (layer for layer in touch.all_layers(model) if getattr(layer, "synchronized", False))
    return any(variable is own for layer in layers for own in layer.non_trainable_weights)


def _moments(original: Callable[..., Any]) -> Callable[..., Any]:
    def sync_calculate_mean_and_var(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.in_replica()
        absent = None if strategy is None else strategy.extended.absent
        if absent is not None:
            # Summed over all workers, where no rows add nothing.
            x = tf.cond(absent, lambda: x[:0], lambda: tf.identity(x))
        return original(self, x, *args, **kwargs)

    return sync_calculate_mean_and_var
