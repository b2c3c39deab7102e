"""`fit`, `evaluate`, `predict` and their batch-wise kin on many workers."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.data.distributed import DistributedDataset
from drumbeat.data.rows import Span
from drumbeat.state.progress import Activity
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.strategies.local_devices import LocalDevicesStrategy
from drumbeat.training import (
    absence,
    activity,
    ahead,
    current,
    divergence,
    evaluating,
    local_sgd,
    passes,
    randomness,
    stopping,
    whole_metrics,
)
from drumbeat.training.keras_loops import (
    RebalanceHooks,
    TogetherHooks,
    all_rows,
    followed,
    own_errors,
    run,
    training_alone,
)


def integrate() -> None:
    """Put what workers must agree on around Keras's loops."""
    touch.wrap(touch.FIT, _fit)
    touch.wrap(touch.EVALUATE, _evaluate)
    touch.wrap(touch.PREDICT, _predict)
    touch.wrap(touch.TRAIN_ON_BATCH, _on_batch)
    touch.wrap(touch.TEST_ON_BATCH, _on_batch)
    touch.wrap(touch.IS_DATASET, _is_dataset)
    touch.wrap(touch.SYMBOLIC_BUILD, _symbolic_build)


def _symbolic_build(original: Callable[..., Any]) -> Callable[..., Any]:
    def maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if iterator is None or not isinstance(self.distribute_strategy, DataParallelStrategy):
            return original(self, iterator, data_batch)
        spec = tf.nest.map_structure(_shaped, iterator._distributed_dataset.element_spec)
        if all(leaf is None or _is_buildable(leaf.shape) for leaf in tf.nest.flatten(spec)):
            original(self, None, spec)
        else:
            original(self, iterator, None)
        ahead.built(self, iterator)
        return None

    return maybe_symbolic_build


def _shaped(spec: Any) -> Any:
    return spec if hasattr(spec, "shape") and hasattr(spec, "dtype") else None


def _is_buildable(shape: tf.TensorShape) -> bool:
    """Whether layers can be built for `shape`: all known but the number of rows."""
    return shape.rank is not None and all(size is not None for size in shape[1:])


def _is_dataset(original: Callable[..., Any]) -> Callable[..., Any]:
    def is_tf_dataset(x: Any) -> bool:
        return isinstance(x, DistributedDataset) or original(x)

    return is_tf_dataset


class _Together(TogetherHooks, keras.callbacks.Callback):
    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        divergence.take_chiefs_epoch(self.model, self._communicator)


class _Rebalance(RebalanceHooks, keras.callbacks.Callback):
    pass


def _adopted(model: Any) -> DataParallelStrategy | None:
    """The strategy with which all workers run `model`, see `current.adopt`."""
    strategy = current.adopt(model, touch.MODEL_STRATEGY, touch.metrics_of)
    if strategy is not None and strategy.extended.adopts:
        whole_metrics.mark(touch.given_metrics(model))
    return strategy


def _fit(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _adopted(self)
        arguments = signature.bind(self, *args, **kwargs).arguments
        goes_on = passes.callbacks(arguments)
        if strategy is None:
            with training_alone(self, os.environ):
                return run(original, self, None, arguments, [*goes_on, *evaluating.callbacks()])
        _prepare(self, strategy)
        given: Any = arguments.get("callbacks")
        watcher = stopping.watcher(given, self, strategy.communicator)
        behind: list[Any] = [_Together(strategy), watcher, *goes_on]
        if strategy.extended.inputs.rebalancer is not None and not goes_on:
            behind.append(_Rebalance(strategy.extended.inputs.rebalancer))
        is_apart = isinstance(strategy, LocalDevicesStrategy)
        with (
            training_alone(self, os.environ) if is_apart else contextlib.nullcontext(),
            own_errors(strategy),
            local_sgd.loop(self, strategy),
            ahead.of_fit(self, strategy, arguments),
        ):
            return run(original, self, strategy, arguments, [*behind, *evaluating.callbacks()])

    return fit


def _evaluate(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _adopted(self)
        if strategy is None or kwargs.get("_use_cached_eval_dataset"):
            with activity.during(Activity.EVALUATING):
                return original(self, *args, **kwargs)
        _prepare(self, strategy)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments.get("callbacks")
        behind = [stopping.watcher(given, self, strategy.communicator)]
        with (
            own_errors(strategy),
            local_sgd.loop(self, strategy),
            followed(given, behind, self) as callbacks,
            activity.during(Activity.EVALUATING),
        ):
            bound.arguments["callbacks"] = callbacks
            return original(*bound.args, **bound.kwargs)

    return evaluate


def _prepare(model: Any, strategy: DataParallelStrategy) -> None:
    randomness.agree(strategy.communicator)
    ahead.leave_out_jit(model)


def _predict(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _adopted(self)
        if strategy is None:
            with activity.during(Activity.PREDICTING):
                return original(self, *args, **kwargs)
        _prepare(self, strategy)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments.get("callbacks")
        behind = [stopping.watcher(given, self, strategy.communicator)]
        # Keras fetches each batch eagerly here, however many it runs at once.
        with (
            own_errors(strategy),
            local_sgd.loop(self, strategy),
            followed(given, behind, self) as callbacks,
            strategy.extended.rows.listen() as rows,
            activity.during(Activity.PREDICTING),
        ):
            bound.arguments["callbacks"] = callbacks
            outputs = original(*bound.args, **bound.kwargs)
        if strategy.communicator.size == 1:
            return outputs
        return all_rows(outputs, rows, strategy)

    return predict


def _on_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _adopted(self)
        if strategy is None:
            trains = original.__name__ == touch.TRAIN_ON_BATCH.attribute
            with training_alone(self, os.environ) if trains else contextlib.nullcontext():
                return original(self, *args, **kwargs)
        ahead.leave_out_jit(self)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        as_dict = arguments.pop("return_dict")
        data = {name: arguments[name] for name in ("x", "y", "sample_weight")}
        absence.expect(self, strategy, total_rows(data))
        arguments.update(strategy_rows(data, strategy))
        with own_errors(strategy):
            logs = original(**arguments, return_dict=True)
        with local_sgd.single_step():
            together = self._get_metrics_result_or_logs(logs)
        logs = {name: np.asarray(together[name])[()] for name in logs}
        return logs if as_dict else self._flatten_metrics_in_order(logs)

    return on_batch


def total_rows(data: dict[str, Any]) -> int:
    """The rows of a global batch that is there as arrays."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    return int(np.shape(leaves[0])[0])


def strategy_rows(data: dict[str, Any], strategy: DataParallelStrategy) -> dict[str, Any]:
    """This worker's rows of each array in `data`, and record what share of the whole they are."""
    total = total_rows(data)
    start, stop = strategy.extended.shares.rows_of(strategy.communicator.rank, total)
    strategy.extended.rows.record(Span(start, stop - start, total))
    return tf.nest.map_structure(lambda leaf: leaf if leaf is None else leaf[start:stop], data)
