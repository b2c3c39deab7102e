"""`--backend jax`: processes for Keras's JAX backend, of which JAX itself is the engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

from drumbeat.cluster import strategy_names
from drumbeat.cluster.identity import BACKENDS, JAX
from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.launch import parent
from drumbeat.launch.sizes import Range

if TYPE_CHECKING:
    from drumbeat.launch.settings import RunArguments

BACKEND_VARIABLE = "KERAS_BACKEND"


def check_backend(arguments: RunArguments) -> None:
    """Looks whether the backend is one that can run, with what else was asked for.

    Raises:
        ConfigError: It isn't, or can't.
    """
    if arguments.backend not in BACKENDS:
        raise ConfigError(
            f"--backend is {shown(arguments.backend)}; expected one of {listed(BACKENDS)}."
        )
    if arguments.backend != JAX:
        return
    others = {
        f"--strategy {arguments.strategy}": arguments.strategy != strategy_names.AUTO,
        "--ps": arguments.ps,
        "--evaluator": arguments.evaluator,
        "--devices-per-worker": arguments.devices_per_worker,
        "--exact": arguments.exact,
        "--shares": arguments.shares,
        "--compress": arguments.compress != "none",
        "--sync-every": arguments.sync_every,
        "--jit": arguments.jit != "auto",
        "--collectives": arguments.collectives != "auto",
        "--snapshot-every": arguments.snapshot_every,
        "--backup-dir": arguments.backup_dir,
        "--inject": arguments.inject,
        f"-n {arguments.workers}": isinstance(arguments.workers, Range),
    }
    for option, is_given in others.items():
        if is_given:
            raise ConfigError(
                f"{option} and --backend jax were both given, but JAX trains by itself, with what "
                "the script says by keras.distribution: drumbeat starts its processes, and starts "
                "them again. Leave one of the two out."
            )
    if importlib.util.find_spec("jax") is None:
        raise ConfigError(
            "--backend jax was given, but jax is not installed here. Install it beside drumbeat: "
            "pip install 'drumbeat[jax]'"
        )


def preload_of(backend: str) -> str:
    """The module that is imported before workers are forked."""
    return parent.JAX_PRELOAD if backend == JAX else parent.DEFAULT_PRELOAD


def environ_of(backend: str, environ: Mapping[str, str]) -> tuple[Mapping[str, str], str]:
    """The environment of all processes, and what is to be said of it; "" for nothing."""
    if backend != JAX:
        return environ, ""
    before = environ.get(BACKEND_VARIABLE, JAX)
    note = "" if before == JAX else f"--backend jax wins over {BACKEND_VARIABLE}={before}."
    return {**environ, BACKEND_VARIABLE: JAX}, note
