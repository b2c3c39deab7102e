"""State that workers gather separately, made one: metrics, and moving statistics of layers."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Iterator
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
        combine(self, strategy.communicator)
        result = original(self, logs)
        # A custom step's own logs come back as they are: this worker's, of its last batch.
        return mean_of_logs(result, strategy.communicator) if result is logs else result

    return get_metrics_result_or_logs


def combine(model: Any, communicator: Communicator) -> None:
    """Leave the state of all workers in the metrics and layers of `model`, on each of them.

    Metric variables are combined by their `aggregation` ("sum" by default, also
    "mean"; "only_first_replica" takes the chief's), so the result is what one
    worker would have counted. Float weights that aren't trained and differ between
    workers, such as the moving statistics of BatchNormalization, become their mean.
    Metrics must be reset before they count on.
    """
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    combined = [v for v in metrics if v.aggregation in ("none", "sum", "mean")]
    drifted = _differing(
        [w for w in model.non_trainable_weights if w.dtype.startswith(("float", "bfloat"))],
        communicator,
    )
    values = [tf.convert_to_tensor(v) for v in [*combined, *drifted]]
    totals: list[Any] = communicator.all_reduce(values, "sum")
    for index, (variable, total) in enumerate(zip([*combined, *drifted], totals, strict=True)):
        mean = index >= len(combined) or variable.aggregation == "mean"
        variable.assign(total / communicator.size if mean else total)
    chiefs = [v for v in metrics if v.aggregation == "only_first_replica"]
    for variable, value in zip(
        chiefs, communicator.broadcast([tf.convert_to_tensor(v) for v in chiefs]), strict=True
    ):
        variable.assign(value)


@contextlib.contextmanager
def own_counts_kept(model: Any) -> Iterator[None]:
    """Gives the metrics of `model` back what they held at the beginning."""
    variables = [variable for metric in model.metrics for variable in metric.variables]
    values = [tf.identity(variable.value) for variable in variables]
    yield
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


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


def mean_of_logs(logs: Any, communicator: Communicator) -> Any:
    """`logs` with each scalar replaced by its mean over the workers; other values stay local."""
    if not isinstance(logs, dict):
        return logs
    scalars = {
        name: float(np.asarray(value))
        for name, value in sorted(logs.items())
        if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu"
    }
    if not scalars:
        return logs
    total = communicator.all_reduce_numpy(np.array(list(scalars.values()), np.float64), "sum")
    return {**logs, **dict(zip(scalars, (total / communicator.size).tolist(), strict=True))}


def take_chiefs(model: Any, communicator: Communicator) -> None:
    """Give `model`, its optimizer and its starting epoch the chief's values on every worker."""
    variables = [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
    values = communicator.broadcast([tf.convert_to_tensor(v) for v in variables])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    epoch = np.array([-1 if model._initial_epoch is None else model._initial_epoch], np.int64)
    epoch = int(communicator.broadcast_numpy(epoch)[0])
    model._initial_epoch = None if epoch < 0 else epoch
