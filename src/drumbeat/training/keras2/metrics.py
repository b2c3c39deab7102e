"""Metrics of tf_keras that workers count separately, made one: see `training.state_sync`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from drumbeat import tf_keras_internals as touch
from drumbeat.tf_internals import unconverted
from drumbeat.training import current, divergence, shard_state, state_sync


def integrate() -> None:
    """Make the results at the end of an epoch or evaluation those of all workers."""
    touch.wrap(touch.EPOCH_RESULT, _epoch_result)
    touch.wrap(touch.METRIC_UPDATE, _updates)
    touch.wrap(touch.METRIC_RESULT, _results)
    touch.wrap(touch.METRIC_INIT, _metric_init)
    touch.wrap(touch.METRIC_WEIGHT, _add_weight)


def _epoch_result(original: Callable[..., Any]) -> Callable[..., Any]:
    def validate_and_get_metrics_result(self: Any, logs: Any) -> Any:
        strategy = current.of_model(self)
        if strategy is None:
            return original(self, logs)
        divergence.average_drifted(self, strategy)
        with state_sync.as_they_are():
            local = _numbers(self.get_metrics_result())
        with state_sync.combined(self.metrics, strategy):
            whole = _numbers(self.get_metrics_result())
        if isinstance(logs, dict) and logs.keys() == whole.keys():
            return whole
        return state_sync.own_logs(logs, local, whole, strategy)

    return validate_and_get_metrics_result


def _numbers(results: dict[str, Any]) -> dict[str, Any]:
    """As Keras 2 shows results. Copies: a metric may return its variable, which changes."""
    arrays = {
        name: tf.convert_to_tensor(result).numpy().copy()
        for name, result in state_sync.by_name(results).items()
    }
    return {name: array if array.ndim else array.item() for name, array in arrays.items()}


def _updates(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state_wrapper(update_state_fn: Callable[..., Any]) -> Callable[..., Any]:
        update = original(update_state_fn)

        def update_state(metric: Any, *args: Any, **kwargs: Any) -> Any:
            strategy = current.in_replica()
            absent = None if strategy is None else strategy.extended.absent
            if absent is None:
                return update(metric, *args, **kwargs)
            kept = [(v, tf.identity(v)) for v in metric.variables]
            result = update(metric, *args, **kwargs)
            for variable, value in kept:
                variable.assign(tf.where(absent, value, variable))
            return result

        return unconverted(update_state)

    return update_state_wrapper


def _results(original: Callable[..., Any]) -> Callable[..., Any]:
    def result_wrapper(result_fn: Callable[..., Any]) -> Callable[..., Any]:
        result_of = original(result_fn)

        def result(metric: Any, *args: Any) -> Any:
            strategy = current.of_metric(metric)
            if strategy is None or state_sync.is_combined() or current.in_replica() is not None:
                return result_of(metric, *args)
            with state_sync.combined([metric], strategy, f"result of metric {metric.name}"):
                return tf.nest.map_structure(tf.identity, result_of(metric, *args))

        return unconverted(result)

    return result_wrapper


def _metric_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        state_sync.remember_resets(type(self))
        strategy = current.at_hand()
        if strategy is not None:
            current.count_under(self, strategy)

    return init


def _add_weight(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        variable = original(self, *args, **kwargs)
        given = kwargs.get("initializer", args[4] if len(args) > 4 else None)
        initializer: Any = tf_keras.initializers.get(given)
        if initializer is not None and not isinstance(initializer, _ZEROS):
            start = functools.partial(initializer, variable.shape, variable.dtype)
            setattr(variable, shard_state.START, start)
        return variable

    return add_weight


_ZEROS = (tf_keras.initializers.Zeros, tf.zeros_initializer)
