"""Keras 3's `fit`, `evaluate` and `predict` with parameter servers, in the chief's process.

Keras's own loops run: they ask for a step, and get one that a worker has finished.
"""

from __future__ import annotations

import inspect
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.cluster.identity import DEFAULT_TIMEOUT_S, Identity
from drumbeat.errors import DataError
from drumbeat.strategies.parameter_server import ParameterServerStrategy
from drumbeat.training import journal, resuming
from drumbeat.training.coordinated import failures, placing, predicting, sources, staleness
from drumbeat.training.coordinated.loops import Pass
from drumbeat.training.coordinated.window import Window

logger = logging.getLogger("drumbeat")


def integrate() -> None:
    """Put this around Keras's loops, next to Keras itself."""
    touch.wrap(touch.FIT, _fit)
    touch.wrap(touch.EVALUATE, _evaluate)
    touch.wrap(touch.PREDICT, _predict)
    touch.wrap(touch.TRAIN_ON_BATCH, _on_batch)
    touch.wrap(touch.TEST_ON_BATCH, _on_batch)
    touch.wrap(touch.SYMBOLIC_BUILD, _symbolic_build)
    touch.wrap(touch.EPOCH_STEPS, _enumerate_iterator)
    touch.wrap(touch.EPOCH_RESULT, _epoch_result)


class Loops:
    """What the loops over one model have in common.

    Attributes:
        window: Of the strategy's workers.
        now: The pass that is under way, or the last one.
    """

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        identity = Identity.from_env(os.environ)
        timeout_s = DEFAULT_TIMEOUT_S if identity is None else identity.timeout_s
        self.workers: int = strategy._num_workers
        self.window = Window(strategy.coordinator, timeout_s)
        self.now = Pass(self.window, self.workers)

    @property
    def is_quiet(self) -> bool:
        """Whether no step is under way."""
        return self.now.is_quiet

    def drain(self) -> None:
        """Begins no new steps until those that are under way have been handed to Keras."""
        self.now.draining = True

    def begin(self) -> Pass:
        """Another pass begins."""
        self.now = Pass(self.window, self.workers)
        return self.now


_loops: Any = weakref.WeakKeyDictionary()
_running: list[Any] = []


def strategy_of(model: Any) -> ParameterServerStrategy | None:
    """The strategy with parameter servers that `model` was built under, if it was."""
    strategy = getattr(model, "distribute_strategy", None)
    return strategy if isinstance(strategy, ParameterServerStrategy) else None


def loops_of(model: Any) -> Loops:
    """Of a model with parameter servers."""
    found = _loops.get(model)
    if found is None:
        strategy = strategy_of(model)
        assert strategy is not None  # noqa: S101
        found = _loops[model] = Loops(strategy)
    return found


@contextmanager
def _around(model: Any, strategy: ParameterServerStrategy) -> Iterator[None]:
    """One of Keras's loops runs within this."""
    placing.place(model, strategy)
    if model.jit_compile:
        if model.jit_compile is True and model not in _loops:
            logger.warning(
                "jit_compile=True is switched off: XLA can't compile steps whose variables are on "
                "parameter servers."
            )
        model.jit_compile = False
    loops = loops_of(model)
    _running.append(model)
    try:
        with strategy.extended.leaving_datasets(), failures.shorter():
            yield
    except BaseException:
        loops.window.clear()
        raise
    finally:
        _running.pop()


def _fit(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments
        given["x"] = _prepared(given, strategy, loops_of(self).window, "steps_per_epoch")
        if "validation_data" in given and given["validation_data"] is not None:
            given["validation_data"] = _validation(given, strategy, loops_of(self).window)
        own = journal.own()
        if own is not None and own.active is not None:
            own.active.under_way = loops_of(self)
        staleness.LATEST.fit_begins()
        with _around(self, strategy):
            result = original(*bound.args, **bound.kwargs)
        staleness.LATEST.tell()
        return result

    return fit


def _prepared(
    given: dict[str, Any], strategy: ParameterServerStrategy, window: Window, steps: str
) -> Any:
    """The data as Keras takes it.

    Raises:
        DataError: Nobody can tell how many steps there are.
    """
    data = sources.prepared(given.get("x"), strategy, window)
    if isinstance(data, sources.WorkerDataset) and given.get("class_weight") is not None:
        raise DataError(
            "class_weight was given with a dataset function. Return the weights from it, as the "
            "third part of each batch."
        )
    endless = isinstance(data, tf.data.Dataset) and (
        int(data.cardinality()) == int(tf.data.INFINITE_CARDINALITY)
    )
    if endless and not given.get(steps):
        raise DataError(
            f"The data never ends, so an epoch has no end either. Give {steps}, the number of "
            "batches that all workers together shall take."
        )
    return data


def _validation(given: dict[str, Any], strategy: ParameterServerStrategy, window: Window) -> Any:
    data = given["validation_data"]
    if isinstance(data, tuple | list):
        return data
    named = {"x": data, "steps": given.get("validation_steps")}
    try:
        return _prepared(named, strategy, window, "steps")
    except DataError as error:
        raise DataError(str(error).replace("Give steps", "Give validation_steps")) from None


def _evaluate(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments
        if not given.get("kwargs", {}).get("_use_cached_eval_dataset"):
            given["x"] = _prepared(given, strategy, loops_of(self).window, "steps")
        with _around(self, strategy):
            return original(*bound.args, **bound.kwargs)

    return evaluate


def _predict(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        given["x"] = sources.on_chief(given["x"])
        with _around(self, strategy):
            if self.run_eagerly:
                return original(*bound.args, **bound.kwargs)
            del given["self"]
            return predicting.predict(self, strategy, loops_of(self).window, **given)

    return predict


def _on_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    def on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return original(self, *args, **kwargs)
        with _around(self, strategy):
            loops_of(self).begin().left = 1
            return original(self, *args, **kwargs)

    return on_batch


def _symbolic_build(original: Callable[..., Any]) -> Callable[..., Any]:
    def maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return original(self, iterator, data_batch)
        if iterator is not None:
            spec = iterator._distributed_dataset.element_spec
            data_batch = tf.nest.map_structure(
                lambda leaf: None if isinstance(leaf, tf.OptionalSpec) else leaf, spec
            )
        with strategy.scope():
            resuming.build(self, data_batch)
        placing.place(self, strategy)
        return None

    return maybe_symbolic_build


def _enumerate_iterator(original: Callable[..., Any]) -> Callable[..., Any]:
    def enumerate_iterator(self: Any) -> Any:
        model = _running[-1] if _running else None
        if model is None:
            return original(self)
        begun = loops_of(model).begin()
        return begun.around(original(self), self.num_batches, self.steps_per_execution)

    return enumerate_iterator


def _epoch_result(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        if strategy_of(self) is not None:
            now = loops_of(self).now
            # A callback may have stopped the loop while steps were under way.
            now.finish()
            staleness.LATEST.epoch_ended(now.late, now.steps)
        return original(self, logs)

    return get_metrics_result_or_logs
