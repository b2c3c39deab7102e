"""Several devices in one process, as `MirroredStrategy` and `CentralStorageStrategy` use them.

Under TensorFlow's own, Keras 3's `fit` doesn't train the model that it trains on one
device (docs/strategies.md has the list). These are subclasses of them, and are known as
such, but run on the machinery of `DataParallelStrategy`: the rows of every batch are
spread over the devices, each gradient is summed with the weight of its rows before it is
clipped or scaled, and the optimizer updates once.

Both keep each variable once: on the first device or, as central storage, on the CPU where
there are GPUs. The other devices get what they read of it in each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from drumbeat.collectives.local import LocalCommunicator
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.strategies.placement import Placement, checked, local_devices
from drumbeat.tf_internals import TFCentralStorageStrategy, TFMirroredStrategy

CPU = "/device:CPU:0"


class LocalDevicesStrategy(DataParallelStrategy):
    """Synchronous training on the devices of one process.

    As `DataParallelStrategy` with one worker and a replica on each device: the same
    weights, losses and metrics as on one device, within rounding, for any number of rows
    in a batch.

    Args:
        placement: The devices.
    """

    def __init__(self, placement: Placement) -> None:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
        super().__init__(LocalCommunicator(), resolver, placement=placement)


class MirroredStrategy(LocalDevicesStrategy, TFMirroredStrategy):
    """What `tf.distribute.MirroredStrategy()` returns under `drumbeat run`."""


class CentralStorageStrategy(LocalDevicesStrategy, TFCentralStorageStrategy):
    """What `tf.distribute.experimental.CentralStorageStrategy()` returns under `drumbeat run`."""


_made: dict[tuple[type, Placement], LocalDevicesStrategy] = {}


def mirrored(devices: Sequence[str] | None = None, cross_device_ops: Any = None) -> Any:
    """A `tf.distribute.MirroredStrategy` that trains on several devices as on one.

    Args:
        devices: Such as ["GPU:0", "GPU:1"]; None for all GPUs, or all CPUs without any.
        cross_device_ops: How TensorFlow's own would sum over the devices; has no meaning here.

    Raises:
        ConfigError: There are no such devices.
    """
    del cross_device_ops
    used = local_devices() if devices is None else checked(devices)
    return _the_one(MirroredStrategy, Placement(used, used[0]))


def central_storage(
    compute_devices: Sequence[str] | None = None, parameter_device: str | None = None
) -> Any:
    """A `tf.distribute.experimental.CentralStorageStrategy` that trains as on one device.

    Args:
        compute_devices: As in `mirrored`.
        parameter_device: Where variables are; None for the CPU, or where there is only one
            device for that.

    Raises:
        ConfigError: There are no such devices.
    """
    used = local_devices() if compute_devices is None else checked(compute_devices)
    if parameter_device is not None:
        parameters = checked([parameter_device])[0]
    else:
        parameters = used[0] if len(used) == 1 else CPU
    return _the_one(CentralStorageStrategy, Placement(used, parameters))


def count() -> int:
    """Devices that this process may train on: GPUs, or the parts of its CPU.

    Asking starts no device, so they can still be configured.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return len(gpus)
    cpus = tf.config.list_physical_devices("CPU")
    parts = tf.config.get_logical_device_configuration(cpus[0]) if cpus else None
    return len(parts) if parts else 1


def existing() -> LocalDevicesStrategy | None:
    """The one of this process that was made last, if any was."""
    return next(reversed(_made.values()), None)


def _the_one(kind: type[LocalDevicesStrategy], placement: Placement) -> Any:
    # Models that a script makes under the same strategy, asked for anew, belong together.
    made = _made.pop((kind, placement), None) or kind(placement)
    _made[kind, placement] = made
    return made
