"""Losses and gradients of tf_keras: the mean over the global batch, whoever holds its rows."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from drumbeat import tf_keras_internals as touch
from drumbeat.collectives.compression.residuals import Owner
from drumbeat.keras_internals import is_keras_own, replace_methods
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.tf_internals import unconverted
from drumbeat.training import added_losses, current, divergence, loss_parts, whole_batch


class _Here(threading.local):
    reduced = False
    """The gradients that an optimizer gets are sums already."""


_here = _Here()


def integrate() -> None:
    """Put the weights into losses, and the sum over workers before optimizers."""
    touch.wrap(touch.SCALE_LOSS, _scale)
    touch.wrap(touch.REDUCE_LOSS, _reduce)
    touch.wrap(touch.VALID_MASK, _valid_mask)
    touch.wrap(touch.COMPILED_LOSS, _compiled_loss)
    touch.wrap(touch.LOSS, _loss)
    touch.wrap(touch.LOSS_REDUCTION, _reduction)
    touch.wrap(touch.MEAN_OF_FUNCTION, _metric)
    touch.wrap(touch.MEAN_UPDATE, _mean_update)
    touch.wrap(touch.OPTIMIZER_APPLY, _apply("skip_gradients_aggregation"))
    touch.wrap(touch.LOSS_SCALE_APPLY, _apply("skip_gradients_aggregation"))
    for old in (touch.LEGACY_APPLY, touch.LEGACY_LOSS_SCALE_APPLY):
        touch.wrap(old, _apply("experimental_aggregate_gradients"))
    for init in (touch.OPTIMIZER_INIT, touch.LEGACY_INIT):
        touch.wrap(init, _optimizer_init)
    touch.wrap(touch.LOSS_SCALING_SUPPORT, _support)


def _scale(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale_loss_for_distribution(loss_value: Any) -> Any:
        strategy = current.in_replica()
        if strategy is None:
            return original(loss_value)
        return loss_value * strategy.extended.loss_fraction(loss_value.dtype)

    return scale_loss_for_distribution


def _reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_weighted_loss(weighted_losses: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.in_replica()
        absent = None if strategy is None else strategy.extended.absent
        if absent is not None:
            # Through moments taken over all workers, a row that stands in for none would
            # reach the gradients of the others.
            weighted_losses = tf.where(absent, tf.zeros_like(weighted_losses), weighted_losses)
        return original(weighted_losses, *args, **kwargs)

    return reduce_weighted_loss


def _valid_mask(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_valid_mask(losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
        strategy = current.in_replica()
        if strategy is None or mask is None or reduction not in ("auto", "sum_over_batch_size"):
            return original(losses, sw, mask, reduction)
        # It weights what the mask lets pass so that the mean over all entries is the mean over
        # those. How many pass is a number of the global batch.
        extended = strategy.extended
        mask = tf.cast(mask, losses.dtype)
        passing = extended.total(tf.reduce_sum(mask))
        here = tf.cast(tf.size(mask), mask.dtype)
        whole = tf.math.divide_no_nan(here, extended.loss_fraction(mask.dtype))
        return original(losses, sw, mask * tf.math.divide_no_nan(whole, passing), "sum")

    return apply_valid_mask


def _compiled_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.in_replica()
        if strategy is None:
            return original(self, *args, **kwargs)
        added = kwargs.get("regularization_losses")
        if added:
            kwargs["regularization_losses"] = [added_losses.as_a_mean(loss) for loss in added]
        # A loss that is a sum is shown times the number of replicas, as if all had as many rows.
        whole = strategy.extended.counted_as(_Whole(strategy))
        with whole, loss_parts.called(loss_parts.COMPILED):
            return original(self, *args, **kwargs)

    return call


class _Whole:
    """What a value of this replica's rows is multiplied with to be that of the global batch."""

    def __init__(self, strategy: DataParallelStrategy) -> None:
        self._strategy = strategy

    def __rmul__(self, value: Any) -> Any:
        fraction = self._strategy.extended.loss_fraction(value.dtype)
        return tf.math.divide_no_nan(value, fraction)


def _loss(original: Callable[..., Any]) -> Callable[..., Any]:
    @unconverted
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.in_replica()
        if strategy is None:
            return original(self, *args, **kwargs)
        with strategy.extended.counted_as(None), loss_parts.computed(self) as place:
            given = _whole(self, *args, **kwargs) if place.is_compiled else None
            if given is None:
                return original(self, *args, **kwargs)
            with current.as_one_worker(strategy):
                loss = original(self, *given)
            if loss_parts.is_mean(self):
                return loss  # Its part is taken from what it returns.
            return loss * strategy.extended.loss_fraction(loss.dtype)

    return call


def _whole(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> list[Any] | None:
    """What a loss is given of the global batch, None where its own rows do."""
    strategy = current.with_whole_batches()
    if strategy is None or _has_parts(y_true, y_pred):
        return None
    if not whole_batch.loss_mixes_rows(loss, y_true, y_pred, strategy):
        return None
    given = [y_true, y_pred] if sample_weight is None else [y_true, y_pred, sample_weight]
    return whole_batch.everyones(given, strategy)


def _has_parts(*given: Any) -> bool:
    """Whether there are tensors among these that consist of several, as ragged ones do."""
    return any(isinstance(each, tf.RaggedTensor | tf.SparseTensor) for each in given)


def _reduction(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_reduction(self: Any) -> Any:
        strategy = current.at_hand()
        if strategy is None or not strategy.extended.adopts:
            return original(self)
        # The script knows of no strategy, under which Keras wants means to be taken by hand.
        before, self._allow_sum_over_batch_size = self._allow_sum_over_batch_size, True
        try:
            return original(self)
        finally:
            self._allow_sum_over_batch_size = before

    return get_reduction


def _metric(original: Callable[..., Any]) -> Callable[..., Any]:
    @tf.autograph.experimental.do_not_convert
    def update_state(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        weights = [] if sample_weight is None else [sample_weight]
        if _has_parts(y_true, y_pred):
            return original(self, y_true, y_pred, *weights)
        given = [tf.cast(each, self.dtype) for each in (y_true, y_pred)]
        return whole_batch.counted_of_all(original, self, [*given, *weights])

    return update_state


def _mean_update(original: Callable[..., Any]) -> Callable[..., Any]:
    return tf.autograph.experimental.do_not_convert(whole_batch.mean_update(original))


_SKIPS = {"skip_gradients_aggregation": True, "experimental_aggregate_gradients": False}
"""Arguments of `apply_gradients`, and with what they say not to sum."""


def _apply(argument: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes an `apply_gradients` of Keras's own, which has `argument`, one of `_SKIPS`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def sums_are_given(*args: Any, **kwargs: Any) -> Any:
            others = {name: value for name, value in kwargs.items() if name not in _SKIPS}
            bound = signature.bind(*args, **others)
            bound.arguments[argument] = _SKIPS[argument]
            return original(*bound.args, **bound.kwargs)

        return _summed(original, sums_are_given)

    return make


def _optimizer_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has what a script's own class does to gradients done to the sums."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        own = [each for each in type(self).__mro__ if not is_keras_own(each)]
        replace_methods(own, {"apply_gradients": lambda method: _summed(method, method)})

    return init


def _summed(original: Callable[..., Any], update_by: Callable[..., Any]) -> Callable[..., Any]:
    """An `apply_gradients` that gives the sums over the workers to `update_by`.

    Args:
        original: What it stands for, called where the caller wants no sums.
        update_by: Takes the same arguments, and makes no sums.
    """

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if _here.reduced:
            return update_by(self, grads_and_vars, *args, **kwargs)
        current.adopt_optimizer(self, tf.distribute.get_strategy())
        strategy = current.in_replica()
        if strategy is None or _is_told_not_to(original, (self, grads_and_vars, *args), kwargs):
            return original(self, grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]

        def update(sums: list[Any]) -> Any:
            with _with_reduced():
                given = list(zip(sums, variables, strict=True))
                return update_by(self, given, *args, **kwargs)

        owner = _owner(self, variables, strategy)
        return strategy.extended.update_once([grad for grad, _ in pairs], update, of=owner)

    return apply_gradients


def _is_told_not_to(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether arguments of an `apply_gradients` say not to sum.

    Optimizers take the argument of those of old as well, which says the contrary.
    """
    bound = inspect.signature(function).bind(*args, **kwargs).arguments
    given = {**bound, **kwargs}
    return any(given.get(argument) is skips for argument, skips in _SKIPS.items())


@contextlib.contextmanager
def _with_reduced() -> Iterator[None]:
    _here.reduced = True
    try:
        yield
    finally:
        _here.reduced = False


def _owner(optimizer: Any, variables: list[Any], strategy: DataParallelStrategy) -> Owner | None:
    """Whose gradients they are that `optimizer` gets, where they are compressed."""
    if strategy.extended.gradient_sync.compression is None:
        return None
    scale = None
    if getattr(optimizer, "dynamic", False):
        scale = tf.convert_to_tensor(optimizer.loss_scale)
    return Owner(optimizer, tuple(divergence.path_of(v) for v in variables), scale)


def _support(original: Callable[..., Any]) -> Callable[..., Any]:
    def strategy_supports_loss_scaling() -> bool:
        is_ours = isinstance(tf.distribute.get_strategy(), DataParallelStrategy)
        return is_ours or original()

    return strategy_supports_loss_scaling
