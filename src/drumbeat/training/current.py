"""Which data-parallel strategy, if any, the code at hand runs under."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from drumbeat.strategies import choose
from drumbeat.strategies.data_parallel import DataParallelStrategy


def _parallel(strategy: Any) -> DataParallelStrategy | None:
    if isinstance(strategy, DataParallelStrategy) and strategy.extended.replicas.total > 1:
        return strategy
    return None


def of_model(model: Any) -> DataParallelStrategy | None:
    """The strategy `model` was built under, when it is ours with more than one replica."""
    return _parallel(getattr(model, "distribute_strategy", None))


METRIC_STRATEGY = "_drumbeat_strategy"
"""The attribute of a metric that was made under our strategy."""


def adopt(
    model: Any, strategy_in: str, metrics_of: Callable[[Any], Iterable[Any]]
) -> DataParallelStrategy | None:
    """As `of_model`, for what is about to run `model`, of either Keras.

    A model of a script that names no strategy is trained by all workers, with metrics that are
    of all, if its steps are Keras's own. An optimizer that was made outside of `strategy.scope()`
    works under it.

    Args:
        model: A model of Keras.
        strategy_in: The attribute in which it has its strategy.
        metrics_of: Finds all of its metrics.

    Raises:
        ConfigError: As `choose.strategy`.
        CollectiveError: The other workers can't be reached.
    """
    implied = None if own_step(model) else choose.implied()
    if implied is not None and getattr(model, strategy_in) in (None, implied):
        setattr(model, strategy_in, implied)
        for metric in metrics_of(model):
            # Not by setattr, in which Keras looks for layers and variables to track.
            metric.__dict__[METRIC_STRATEGY] = implied
    adopt_optimizer(getattr(model, "optimizer", None), model.distribute_strategy)
    return of_model(model)


_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "make_train_function")


def own_step(model: Any) -> str:
    """What of a model's steps isn't Keras's own, such as "train_step", or "".

    Its author wrote it for one worker: a mean over the rows that it is given would be a mean over
    a worker's own, and the sum of the workers' gradients another gradient.
    """
    for name in _STEPS:
        module = str(getattr(getattr(model, name, None), "__module__", ""))
        if not module.startswith(("keras.src.", "tf_keras.src.")):
            return name
    return ""


def adopt_optimizer(optimizer: Any, strategy: Any) -> None:
    """Let an optimizer made outside of `strategy.scope()` work under it.

    Keras notes the strategy that is current when an optimizer is made; TensorFlow
    then refuses to let it touch variables of another.
    """
    if optimizer is None or not isinstance(strategy, DataParallelStrategy):
        return
    optimizer._distribution_strategy = strategy
    # LossScaleOptimizer holds one, MultiOptimizer several.
    held = [getattr(optimizer, "inner_optimizer", None)]
    for inner in [*held, *getattr(optimizer, "_inner_optimizers", ())]:
        adopt_optimizer(inner, strategy)


def in_replica() -> DataParallelStrategy | None:
    """Our strategy, when the caller runs inside its `run` and has other replicas beside it."""
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return None
    return _parallel(tf.distribute.get_strategy())


def at_hand() -> DataParallelStrategy | None:
    """Our strategy with several replicas, when the caller is in its scope or its `run`."""
    return _parallel(tf.distribute.get_strategy())
