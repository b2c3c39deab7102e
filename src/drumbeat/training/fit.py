"""`fit`, `evaluate`, `predict` and their batch-wise kin on many workers."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.cluster.identity import Identity
from drumbeat.data.distributed import DistributedDataset
from drumbeat.data.failures import data_error
from drumbeat.data.rows import Span
from drumbeat.errors import DataError
from drumbeat.state.progress import Activity
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.strategies.local_devices import LocalDevicesStrategy
from drumbeat.strategies.rebalance import Rebalancer
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
    resuming,
    stopping,
)

logger = logging.getLogger("drumbeat")


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


@contextlib.contextmanager
def _own_errors(strategy: DataParallelStrategy) -> Iterator[None]:
    """Raises an error of a collective or of the data, of which TensorFlow reports only the text."""
    try:
        yield
    except tf.errors.OpError as error:
        strategy.communicator.raise_last_error()
        own = data_error(error)
        if own is None:
            raise
        raise own from error


class _Together(keras.callbacks.Callback):
    """Starts all workers of a fit from the chief's state, and keeps their state and ways alike.

    Stands behind the user's callbacks.
    """

    def __init__(self, strategy: DataParallelStrategy) -> None:
        super().__init__()
        self._strategy = strategy
        self._communicator = strategy.communicator

    def on_train_begin(self, logs: Any = None) -> None:
        # The user's callbacks may have restored the chief's model.
        divergence.take_chiefs(self.model, self._communicator)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # Set here or at the beginning, it ends the epoch after its first batch.
        stopping.agree(self.model, "stop_training", self._communicator)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        divergence.mend(self.model, self._communicator, f"at the end of epoch {epoch + 1}")
        stopping.agree(self.model, "stop_training", self._communicator)

    def on_train_end(self, logs: Any = None) -> None:
        # Here some callbacks bring back older weights.
        local_sgd.average_own(self.model, self._strategy)
        divergence.mend(self.model, self._communicator, "at the end of fit")


class _Rebalance(keras.callbacks.Callback):
    """Lets the workers' shares of a batch follow their speed."""

    def __init__(self, rebalancer: Rebalancer) -> None:
        super().__init__()
        self._rebalancer = rebalancer

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._rebalancer.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._rebalancer.end()


def _fit(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        current.adopt_optimizer(self.optimizer, self.distribute_strategy)
        strategy = current.of_model(self)
        arguments = signature.bind(self, *args, **kwargs).arguments
        goes_on = passes.callbacks(arguments)
        if strategy is None:
            _warn_of_training_alone(self.distribute_strategy, os.environ)
            return _run(original, self, None, arguments, goes_on)
        if isinstance(strategy, LocalDevicesStrategy):
            _warn_of_training_alone(strategy, os.environ)
        _prepare(self, strategy)
        given: Any = arguments.get("callbacks")
        watcher = stopping.watcher(given, self, strategy.communicator)
        behind = [_Together(strategy), watcher, *goes_on]
        if strategy.extended.inputs.rebalancer is not None and not goes_on:
            behind.append(_Rebalance(strategy.extended.inputs.rebalancer))
        with (
            _own_errors(strategy),
            local_sgd.loop(self, strategy),
            ahead.of_fit(self, strategy, arguments),
        ):
            return _run(original, self, strategy, arguments, behind)

    return fit


def _run(
    original: Callable[..., Any],
    model: Any,
    strategy: DataParallelStrategy | None,
    arguments: Mapping[str, Any],
    behind: list[keras.callbacks.Callback],
) -> Any:
    """Keras's `fit`, or what is left of it after a restart."""
    behind = [*behind, *evaluating.callbacks()]
    phase = resuming.begin(model, strategy, arguments)
    if phase is not None and phase.finished is not None:
        return phase.pass_over(original, arguments)
    with contextlib.ExitStack() as stack:
        if phase is not None:
            stack.enter_context(phase)
            stack.enter_context(phase.report.running(model))
            behind = [*behind, *phase.behind]
        callbacks = stack.enter_context(_followed(arguments.get("callbacks"), behind, model))
        result = original(**{**arguments, "callbacks": callbacks})
        if phase is not None:
            phase.finish()
        return result


def _warn_of_training_alone(strategy: tf.distribute.Strategy, env: Mapping[str, str]) -> None:
    """Say so where each of several workers trains a model that the others know nothing of."""
    identity = Identity.from_env(env)
    if identity is None or identity.world_size == 1 or identity.rank != 0:
        return
    if isinstance(strategy, LocalDevicesStrategy):
        logger.warning(
            "%s trains on the devices of one process, so each of the %d workers trains its own "
            "copy of this model on all of the data. To train one model together, give drumbeat "
            "run --strategy multi-worker, or use tf.distribute.MultiWorkerMirroredStrategy().",
            type(strategy).__name__,
            identity.world_size,
        )
        return
    logger.warning(
        "This model was made outside of strategy.scope(), so each of the %d workers trains its "
        "own copy of it on all of the data. To train one model together, make it (and load it) "
        "within `with tf.distribute.MultiWorkerMirroredStrategy().scope():`.",
        identity.world_size,
    )


@contextlib.contextmanager
def _followed(given: Any, behind: list[keras.callbacks.Callback], model: Any) -> Iterator[Any]:
    """What to give Keras as callbacks within this: the user's `given`, then those of `behind`."""
    if not isinstance(given, keras.callbacks.CallbackList):
        yield [*(callback for callback in keras.tree.flatten(given) if callback), *behind]
        return
    # Keras takes such a list as it is, and so does the next fit that it's given to.
    before = list(given.callbacks)
    for callback in behind:
        callback.set_model(model)
    given.callbacks.extend(behind)
    try:
        yield given
    finally:
        given.callbacks[:] = before


def _evaluate(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        current.adopt_optimizer(self.optimizer, self.distribute_strategy)
        strategy = current.of_model(self)
        if strategy is None or kwargs.get("_use_cached_eval_dataset"):
            with activity.during(Activity.EVALUATING):
                return original(self, *args, **kwargs)
        _prepare(self, strategy)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments.get("callbacks")
        behind = [stopping.watcher(given, self, strategy.communicator)]
        with (
            _own_errors(strategy),
            local_sgd.loop(self, strategy),
            _followed(given, behind, self) as callbacks,
            activity.during(Activity.EVALUATING),
        ):
            bound.arguments["callbacks"] = callbacks
            return original(*bound.args, **bound.kwargs)

    return evaluate


def _prepare(model: Any, strategy: DataParallelStrategy) -> None:
    randomness.agree(strategy.communicator)
    if model.jit_compile:
        # XLA can't compile the collectives within a step, but parts of it.
        ahead.ask_for_jit(model)
        model.jit_compile = False
        model.train_function = model.test_function = model.predict_function = None


def _predict(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.of_model(self)
        if strategy is None:
            with activity.during(Activity.PREDICTING):
                return original(self, *args, **kwargs)
        _prepare(self, strategy)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments.get("callbacks")
        behind = [stopping.watcher(given, self, strategy.communicator)]
        # Keras fetches each batch eagerly here, however many it runs at once.
        with (
            _own_errors(strategy),
            local_sgd.loop(self, strategy),
            _followed(given, behind, self) as callbacks,
            strategy.extended.rows.listen() as rows,
            activity.during(Activity.PREDICTING),
        ):
            bound.arguments["callbacks"] = callbacks
            outputs = original(*bound.args, **bound.kwargs)
        if strategy.communicator.size == 1:
            return outputs
        order = _batch_order(rows, strategy)
        return tf.nest.map_structure(lambda part: _whole(part, order, strategy), outputs)

    return predict


def _batch_order(rows: list[int], strategy: DataParallelStrategy) -> np.ndarray:
    """Where each row of the global result stands in the rank-by-rank concatenation.

    Global batch k is rank 0's rows of step k, then rank 1's, and so on.
    """
    size = strategy.communicator.size
    counts = strategy.communicator.all_gather_numpy(np.array(rows, np.int64)).reshape(size, -1)
    starts = np.concatenate([[0], np.cumsum(counts.reshape(-1))[:-1]]).reshape(size, -1)
    pieces = [
        np.arange(start, start + count)
        for start, count in zip(starts.T.reshape(-1), counts.T.reshape(-1), strict=True)
    ]
    return np.concatenate(pieces) if pieces else np.zeros([0], np.int64)


def _whole(part: Any, order: np.ndarray, strategy: DataParallelStrategy) -> Any:
    if not isinstance(part, np.ndarray):
        raise DataError(
            f"predict() on {strategy.communicator.size} workers returned a {type(part).__name__}; "
            "expected dense outputs. Return dense tensors from the model, or predict on one worker."
        )
    return strategy.communicator.all_gather_numpy(part)[order]


def _on_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        current.adopt_optimizer(self.optimizer, self.distribute_strategy)
        strategy = current.of_model(self)
        if strategy is None:
            return original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        as_dict = arguments.pop("return_dict")
        data = {name: arguments[name] for name in ("x", "y", "sample_weight")}
        absence.expect(self, strategy, total_rows(data))
        arguments.update(strategy_rows(data, strategy))
        with _own_errors(strategy):
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
