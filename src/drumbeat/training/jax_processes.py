"""What makes several processes one for JAX; preloaded by workers of `--backend jax`.

The agent's parent process imports it, and with it JAX and Keras, before it forks the
workers. Importing makes none of JAX's backends, so that each worker makes its own.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras  # noqa: F401  (preloaded for the workers)

from drumbeat.cluster import ClusterSpec
from drumbeat.cluster.identity import Identity
from drumbeat.errors import ConfigError
from drumbeat.training import seeds

jax: Any = importlib.import_module("jax")  # an extra: not in every environment

# What it warns of are threads that hold locks; so far there is no backend, and so none.
warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)


def install(env: Mapping[str, str] | None = None) -> None:
    """Prepares a forked worker before its script starts.

    Joins it with the others: `jax.devices()` are those of all of them, each has one, and
    `jax.process_index()` is its rank. Seeds Python and NumPy alike on all workers, from which
    Keras draws its own seeds.

    Raises:
        ConfigError: There is no address to meet at.
    """
    env = os.environ if env is None else env
    identity = Identity.from_env(env)
    if identity is None:
        return
    if identity.seed is not None:
        seeds.sow(identity.seed)
    if identity.world_size == 1:
        return
    # Carries what XLA's programs sum on CPUs; NCCL does on GPUs. MPI would need MPIwrapper.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=_meeting_point(env),
        num_processes=identity.world_size,
        process_id=identity.rank,
        initialization_timeout=int(identity.timeout_s),
    )
    jax.distributed.initialize = _once(identity)


def _meeting_point(env: Mapping[str, str]) -> str:
    cluster = ClusterSpec.from_env(env)
    if cluster is None or not cluster.tasks:
        raise ConfigError(
            "TF_CONFIG names no workers, so there is no address at which JAX's processes can "
            "meet; expected it as `drumbeat run` sets it."
        )
    return cluster.address(cluster.tasks[0])


def _once(identity: Identity) -> Callable[..., None]:
    """For scripts that call it themselves, as Keras's guide has it: JAX refuses a second call."""

    def initialize(*args: Any, **kwargs: Any) -> None:
        asked = kwargs.get("num_processes")
        if asked not in (None, identity.world_size):
            raise ConfigError(
                f"The script asks JAX for {asked} processes, but drumbeat run has started "
                f"{identity.world_size}, which JAX knows already. Leave the call out, or ask for "
                "as many."
            )

    return initialize
