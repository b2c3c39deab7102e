"""Metrics that workers count separately, made one."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import current, divergence, local_sgd, shard_state, whole_metrics


def integrate() -> None:
    """Make the results at the end of an epoch or evaluation those of all workers."""
    touch.wrap(touch.EPOCH_RESULT, _epoch_result)
    touch.wrap(touch.COMPILED_LOSS, _compiled_loss)
    touch.wrap(touch.MEAN_UPDATE, _mean_update)
    touch.wrap(touch.METRIC_INIT, _metric_init)
    touch.wrap(touch.METRIC_VARIABLE, _add_variable)


_compiled = threading.local()


def _compiled_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.in_replica()
        _compiled.fraction = None if strategy is None else strategy.extended.loss_fraction
        try:
            return original(self, *args, **kwargs)
        finally:
            _compiled.fraction = None

    return call


def _mean_update(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        # Keras counts each batch's loss once where it doesn't know the number of rows;
        # a worker's part of a batch is that fraction of once.
        fraction = getattr(_compiled, "fraction", None)
        if fraction is not None and sample_weight is None:
            sample_weight = fraction(tf.as_dtype(self.dtype))
        return original(self, values, sample_weight)

    return update_state


def _epoch_result(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        strategy = current.of_model(self)
        if strategy is None:
            return original(self, logs)
        local_sgd.finish(self, strategy)
        divergence.average_drifted(self, strategy)
        with as_they_are():
            variables = [v for metric in self.metrics for v in metric.variables]
            local = shard_state.mean_of_shards(
                lambda: by_name(_read(self.get_metrics_result())),
                variables,
                strategy.extended.replicas.count,
            )
        with combined(self.metrics, strategy):
            result = original(self, logs)
            if result is not logs:
                return _read(result)
            whole = by_name(_read(self.get_metrics_result()))
        if isinstance(logs, dict) and logs.keys() == whole.keys():
            # Keras's own rule, for metrics of which some have several results.
            return whole
        return own_logs(logs, local, whole, strategy)

    return get_metrics_result_or_logs


def _metric_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _replace(type(self).__mro__, {"result": _result, "reset_state": _reset_state})
        own = [each for each in type(self).__mro__ if not touch.is_keras_own(each)]
        _replace(own, {"update_state": whole_metrics.around_update})
        strategy = current.at_hand()
        if strategy is not None:
            current.count_under(self, strategy)

    return init


def remember_resets(cls: type) -> None:
    """Has metrics of a class remember what their variables start from after a reset."""
    _replace(cls.__mro__, {"reset_state": _reset_state})


def _replace(classes: Iterable[type], wrappers: Mapping[str, Callable[..., Any]]) -> None:
    def unconverted(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        return lambda original: tf.autograph.experimental.do_not_convert(wrapper(original))

    touch.replace_methods(classes, {n: unconverted(w) for n, w in wrappers.items()})


def _result(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Metric.result` of all workers, for metrics made under our strategy.

    As TensorFlow's SyncOnRead variables: inside of `strategy.run` it is this
    worker's, outside every worker has to ask for it.
    """

    def result(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.of_metric(self)
        if strategy is None or _combined.depth or current.in_replica() is not None:
            return original(self, *args, **kwargs)
        with combined([self], strategy, f"result of metric {self.name}"):
            return _read(original(self, *args, **kwargs))

    return result


class _Depth(threading.local):
    depth = 0


_combined = _Depth()


def is_combined() -> bool:
    """Whether the caller is within `combined` or `as_they_are`."""
    return _combined.depth > 0


@contextlib.contextmanager
def as_they_are() -> Iterator[None]:
    """Within this, a metric's `result()` is computed from what its variables hold here."""
    _combined.depth += 1
    try:
        yield
    finally:
        _combined.depth -= 1


@contextlib.contextmanager
def combined(
    metrics: Sequence[Any], strategy: DataParallelStrategy, name: str = "metrics"
) -> Iterator[None]:
    """Within this, metrics hold the state of all workers; after it, this worker's again.

    Variables are combined by their `aggregation`. "sum", the default: what the
    workers have added to the value that the variable starts from. "mean": their mean;
    "only_first_replica": the chief's. So the result is what one worker would have
    counted, where a variable adds up what it sees. A metric with a method
    `merge_state(metrics)`, as in Keras 2, is combined by that instead.
    """
    with_merge = list(merging(metrics))
    mergers = {id(variable) for metric in with_merge for variable in metric.variables}
    variables = [v for m in metrics for v in m.variables if id(v) not in mergers]
    added = [v for v in variables if aggregation_of(v) in ("none", "sum", "mean")]
    chiefs = [v for v in variables if aggregation_of(v) == "only_first_replica"]
    merged = [v for metric in with_merge for v in metric.variables]
    local = [tf.identity(tf.convert_to_tensor(v)) for v in (*added, *chiefs, *merged)]
    _add_up(added, strategy, name)
    values: list[Any] = strategy.communicator.broadcast(
        [tf.convert_to_tensor(v) for v in chiefs], name=name
    )
    for variable, value in zip(chiefs, values, strict=True):
        variable.assign(value)
    for metric in with_merge:
        _merge(metric, strategy, name)
    try:
        with as_they_are():
            yield
    finally:
        for variable, value in zip((*added, *chiefs, *merged), local, strict=True):
            variable.assign(value)


def _add_up(variables: Sequence[Any], strategy: DataParallelStrategy, name: str) -> None:
    """Assign to each of `variables` its sum, or mean, over the replicas."""
    if not variables:
        return
    starts = [shard_state.start_of(v) if aggregation_of(v) != "mean" else None for v in variables]
    replicas = strategy.extended.replicas
    added = [
        shard_state.each_shards(v, start, replicas.count)
        for v, start in zip(variables, starts, strict=True)
    ]
    of_each = [list(shard) for shard in zip(*added, strict=True)]
    totals = strategy.extended.sum_over_replicas(of_each, name)
    for variable, start, total in zip(variables, starts, totals, strict=True):
        if aggregation_of(variable) == "mean":
            total = total / replicas.total
        variable.assign(total if start is None else total + start)


def aggregation_of(variable: Any) -> str:
    """How workers' values of a variable of Keras's or TensorFlow's become one."""
    if whole_metrics.has_whole_state(variable):
        return "only_first_replica"
    named = variable.aggregation
    return named if isinstance(named, str) else named.name.lower()


def merging(metrics: Sequence[Any]) -> Iterator[Any]:
    """Those of `metrics`, and of the metrics they hold, that have a `merge_state`."""
    for metric in metrics:
        if _has_own_merge(metric):
            yield metric
        else:
            yield from merging(touch.inner_metrics(metric))


def _has_own_merge(metric: Any) -> bool:
    merge = getattr(metric, "merge_state", None)
    # Those of Keras 2 itself add variables up.
    return callable(merge) and not touch.is_keras_own(merge)


def _merge(metric: Any, strategy: DataParallelStrategy, name: str) -> None:
    """Give `metric` the first replica's state and let it merge those of the others into it."""
    replicas = strategy.extended.replicas
    own = [tf.stack(shard_state.each_shards(v, None, replicas.count)) for v in metric.variables]
    everyones = [strategy.communicator.all_gather(values, name=name) for values in own]
    for variable, values in zip(metric.variables, everyones, strict=True):
        variable.assign(values[0])
    others = range(1, replicas.total)
    merge_into(metric, [[values[number] for values in everyones] for number in others])


def merge_into(metric: Any, others: Sequence[list[Any]]) -> None:
    """Let `metric` merge what other replicas hold in its variables."""
    stand_ins = [_stand_in(metric, values) for values in others]
    with as_they_are():
        metric.merge_state(stand_ins)


def _stand_in(metric: Any, values: list[Any]) -> SimpleNamespace:
    """The metric as another replica has it: its attributes, with `values` as its variables."""
    value_of = {id(v): value for v, value in zip(metric.variables, values, strict=True)}
    own = {key: value_of.get(id(value), value) for key, value in vars(metric).items()}
    return SimpleNamespace(**own | {"variables": values, "weights": values})


# What metric variables start from ------------------------------------------------


def _add_variable(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_variable(self: Any, shape: Any, initializer: Any, *args: Any, **kwargs: Any) -> Any:
        variable = original(self, shape, initializer, *args, **kwargs)
        initializer = keras.initializers.get(initializer)
        if not isinstance(initializer, keras.initializers.Zeros):
            # Asked for when it's needed: in a graph the variable has no value yet.
            start = functools.partial(initializer, variable.shape, variable.dtype)
            setattr(variable, shard_state.START, start)
        return variable

    return add_variable


_OWN_METRICS = ("keras.src.metrics", "tf_keras.src.metrics")


class _Resetting(threading.local):
    def __init__(self) -> None:
        self.metrics: set[int] = set()


_resetting = _Resetting()


def _reset_state(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Metric.reset_state` that remembers what the variables start from after it."""

    def reset_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The outermost of calls through super() is the one; what holds others leaves it to them.
        if id(self) in _resetting.metrics or isinstance(self, touch.CompileMetrics):
            return original(self, *args, **kwargs)
        _resetting.metrics.add(id(self))
        try:
            result = original(self, *args, **kwargs)
        finally:
            _resetting.metrics.discard(id(self))
        shard_state.reset(self.variables)
        # Keras's own metrics start from zeros: no need to read them. Not what holds others.
        zeros = type(self).reset_state.__module__.startswith(_OWN_METRICS)
        for variable in self.variables:
            setattr(variable, shard_state.START, None if zeros else _remember(self, variable))
        return result

    return reset_state


def _value(variable: Any) -> Any:
    """What a variable of Keras's, or of TensorFlow's, has as its value."""
    value = variable.value
    return value() if callable(value) else value


def _remember(metric: Any, variable: Any) -> Any:
    if not tf.executing_eagerly():
        return functools.partial(_after_reset, metric, variable)
    value = tf.identity(tf.convert_to_tensor(_value(variable)))
    return value if np.any(value) else None


def _after_reset(metric: Any, variable: Any) -> Any | None:
    """What `variable` holds after the metric's reset, found by trying it.

    For a reset inside a graph, which has no values to remember.
    """
    with shard_state.restored(metric.variables):
        metric.reset_state()
        return getattr(variable, shard_state.START)


def _read(results: Any) -> Any:
    """`results` as tensors: a metric may return its variable, which changes afterwards."""
    return tf.nest.map_structure(tf.identity, results)


def by_name(results: dict[str, Any]) -> dict[str, Any]:
    """Single results: some metrics have several, by name."""
    flat: dict[str, Any] = {}
    for name, result in results.items():
        flat.update(by_name(result) if isinstance(result, dict) else {name: result})
    return flat


def own_logs(
    logs: Any, local: dict[str, Any], whole: dict[str, Any], strategy: DataParallelStrategy
) -> Any:
    """The logs of a custom step, of all workers.

    What is a metric's result on every worker becomes the metric's result over all;
    other scalars, such as the last batch's loss, become their mean over the workers;
    all else stays local.

    Args:
        logs: As the step returned them on this worker.
        local: Each metric's result on this worker.
        whole: Each metric's result over all workers.
        strategy: Of the workers.
    """
    if not isinstance(logs, dict):
        return logs
    communicator = strategy.communicator
    scalars = sorted(name for name, value in logs.items() if _is_number(value))
    named = [
        name in local and bool(np.all(np.asarray(local[name]) == np.asarray(logs[name])))
        for name in scalars
    ]
    if not scalars:
        return logs
    numbers = np.array([float(np.asarray(logs[name])) for name in scalars], np.float64)
    means = communicator.all_reduce_numpy(numbers, "sum") / communicator.size
    if strategy.extended.exact:
        # In float64 what the sum's order makes of it is far below float32's last bit.
        means = means.astype(np.float32)
    are_metrics = communicator.all_reduce_numpy(np.array(named, np.int64), "min")
    return logs | {
        name: whole[name] if is_metric else mean
        for name, is_metric, mean in zip(scalars, are_metrics, means.tolist(), strict=True)
    }


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu"
