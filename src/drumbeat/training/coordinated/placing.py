"""Variables that were made outside of the strategy's scope go to the ps tasks, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from drumbeat.errors import ConfigError
from drumbeat.strategies.parameter_server import ParameterServerStrategy
from drumbeat.training.coordinated.variables import ShardedKerasVariable, is_on_ps


def place(model: Any, strategy: ParameterServerStrategy) -> None:
    """Moves what a step of `model` uses to the ps tasks, with its value.

    That is the variables of an optimizer, and of metrics, of a `compile` outside of
    `strategy.scope()`.

    Raises:
        ConfigError: The optimizer can't update variables in parts, and there are some.
    """
    for optimizer in _optimizers(getattr(model, "optimizer", None)):
        optimizer._distribution_strategy = strategy
        if isinstance(optimizer, keras.optimizers.Adafactor):
            _refuse_parts(model)
    for variable in _variables(model):
        own = getattr(variable, "_value", None)
        if own is None or isinstance(own, tf.Tensor) or callable(own) or is_on_ps(variable):
            continue
        value = own.numpy()
        with strategy.scope():
            variable._value = tf.Variable(
                value, dtype=own.dtype, trainable=own.trainable, name=variable.name
            )


def _refuse_parts(model: Any) -> None:
    """Raises ConfigError where a weight is in parts, of which Adafactor's factors are not."""
    for variable in model.trainable_variables:
        if isinstance(variable, ShardedKerasVariable):
            raise ConfigError(
                f"Adafactor can't update {variable.path}, which is in several parts. Take another "
                "optimizer, such as Adagrad or Adam, or leave out the variable_partitioner."
            )


def _variables(model: Any) -> Iterator[Any]:
    yield from model.variables
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        yield from optimizer.variables
    for metric in model.metrics:
        yield from metric.variables


def _optimizers(optimizer: Any) -> Iterator[Any]:
    if optimizer is None:
        return
    yield optimizer
    yield from _optimizers(getattr(optimizer, "inner_optimizer", None))
    for inner in getattr(optimizer, "_inner_optimizers", ()):
        yield from _optimizers(inner)
