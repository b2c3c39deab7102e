"""TensorFlow's strategies for the devices of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# What stands in for them under `drumbeat run` has the same names.
MirroredStrategy = tf.distribute.MirroredStrategy
CentralStorageStrategy = tf.distribute.experimental.CentralStorageStrategy


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


def mirrored(
    devices: Sequence[str] | None = None, cross_device_ops: Any = None
) -> tf.distribute.MirroredStrategy:
    """Every device holds all variables; gradients are summed.

    Args:
        devices: Names such as "GPU:0"; None for all.
        cross_device_ops: How TensorFlow sums; None for what suits the devices.
    """
    return MirroredStrategy(devices, cross_device_ops)


def central_storage(
    compute_devices: Sequence[str] | None = None, parameter_device: str | None = None
) -> tf.distribute.Strategy:
    """One device holds the variables, the others compute.

    Args:
        compute_devices: Names such as "GPU:0"; None for all.
        parameter_device: Its name; None for the CPU, or the only GPU.
    """
    return CentralStorageStrategy(compute_devices, parameter_device)
