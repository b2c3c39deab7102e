"""Lets scripts that name TensorFlow's strategies get those that fit, made to work with Keras 3."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from drumbeat.cluster import strategy_names as names
from drumbeat.strategies import choose
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.strategies.local_devices import (
    CentralStorageStrategy as TheirCentralStorageStrategy,
)
from drumbeat.strategies.local_devices import MirroredStrategy as TheirMirroredStrategy
from drumbeat.strategies.parameter_server import (
    ParameterServerStrategy as TheirParameterServerStrategy,
)


class _StandIn(type):
    """Class of the stand-ins: what they yield counts as their instance, as scripts ask."""

    meant: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.meant)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.meant)


class MultiWorkerMirroredStrategy(DataParallelStrategy, metaclass=_StandIn):
    """Takes the arguments of `tf.distribute.MultiWorkerMirroredStrategy` and yields our strategy.

    Or the one that `drumbeat run --strategy` names, as all of these do. `isinstance` says of
    what it yields that it is one, as scripts ask.

    `cluster_resolver` is not asked: the agent that started this worker knows the
    cluster. `communication_options` and the older `communication` choose between
    TensorFlow's transports and have no meaning here; `drumbeat run --collectives`
    takes their place.
    """

    meant = DataParallelStrategy

    def __new__(
        cls,
        cluster_resolver: Any = None,
        communication_options: Any = None,
        communication: Any = None,
    ) -> Any:
        """The process's data-parallel strategy."""
        del cluster_resolver, communication_options, communication
        return choose.named(names.MULTI_WORKER)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: `__new__` returns a finished strategy."""


class MirroredStrategy(metaclass=_StandIn):
    """Takes the arguments of `tf.distribute.MirroredStrategy`."""

    meant = TheirMirroredStrategy

    def __new__(cls, devices: Any = None, cross_device_ops: Any = None) -> Any:
        """All devices of this process, or those that are given."""
        return choose.named(names.MIRRORED, devices=devices, cross_device_ops=cross_device_ops)


class CentralStorageStrategy(metaclass=_StandIn):
    """Takes the arguments of `tf.distribute.experimental.CentralStorageStrategy`."""

    meant = TheirCentralStorageStrategy

    def __new__(cls, compute_devices: Any = None, parameter_device: Any = None) -> Any:
        """All devices of this process, or those that are given."""
        return choose.named(
            names.CENTRAL_STORAGE,
            compute_devices=compute_devices,
            parameter_device=parameter_device,
        )


class ParameterServerStrategy(metaclass=_StandIn):
    """Takes the arguments of `tf.distribute.ParameterServerStrategy`.

    `cluster_resolver` is asked only where the job has no ps tasks: else the agent that started
    this process knows the cluster.
    """

    meant = TheirParameterServerStrategy

    def __new__(cls, cluster_resolver: Any = None, variable_partitioner: Any = None) -> Any:
        """The strategy of the chief."""
        return choose.named(
            names.PARAMETER_SERVER,
            resolver=cluster_resolver,
            variable_partitioner=variable_partitioner,
        )


def install() -> None:
    """Put the stand-ins where scripts look for TensorFlow's classes."""
    for place in (tf.distribute, tf.distribute.experimental):
        place.MultiWorkerMirroredStrategy = MultiWorkerMirroredStrategy
        place.ParameterServerStrategy = ParameterServerStrategy
    tf.distribute.MirroredStrategy = MirroredStrategy
    tf.distribute.experimental.CentralStorageStrategy = CentralStorageStrategy
