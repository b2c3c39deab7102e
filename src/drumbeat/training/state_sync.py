"""State that workers gather separately, made one: metrics, and moving statistics of layers."""

from __future__ import annotations

import contextlib
import functools
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.collectives.communicator import Communicator
from drumbeat.training import current


def integrate() -> None:
    """Make the results at the end of an epoch or evaluation those of all workers."""
    touch.wrap(touch.EPOCH_RESULT, _epoch_result)
    touch.wrap(touch.COMPILED_LOSS, _compiled_loss)
    touch.wrap(touch.MEAN_UPDATE, _mean_update)
    touch.wrap(touch.METRIC_INIT, _metric_init)


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
        average_drifted(self, strategy.communicator)
        with as_they_are():
            local = _read(self.get_metrics_result())
        variables = [variable for metric in self.metrics for variable in metric.variables]
        with combined(variables, strategy.communicator):
            result = original(self, logs)
            if result is not logs:
                return _read(result)
            whole = _read(self.get_metrics_result())
        return _own_logs(logs, local, whole, strategy.communicator)

    return get_metrics_result_or_logs


def _metric_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        strategy = current.at_hand()
        if strategy is None:
            return
        for cls in type(self).__mro__:
            if "result" in cls.__dict__ and not hasattr(cls.__dict__["result"], _OF_ALL_WORKERS):
                cls.result = _result(cls.__dict__["result"])
        # Not by setattr, in which Keras looks for layers and variables to track.
        self.__dict__["_drumbeat_strategy"] = strategy

    return init


_OF_ALL_WORKERS = "_drumbeat_of_all_workers"


def _result(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Metric.result` of all workers, for metrics made under our strategy.

    As TensorFlow's SyncOnRead variables: inside of `strategy.run` it is this
    worker's, outside every worker has to ask for it.
    """

    @functools.wraps(original)
    def result(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = self.__dict__.get("_drumbeat_strategy")
        if strategy is None or _combined.depth or current.in_replica() is not None:
            return original(self, *args, **kwargs)
        with combined(self.variables, strategy.communicator, f"result of metric {self.name}"):
            return _read(original(self, *args, **kwargs))

    setattr(result, _OF_ALL_WORKERS, True)
    return tf.autograph.experimental.do_not_convert(result)


class _Depth(threading.local):
    depth = 0


_combined = _Depth()


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
    variables: Sequence[Any], communicator: Communicator, name: str = "metrics"
) -> Iterator[None]:
    """Within this, metric variables hold the state of all workers; after it, this worker's again.

    They are combined by their `aggregation` ("sum" by default, also "mean";
    "only_first_replica" takes the chief's), so the result is what one worker would
    have counted.
    """
    added = [v for v in variables if v.aggregation in ("none", "sum", "mean")]
    chiefs = [v for v in variables if v.aggregation == "only_first_replica"]
    local = [tf.identity(v.value) for v in (*added, *chiefs)]
    totals: list[Any] = communicator.all_reduce(local[: len(added)], "sum", name=name)
    for variable, total in zip(added, totals, strict=True):
        variable.assign(total / communicator.size if variable.aggregation == "mean" else total)
    values = communicator.broadcast(local[len(added) :], name=name)
    for variable, value in zip(chiefs, values, strict=True):
        variable.assign(value)
    try:
        with as_they_are():
            yield
    finally:
        for variable, value in zip((*added, *chiefs), local, strict=True):
            variable.assign(value)


def average_drifted(model: Any, communicator: Communicator) -> None:
    """Make float weights that aren't trained and differ between workers their mean.

    Such as the moving statistics of BatchNormalization.
    """
    drifted = _differing(
        [w for w in model.non_trainable_weights if w.dtype.startswith(("float", "bfloat"))],
        communicator,
    )
    totals: list[Any] = communicator.all_reduce([tf.convert_to_tensor(v) for v in drifted], "sum")
    for variable, total in zip(drifted, totals, strict=True):
        variable.assign(total / communicator.size)


def _differing(variables: list[Any], communicator: Communicator) -> list[Any]:
    """Those of `variables` that don't have the same bytes on all workers.

    Equal ones are left alone: a mean of equal values can differ from them by rounding.
    """
    if not variables:
        return []
    sums = np.array([zlib.crc32(v.numpy().tobytes()) for v in variables], np.int64)
    low = communicator.all_reduce_numpy(sums, "min")
    high = communicator.all_reduce_numpy(sums, "max")
    return [v for v, same in zip(variables, low == high, strict=True) if not same]


def _read(results: Any) -> Any:
    """`results` as tensors: a metric may return its variable, which changes afterwards."""
    return tf.nest.map_structure(tf.identity, results)


def _own_logs(
    logs: Any, local: dict[str, Any], whole: dict[str, Any], communicator: Communicator
) -> Any:
    """The logs of a custom step, of all workers.

    What is a metric's result on every worker becomes the metric's result over all;
    other scalars, such as the last batch's loss, become their mean over the workers;
    all else stays local.

    Args:
        logs: As the step returned them on this worker.
        local: Each metric's result on this worker.
        whole: Each metric's result over all workers.
        communicator: Of the workers.
    """
    if not isinstance(logs, dict):
        return logs
    scalars = sorted(name for name, value in logs.items() if _is_number(value))
    named = [name in local and bool(np.all(local[name] == logs[name])) for name in scalars]
    if not scalars:
        return logs
    numbers = np.array([float(np.asarray(logs[name])) for name in scalars], np.float64)
    means = communicator.all_reduce_numpy(numbers, "sum") / communicator.size
    are_metrics = communicator.all_reduce_numpy(np.array(named, np.int64), "min")
    return logs | {
        name: whole[name] if is_metric else mean
        for name, is_metric, mean in zip(scalars, are_metrics, means.tolist(), strict=True)
    }


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu"


def take_chiefs(model: Any, communicator: Communicator) -> None:
    """Give `model`, its optimizer and its starting epoch the chief's values on every worker."""
    variables = [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
    values = communicator.broadcast([tf.convert_to_tensor(v) for v in variables])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    epoch = np.array([-1 if model._initial_epoch is None else model._initial_epoch], np.int64)
    epoch = int(communicator.broadcast_numpy(epoch)[0])
    model._initial_epoch = None if epoch < 0 else epoch
