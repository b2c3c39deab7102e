"""Lets scripts that name TensorFlow's multi-worker strategy get ours."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from drumbeat.strategies import choose
from drumbeat.strategies.data_parallel import DataParallelStrategy


class _StandIn(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, DataParallelStrategy)


class MultiWorkerMirroredStrategy(DataParallelStrategy, metaclass=_StandIn):
    """Takes the arguments of `tf.distribute.MultiWorkerMirroredStrategy` and yields our strategy.

    `isinstance` says so of it, as scripts ask.

    `cluster_resolver` is not asked: the agent that started this worker knows the
    cluster. `communication_options` and the older `communication` choose between
    TensorFlow's transports and have no meaning here; `drumbeat run --collectives`
    takes their place.
    """

    def __new__(
        cls,
        cluster_resolver: Any = None,
        communication_options: Any = None,
        communication: Any = None,
    ) -> Any:
        """The process's data-parallel strategy."""
        del cluster_resolver, communication_options, communication
        return choose.multi_worker()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: `__new__` returns a finished strategy."""


def install() -> None:
    """Put the stand-in where scripts look for TensorFlow's class."""
    tf.distribute.MultiWorkerMirroredStrategy = MultiWorkerMirroredStrategy
    tf.distribute.experimental.MultiWorkerMirroredStrategy = MultiWorkerMirroredStrategy
