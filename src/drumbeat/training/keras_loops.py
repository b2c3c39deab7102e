"""What the loops of Keras 3 and of Keras 2 have in common on many workers."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat.cluster import ClusterSpec
from drumbeat.cluster.identity import Identity
from drumbeat.data.failures import data_error
from drumbeat.errors import DataError
from drumbeat.strategies import choose
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.strategies.local_devices import LocalDevicesStrategy
from drumbeat.strategies.rebalance import Rebalancer
from drumbeat.training import divergence, local_sgd, obstacles, resuming, stopping

logger = logging.getLogger("drumbeat")


@contextlib.contextmanager
def own_errors(strategy: DataParallelStrategy) -> Iterator[None]:
    """Raises an error of a collective or of the data, of which TensorFlow reports only the text."""
    try:
        yield
    except tf.errors.OpError as error:
        strategy.communicator.raise_last_error()
        own = data_error(error)
        if own is None:
            raise
        raise own from error


class _Here(threading.local):
    alone = False
    """Keras's loop runs on this worker alone, and it has been said."""


_here = _Here()
_said: Any = weakref.WeakKeyDictionary()
"""What was said of each model last."""


@contextlib.contextmanager
def training_alone(model: Any, env: Mapping[str, str]) -> Iterator[None]:
    """Within this a worker trains `model` by itself; said where several workers do."""
    said = _why_alone(model, env)
    if said and _said.get(model) != said:
        logger.warning("%s", said)
    _said[model] = said
    before, _here.alone = _here.alone, True
    try:
        yield
    finally:
        _here.alone = before


def _why_alone(model: Any, env: Mapping[str, str]) -> str:
    """Why each of several workers trains a model of its own, in a sentence or two; or ""."""
    identity, cluster = Identity.from_env(env), ClusterSpec.from_env(env)
    if identity is None or identity.rank != 0:
        return ""
    if cluster is not None and "ps" in cluster.jobs and identity.world_size == 1:
        return (
            "This model was made outside of strategy.scope(), so the chief trains it alone, and "
            "the workers have nothing to do. For parameter servers, make it within "
            "`with drumbeat.strategy().scope():`; leave out --ps to train without them."
        )
    if identity.world_size == 1:
        return ""
    each = f"so each of the {identity.world_size} workers trains its own copy of"
    strategy = model.distribute_strategy
    if isinstance(strategy, LocalDevicesStrategy):
        return (
            f"{type(strategy).__name__} trains on the devices of one process, {each} this model on "
            "all of the data. To train one model together, give drumbeat run --strategy "
            "multi-worker, or use tf.distribute.MultiWorkerMirroredStrategy()."
        )
    existing = choose.existing()
    found = obstacles.obstacle(model)
    if found is not None and (existing is None or existing.extended.adopts):
        return f"This model has {found.what}, {each} it on all of the data. {found.advice}"
    return (
        f"This model was made outside of strategy.scope(), {each} it on all of the data. To train "
        "one model together, make it (and load it) within `with tf.distribute."
        "MultiWorkerMirroredStrategy().scope():`."
    )


def warn_of_a_loop_alone() -> None:
    """Say so, once, where each of several workers runs a loop of the script's own by itself."""
    if not _here.alone:
        _warn_of_a_loop_alone()


@functools.cache
def _warn_of_a_loop_alone() -> None:
    identity = Identity.from_env(os.environ)
    if identity is None or identity.world_size == 1 or identity.rank != 0:
        return
    logger.warning(
        "This training loop uses no strategy, so each of the %d workers trains its own copy of "
        "the model on all of the data. `fit` does without one; a loop has to give its steps to "
        "strategy.run, as in https://www.tensorflow.org/tutorials/distribute/custom_training.",
        identity.world_size,
    )


class TogetherHooks:
    """Starts all workers of a fit from the chief's state, and keeps their state and ways alike.

    A callback of either Keras, to stand behind the user's.

    Args:
        strategy: With which the model is trained.
    """

    def __init__(self, strategy: DataParallelStrategy) -> None:
        super().__init__()
        self._strategy = strategy
        self._communicator = strategy.communicator

    @property
    def _own_model(self) -> Any:
        return getattr(self, "model")  # noqa: B009  (of Keras's class beside this one)

    def on_train_begin(self, logs: Any = None) -> None:
        """The user's callbacks may have restored the chief's model."""
        del logs
        divergence.take_chiefs(self._own_model, self._communicator)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set here or at the beginning, `stop_training` ends the epoch after its first batch."""
        del epoch, logs
        stopping.agree(self._own_model, "stop_training", self._communicator)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """What some workers changed alone becomes the chief's."""
        del logs
        divergence.mend(self._own_model, self._communicator, f"at the end of epoch {epoch + 1}")
        stopping.agree(self._own_model, "stop_training", self._communicator)

    def on_train_end(self, logs: Any = None) -> None:
        """Here some callbacks bring back older weights."""
        del logs
        local_sgd.average_own(self._own_model, self._strategy)
        divergence.mend(self._own_model, self._communicator, "at the end of fit")


class RebalanceHooks:
    """Lets the workers' shares of a batch follow their speed.

    A callback of either Keras.

    Args:
        rebalancer: Of the strategy.
    """

    def __init__(self, rebalancer: Rebalancer) -> None:
        super().__init__()
        self._rebalancer = rebalancer

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A step begins."""
        del batch, logs
        self._rebalancer.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step has ended."""
        del batch, logs
        self._rebalancer.end()


@contextlib.contextmanager
def followed(given: Any, behind: list[Any], model: Any) -> Iterator[Any]:
    """What to give Keras as callbacks within this: the user's `given`, then those of `behind`."""
    if type(given).__name__ != "CallbackList":  # of Keras 3, or of tf_keras
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


def batch_order(rows: list[int], strategy: DataParallelStrategy) -> np.ndarray:
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


def all_rows(outputs: Any, rows: list[int], strategy: DataParallelStrategy) -> Any:
    """All workers' rows of what `predict` returned on this one, in the order of the data.

    Args:
        outputs: Arrays, in any structure.
        rows: Of this worker, in each batch.
        strategy: Of the workers.

    Raises:
        DataError: On all workers, where an output is no array, or has other rows than its input.
    """
    communicator = strategy.communicator
    parts: list[Any] = tf.nest.flatten(outputs)
    for part in parts:
        if not isinstance(part, np.ndarray):
            raise DataError(
                f"predict() on {communicator.size} workers returned a {type(part).__name__}; "
                "expected dense outputs. Return dense tensors from the model, or predict on one "
                "worker."
            )
    mine = [sum(rows), *(len(part) if part.ndim else 1 for part in parts)]
    of_each = communicator.all_gather_numpy(np.array([mine], np.int64), name="predicted rows")
    for rank, (expected, *received) in enumerate(of_each.tolist()):
        if other := [count for count in received if count != expected]:
            raise DataError(
                f"predict() on {communicator.size} workers: an output has {other[0]} rows for "
                f"{expected} rows of input (on worker {rank}); expected one for each, by which the "
                "workers' outputs are put together. Have the model return [rows, n, ...] where it "
                "has n for each row, or call it, as model(x): a worker computes that by itself."
            )
    order = batch_order(rows, strategy)
    return tf.nest.map_structure(lambda part: communicator.all_gather_numpy(part)[order], outputs)


def run(
    original: Callable[..., Any],
    model: Any,
    strategy: DataParallelStrategy | None,
    arguments: Mapping[str, Any],
    behind: list[Any],
    of: type[resuming.FitPhase] = resuming.FitPhase,
) -> Any:
    """Keras's `fit`, or what is left of it after a restart.

    Args:
        original: Keras's.
        model: To be fitted.
        strategy: With which all workers train it; None for a training of this worker's own.
        arguments: Of `fit`, by name.
        behind: Callbacks to put behind the user's.
        of: Class of phases of that Keras.
    """
    phase = resuming.begin(model, strategy, arguments, of)
    if phase is not None and phase.finished is not None:
        return phase.pass_over(original, arguments)
    with contextlib.ExitStack() as stack:
        if phase is not None:
            stack.enter_context(phase)
            stack.enter_context(phase.report.running(model))
            behind = [*behind, *phase.behind]
        callbacks = stack.enter_context(followed(arguments.get("callbacks"), behind, model))
        result = original(**{**arguments, "callbacks": callbacks})
        if phase is not None:
            phase.finish()
        return result
