"""Which data-parallel strategy, if any, the code at hand runs under."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from drumbeat.strategies.data_parallel import DataParallelStrategy


def _parallel(strategy: Any) -> DataParallelStrategy | None:
    if isinstance(strategy, DataParallelStrategy) and strategy.extended.replicas.total > 1:
        return strategy
    return None


def of_model(model: Any) -> DataParallelStrategy | None:
    """The strategy `model` was built under, when it is ours with more than one replica."""
    return _parallel(getattr(model, "distribute_strategy", None))


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
