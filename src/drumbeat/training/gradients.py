"""Losses and gradients: the mean over the global batch, whoever holds its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.collectives.compression.residuals import Owner
from drumbeat.training import compiled, current, local_sgd, loss_parts, row_marks
from drumbeat.training.keras_loops import warn_of_a_loop_alone

_reduced = threading.local()


def integrate() -> None:
    """Put the weights into Keras's losses and the sum over workers before its optimizers."""
    touch.wrap(touch.SCALE_LOSS, _scale)
    touch.wrap(touch.UNSCALE_LOSS, _unscale)
    touch.wrap(touch.REDUCE_VALUES, _reduce_values)
    touch.wrap(touch.APPLY_MASK, _apply_mask)
    touch.wrap(touch.OPTIMIZER_APPLY, _apply)
    touch.wrap(touch.LOSS_SCALE_APPLY, _apply)
    touch.wrap(touch.OPTIMIZER_INIT, _optimizer_init)
    touch.wrap(touch.OPTIMIZER_ALL_REDUCE, _all_reduce)


def _scale(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale_loss_for_distribution(value: Any) -> Any:
        strategy = current.in_replica()
        if strategy is None:
            return original(value)
        if not loss_parts.is_part():
            return value
        return value * strategy.extended.loss_fraction(value.dtype)

    return scale_loss_for_distribution


def _unscale(original: Callable[..., Any]) -> Callable[..., Any]:
    def unscale_loss_for_distribution(value: Any) -> Any:
        strategy = current.in_replica()
        if strategy is None:
            return original(value)
        if value.shape.rank != 0:
            return value  # Losses of single rows (reduction "none") haven't been scaled.
        # Without rows the loss is 0 and so is its weight in the metric.
        return tf.math.divide_no_nan(value, strategy.extended.loss_fraction(value.dtype))

    return unscale_loss_for_distribution


_MEANS = ("sum_over_batch_size", "mean")
_SUMS = (*_MEANS, "mean_with_sample_weight", "sum")


def _reduce_values(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_values(
        values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
    ) -> Any:
        strategy = current.in_replica()
        if strategy is None:
            return original(values, sample_weight, reduction)
        if strategy.extended.absent is not None:
            # Through moments taken over all workers, a row that stands in for none would
            # reach the gradients of the others. What such a worker makes of everyone's rows counts
            # for nothing.
            absent = row_marks.alike(strategy.extended.absent)
            values = tf.where(absent, tf.zeros_like(values), values)
        is_of_all = strategy.extended.local_sgd is None
        if is_of_all and reduction == "mean_with_sample_weight" and sample_weight is not None:
            weight = strategy.extended.total(tf.reduce_sum(tf.cast(sample_weight, values.dtype)))
            part = tf.math.divide_no_nan(tf.reduce_sum(values), weight)
            if loss_parts.is_part():
                return part
            return tf.math.divide_no_nan(part, strategy.extended.loss_fraction(part.dtype))
        if values.shape.rank == 1 and values.shape[0] == 0 and reduction in _SUMS:
            # Keras would return it as it is, and other workers have a number.
            return tf.reduce_sum(values)
        loss = original(values, sample_weight, reduction)
        if values.shape.rank == 0 and reduction in _SUMS[:-1] and loss_parts.is_part():
            # A loss function that has taken the mean over its rows itself.
            return loss * strategy.extended.loss_fraction(loss.dtype)
        return loss

    return reduce_values


def _apply_mask(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        strategy = current.in_replica()
        if strategy is None or mask is None or reduction not in _MEANS:
            return original(sample_weight, mask, dtype, reduction)
        if strategy.extended.local_sgd is not None:
            return original(sample_weight, mask, dtype, reduction)
        # Keras weights what the mask lets pass so that the mean over all entries is the
        # mean over those. How many pass is a number of the global batch.
        mask = tf.cast(mask, dtype)
        passing = strategy.extended.total(tf.reduce_sum(mask))
        here = tf.size(mask, out_type=tf.int64)
        whole = tf.math.divide_no_nan(tf.cast(here, dtype), strategy.extended.loss_fraction(dtype))
        of_each = row_marks.alike(tf.math.divide_no_nan(whole, passing))
        return original(sample_weight, mask, dtype, "sum") * of_each

    return apply_mask


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if getattr(_reduced, "depth", 0):
            return original(self, grads, trainable_variables)
        current.adopt_optimizer(self, tf.distribute.get_strategy())
        strategy = current.in_replica()
        if strategy is None:
            if not tf.distribute.has_strategy():
                warn_of_a_loop_alone()
            return original(self, grads, trainable_variables)
        grads, owner = list(grads), None

        def update(sums: list[Any]) -> Any:
            return compiled.update(
                lambda each: with_reduced(original, self, each, trainable_variables), sums
            )

        if strategy.extended.local_sgd is not None:
            return local_sgd.step(self, trainable_variables, grads, update, strategy)
        if strategy.extended.gradient_sync.compression is not None:
            owner = _owner(self, trainable_variables, len(grads))
        return strategy.extended.update_once(grads, update, of=owner)

    return apply


def _optimizer_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has what a script's own class does to gradients done to the sums."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        own = [each for each in type(self).__mro__ if not touch.is_keras_own(each)]
        touch.replace_methods(own, {"apply": _apply, "apply_gradients": _apply_gradients})

    return init


def _apply_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_reduced, "depth", 0) or current.in_replica() is None:
            return original(self, grads_and_vars, *args, **kwargs)
        grads, variables = zip(*grads_and_vars, strict=True)

        def apply(self: Any, grads: Any, trainable_variables: Any) -> None:
            original(self, list(zip(grads, trainable_variables, strict=True)), *args, **kwargs)

        _apply(apply)(self, grads, variables)
        return self.iterations

    return apply_gradients


def _owner(optimizer: Any, variables: Any, count: int) -> Owner:
    """Whose gradients they are that `optimizer` gets."""
    variables = touch.trained_by(optimizer) if variables is None else list(variables)
    paths = tuple(str(getattr(v, "path", v.name)) for v in variables)
    scale = None
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        if not optimizer.built:
            # As its `apply` would do next.
            with keras.name_scope(optimizer.name):
                optimizer.build(variables)
        scale = tf.convert_to_tensor(optimizer.dynamic_scale)
    # Keras says it better where there are not as many.
    names = paths if len(paths) == count else tuple(map(str, range(count)))
    return Owner(optimizer, names, scale)


def with_reduced(original: Callable[..., Any], *args: Any) -> Any:
    """What `original` returns for gradients that have been summed over the workers."""
    _reduced.depth = 1
    try:
        return original(*args)
    finally:
        _reduced.depth = 0


def _all_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        if getattr(_reduced, "depth", 0):
            return grads_and_vars
        return original(self, grads_and_vars)

    return all_reduce_sum_gradients
