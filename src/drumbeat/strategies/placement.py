"""On which devices of its process a worker computes, and where its variables are."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from drumbeat.errors import ConfigError


@dataclass(frozen=True)
class Placement:
    """Devices, by names such as "/device:GPU:1".

    Attributes:
        devices: One for each replica; in exact mode the virtual shards are spread over
            them. Empty: one replica, for which TensorFlow chooses.
        parameters: Where variables are, and gradients are summed; "" as TensorFlow chooses.
    """

    devices: tuple[str, ...] = ()
    parameters: str = ""

    @classmethod
    def over(cls, devices: Sequence[str]) -> Placement:
        """Replicas on `devices`, variables on the first of them."""
        return cls(tuple(devices), devices[0]) if devices else cls()

    def of_replica(self, index: int, count: int) -> AbstractContextManager[Any]:
        """Within this, operations are placed on the device of replica `index` of `count`."""
        return _on(self.devices[index * len(self.devices) // count] if self.devices else "")

    def of_variables(self) -> AbstractContextManager[Any]:
        """Within this, operations are placed where variables are."""
        return _on(self.parameters)


def _on(device: str) -> AbstractContextManager[Any]:
    return tf.device(device) if device else contextlib.nullcontext()


def local_devices() -> tuple[str, ...]:
    """All devices of this process to train on: its GPUs, or else its (logical) CPUs."""
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tuple(str(device.name) for device in found)


def first_devices(count: int) -> tuple[str, ...]:
    """The first `count` of `local_devices`; none for one, for which TensorFlow may choose.

    Raises:
        ConfigError: There are fewer.
    """
    if count == 1:
        return ()
    found = local_devices()
    if len(found) < count:
        raise ConfigError(
            f"A worker was to train on {count} devices, but this process has {len(found)}: "
            f"{', '.join(found)}. Ask for fewer with --devices-per-worker."
        )
    return found[:count]


def checked(devices: Sequence[str]) -> tuple[str, ...]:
    """`devices`, spelled in any of TensorFlow's ways, by the names that TensorFlow gives them.

    Raises:
        ConfigError: One doesn't exist, is there twice, or is none.
    """
    known = [str(device.name) for device in tf.config.list_logical_devices()]
    names = tuple(_name(device) for device in devices)
    strange = [given for given, name in zip(devices, names, strict=True) if name not in known]
    if strange or not names or len(set(names)) < len(names):
        raise ConfigError(
            f"devices are {list(devices)}; expected some of {known}, each once. On a machine "
            "without GPUs, drumbeat run --devices-per-worker N makes N parts of the CPU."
        )
    return names


def _name(device: str) -> str:
    try:
        spec = tf.DeviceSpec.from_string(str(device))
    except ValueError:
        return ""
    return f"/device:{str(spec.device_type).upper()}:{spec.device_index or 0}"


def make_logical_cpus(count: int) -> None:
    """On a machine without GPUs, have TensorFlow take the CPU for `count` devices.

    They share its cores and threads: good for trying out what is meant for GPUs, no faster.

    Raises:
        ConfigError: TensorFlow has begun to work before.
    """
    cpus = tf.config.list_physical_devices("CPU")
    if tf.config.list_physical_devices("GPU") or not cpus:
        return
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    try:
        tf.config.set_logical_device_configuration(cpus[0], parts)
    except RuntimeError as error:
        raise ConfigError(
            f"The CPU was to be taken for {count} devices, but TensorFlow has already started: "
            f"{error}. Expected this to be the first that a process does with it."
        ) from None
