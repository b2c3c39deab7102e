"""`fit`, `evaluate`, `predict` and their batch-wise kin of tf_keras on many workers."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from drumbeat import tf_keras_internals as touch
from drumbeat.data.distributed import DistributedDataset
from drumbeat.data.ordered import OrderedDataset
from drumbeat.errors import ConfigError
from drumbeat.state.progress import Activity
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import absence, activity, current, divergence, randomness, stopping
from drumbeat.training.keras2 import resuming, steps
from drumbeat.training.keras2.callbacks import PredictedRows, Rebalance, Together
from drumbeat.training.keras_loops import (
    all_rows,
    followed,
    own_errors,
    training_alone,
)

logger = logging.getLogger("drumbeat")


def integrate() -> None:
    """Put what workers must agree on around tf_keras's loops."""
    touch.wrap(touch.FIT, _fit)
    touch.wrap(touch.EVALUATE, _evaluate)
    touch.wrap(touch.PREDICT, _predict)
    touch.wrap(touch.TRAIN_ON_BATCH, _on_batch)
    touch.wrap(touch.TEST_ON_BATCH, _on_batch)
    touch.wrap(touch.PREDICT_ON_BATCH, _predict_on_batch)
    touch.wrap(touch.DATA_HANDLER, _configure)
    touch.wrap(touch.INITIAL_COUNTERS, _initial_counters)


def _adopted(model: Any) -> DataParallelStrategy | None:
    """The strategy with which all workers run `model`, see `current.adopt`.

    Raises:
        ConfigError: It is to do what drumbeat does for Keras 3 only.
    """
    strategy = current.adopt(model, touch.MODEL_STRATEGY, touch.metrics_of)
    _refuse_what_cant_be(model.distribute_strategy)
    return strategy


def _fit(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _adopted(self)
        arguments = signature.bind(self, *args, **kwargs).arguments
        if strategy is None:
            with training_alone(self, os.environ):
                return resuming.run(original, self, None, arguments, [])
        _prepare(self, strategy)
        given: Any = arguments.get("callbacks")
        watcher = stopping.watcher(
            given, self, strategy.communicator, base=tf_keras.callbacks.Callback
        )
        behind = [Together(strategy), watcher]
        ordered = isinstance(arguments.get("x"), OrderedDataset)
        if strategy.extended.inputs.rebalancer is not None and not ordered:
            behind.append(Rebalance(strategy.extended.inputs.rebalancer))
        with own_errors(strategy):
            return resuming.run(original, self, strategy, arguments, behind)

    return fit


def _refuse_what_cant_be(strategy: Any) -> None:
    """Says what drumbeat does for Keras 3 only.

    Raises:
        ConfigError: It was asked for.
    """
    if not isinstance(strategy, DataParallelStrategy):
        return
    extended = strategy.extended
    asked = None
    if extended.exact is not None:
        asked = f"exact mode ({extended.exact} virtual shards)"
    elif extended.replicas.count > 1:
        asked = f"{extended.replicas.count} devices in one process"
    elif extended.local_sgd is not None:
        asked = f"--sync-every {extended.local_sgd.settings.every}"
    elif extended.jit == "on":
        asked = "--jit on"
    if asked is not None:
        raise ConfigError(
            f"A model of Keras 2 (tf_keras) is to be trained with {asked}, which drumbeat has for "
            "models of Keras 3 only. Leave it out, or move the script to Keras 3: "
            "`drumbeat port` helps."
        )


def _prepare(model: Any, strategy: DataParallelStrategy) -> None:
    randomness.agree(strategy.communicator)
    steps.follow(model)
    if getattr(model, "jit_compile", None):
        if strategy.is_chief:
            logger.warning(
                "jit_compile=True is left out: XLA can't compile the sum over the workers within "
                "a step of Keras 2."
            )
        model.jit_compile = False
        model.train_function = model.test_function = model.predict_function = None


def _evaluate(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _adopted(self)
        if strategy is None or kwargs.get("_use_cached_eval_dataset"):
            with activity.during(Activity.EVALUATING):
                return original(self, *args, **kwargs)
        with own_errors(strategy), activity.during(Activity.EVALUATING):
            return _watched(original, signature, self, strategy, args, kwargs)

    return evaluate


def _watched(
    original: Callable[..., Any],
    signature: inspect.Signature,
    model: Any,
    strategy: DataParallelStrategy,
    args: Any,
    kwargs: Mapping[str, Any],
    *behind: Any,
) -> Any:
    """What a loop without training returns, which all workers leave at the same step."""
    _prepare(model, strategy)
    bound = signature.bind(model, *args, **kwargs)
    given = bound.arguments.get("callbacks")
    watcher = stopping.watcher(given, model, strategy.communicator, tf_keras.callbacks.Callback)
    with followed(given, [watcher, *behind], model) as callbacks:
        bound.arguments["callbacks"] = callbacks
        return original(*bound.args, **bound.kwargs)


def _predict(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _adopted(self)
        if strategy is None:
            with activity.during(Activity.PREDICTING):
                return original(self, *args, **kwargs)
        with (
            own_errors(strategy),
            activity.during(Activity.PREDICTING),
            _one_step_at_a_time(self),
        ):
            rows = PredictedRows(strategy.extended.rows)
            outputs = _watched(original, signature, self, strategy, args, kwargs, rows)
        return all_rows(outputs, rows.counts, strategy)

    return predict


@contextlib.contextmanager
def _one_step_at_a_time(model: Any) -> Iterator[None]:
    """Within this, the outputs of each step are seen: they are put in order by them."""
    at_once = touch.steps_per_execution(model)
    if at_once == 1:
        yield
        return
    touch.set_steps_per_execution(model, 1)
    model.predict_function = None
    try:
        yield
    finally:
        touch.set_steps_per_execution(model, at_once)
        model.predict_function = None


def _on_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _adopted(self)
        if strategy is None:
            trains = original.__name__ == touch.TRAIN_ON_BATCH.attribute
            with training_alone(self, os.environ) if trains else contextlib.nullcontext():
                return original(self, *args, **kwargs)
        _prepare(self, strategy)
        absence.expect(self, strategy, 0)
        bound = signature.bind(self, *args, **kwargs)
        as_dict = bound.arguments.pop("return_dict", False)
        with own_errors(strategy):
            logs = original(*bound.args, **bound.kwargs, return_dict=True)
            together = self._validate_and_get_metrics_result(logs)
        logs = {name: together[name] for name in logs}
        if as_dict:
            return logs
        values = [logs[name] for name in self.metrics_names if name in logs]
        return values[0] if len(values) == 1 else values

    return on_batch


def _predict_on_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    def predict_on_batch(self: Any, x: Any) -> Any:
        strategy = _adopted(self)
        if strategy is None:
            return original(self, x)
        _prepare(self, strategy)
        with own_errors(strategy):
            outputs = original(self, x)
        return tf.nest.map_structure(strategy.communicator.all_gather_numpy, outputs)

    return predict_on_batch


def _configure(original: Callable[..., Any]) -> Callable[..., Any]:
    def configure(
        self: Any, strategy: Any, x: Any, steps_per_epoch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        original(self, strategy, x, steps_per_epoch, *args, **kwargs)
        dataset = self._dataset
        if steps_per_epoch is None and isinstance(dataset, DistributedDataset) and dataset.is_own:
            self._inferred_steps = None
        resuming.configured(self)

    return configure


def _initial_counters(original: Callable[..., Any]) -> Callable[..., Any]:
    def initial_counters(self: Any, steps_per_epoch: Any, initial_epoch: int) -> tuple[int, int]:
        epoch, step = original(self, steps_per_epoch, initial_epoch)
        strategy = current.of_model(self)
        if strategy is not None:
            # The user's callbacks may have restored the chief's model.
            divergence.take_chiefs(self, strategy.communicator)
            mine = np.array([epoch, step], np.int64)
            epoch, step = strategy.communicator.broadcast_numpy(mine, name="epoch").tolist()
        return resuming.counters(self, int(epoch), int(step))

    return initial_counters
