"""Which data-parallel strategy, if any, the code at hand runs under."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from drumbeat.strategies import choose
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import obstacles


def _parallel(strategy: Any) -> DataParallelStrategy | None:
    if isinstance(strategy, DataParallelStrategy) and strategy.extended.replicas.total > 1:
        return strategy
    return None


def of_model(model: Any) -> DataParallelStrategy | None:
    """The strategy `model` was built under, when it is ours with more than one replica."""
    return _parallel(getattr(model, "distribute_strategy", None))


_METRIC_STRATEGY = "_drumbeat_strategy"


def of_metric(metric: Any) -> DataParallelStrategy | None:
    """The strategy whose replicas each count a part of what `metric` measures."""
    return metric.__dict__.get(_METRIC_STRATEGY)


def count_under(metric: Any, strategy: DataParallelStrategy) -> None:
    """Have the replicas of `strategy` each count a part of what `metric` measures."""
    # Not by setattr, in which Keras looks for layers and variables to track.
    metric.__dict__[_METRIC_STRATEGY] = strategy


def adopt(
    model: Any, strategy_in: str, metrics_of: Callable[[Any], Iterable[Any]]
) -> DataParallelStrategy | None:
    """As `of_model`, for what is about to run `model`, of either Keras.

    A model of a script that names no strategy is trained by all workers, with metrics that are
    of all, if it has none of the `obstacles`. An optimizer that was made outside of its scope
    works under it.

    Args:
        model: A model of Keras.
        strategy_in: The attribute in which it has its strategy.
        metrics_of: Finds all of its metrics.

    Raises:
        ConfigError: As `choose.strategy`.
        CollectiveError: The other workers can't be reached.
    """
    strategy = getattr(model, strategy_in)
    is_adopted = isinstance(strategy, DataParallelStrategy) and strategy.extended.adopts
    # Layers are looked through only where it matters: this runs for each batch of a loop.
    if (strategy is None or is_adopted) and choose.is_asked_for():
        if obstacles.obstacle(model) is None:
            strategy = strategy or choose.implied()
        elif is_adopted:  # Compiled anew since then.
            strategy = None
            _let_go(model, metrics_of)
        setattr(model, strategy_in, strategy)
    if isinstance(strategy, DataParallelStrategy) and strategy.extended.adopts:
        for metric in metrics_of(model):
            count_under(metric, strategy)
    adopt_optimizer(getattr(model, "optimizer", None), model.distribute_strategy)
    return of_model(model)


def _let_go(model: Any, metrics_of: Callable[[Any], Iterable[Any]]) -> None:
    """Undo what `adopt` has done, but for the model's own note."""
    model.train_function = model.test_function = model.predict_function = None
    for metric in metrics_of(model):
        metric.__dict__.pop(_METRIC_STRATEGY, None)
    _note(getattr(model, "optimizer", None), tf.distribute.get_strategy())


def adopt_optimizer(optimizer: Any, strategy: Any) -> None:
    """Let an optimizer made outside of `strategy.scope()` work under it.

    Keras notes the strategy that is current when an optimizer is made; TensorFlow
    then refuses to let it touch variables of another.
    """
    if isinstance(strategy, DataParallelStrategy):
        _note(optimizer, strategy)


def _note(optimizer: Any, strategy: Any) -> None:
    if optimizer is None:
        return
    optimizer._distribution_strategy = strategy
    # LossScaleOptimizer holds one, MultiOptimizer several.
    held = [getattr(optimizer, "inner_optimizer", None)]
    for inner in [*held, *getattr(optimizer, "_inner_optimizers", ())]:
        _note(inner, strategy)


def in_replica() -> DataParallelStrategy | None:
    """Our strategy, when the caller runs inside its `run` and has other replicas beside it."""
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context() or _here.alone:
        return None
    return _parallel(tf.distribute.get_strategy())


class _Here(threading.local):
    alone = False
    """What runs has the global batch."""


_here = _Here()


@contextlib.contextmanager
def as_one_worker(strategy: DataParallelStrategy) -> Iterator[None]:
    """Within this, in this thread, losses are as of a single worker: they get the global batch."""
    before = _here.alone
    _here.alone = True
    try:
        with strategy.extended.counted_as(1):
            yield
    finally:
        _here.alone = before


def with_whole_batches() -> DataParallelStrategy | None:
    """As `in_replica`, where one number for a batch has to be that of the global batch."""
    strategy = in_replica()
    if strategy is None or not strategy.extended.adopts or strategy.extended.local_sgd is not None:
        return None
    return strategy


def at_hand() -> DataParallelStrategy | None:
    """Our strategy with several replicas, when the caller is in its scope or its `run`."""
    return _parallel(tf.distribute.get_strategy())
