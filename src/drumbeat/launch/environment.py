"""The environment a worker starts in: its cores, threads, GPU and variables.

Measured, this is worth more than any code (DESIGN.md): oneDNN alone takes a
small CNN's step from 33 to 9 ms on an AMD core, and too many threads on a
small machine cost more than half of the speed. Pure functions, except
`find_gpus`, which asks the driver.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drumbeat.cluster.identity import Identity

NVIDIA_SMI_TIMEOUT_S = 20.0
# At start-up TensorFlow's C++ side remarks on CUDA libraries and CPU features, in every worker:
# as INFO and WARNING, which 2 hides, and on machines without a GPU as an ERROR, which 3 hides.
LOG_LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
NO_GPU = "-1"
"""CUDA_VISIBLE_DEVICES of a process that shall not take any."""
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
HASH_SEED = {"PYTHONHASHSEED": "0"}
"""What Python hashes strings with, and so the order of a set of them, alike on all workers.

Python reads it when it starts, and the process that the workers are forked from starts before
nodes meet and agree on a seed: so it is one number for all jobs.
"""
NONE_CHOSEN: Mapping[str, str] = {}
# The token opens the job's rendezvous; a script has no use for it and may print its environment.
SECRET_VARIABLES = ("DRUMBEAT_TOKEN",)


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of a node that one worker gets.

    Attributes:
        cpus: Numbers of the CPUs it may run on; empty to leave that alone.
        threads: How many threads TensorFlow may use for one operation.
        gpu: Its device or devices as CUDA_VISIBLE_DEVICES names them; None without GPUs.
    """

    cpus: tuple[int, ...]
    threads: int
    gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerEnvironment:
    """Everything that differs between the processes of a node.

    Attributes:
        variables: The complete environment, nothing is inherited beyond it.
        cpus: As in `Share`.
    """

    variables: Mapping[str, str]
    cpus: tuple[int, ...] = field(default=())


def share_of(
    cpus: Sequence[int],
    gpus: Sequence[str],
    local_rank: int,
    local_world_size: int,
    limit: float | None = None,
    devices: int | None = 1,
) -> Share:
    """The CPUs and the GPUs of worker `local_rank` of `local_world_size` on a node.

    Every worker gets equally many neighbouring CPUs (they share caches and
    memory); a remainder stays free for the agent and the system, because the
    workers wait for the slowest of them anyway. With fewer CPUs than workers,
    CPUs go round, as GPUs do.

    Where a container may use less than the CPUs it sees, threads are as many as its limit
    leaves, and run anywhere: other containers, told nothing either, would choose the same
    CPUs.

    Args:
        cpus: Numbers of the CPUs the agent may use, ascending; empty if unknown.
        gpus: Names of the node's GPUs.
        local_rank: 0 to `local_world_size - 1`.
        local_world_size: At least 1.
        limit: See `machine.cpu_limit`.
        devices: How many GPUs it gets, as far as there are so many; None for all.
    """
    gpu = _gpus(gpus, local_rank, len(gpus) if devices is None else devices)
    if limit is not None and limit < len(cpus):
        return Share(cpus=(), threads=max(int(limit / local_world_size), 1), gpu=gpu)
    if not cpus:
        return Share(cpus=(), threads=1, gpu=gpu)
    size = len(cpus) // local_world_size
    if size == 0:
        return Share(cpus=(cpus[local_rank % len(cpus)],), threads=1, gpu=gpu)
    start = local_rank * size
    return Share(cpus=tuple(cpus[start : start + size]), threads=size, gpu=gpu)


def _gpus(gpus: Sequence[str], local_rank: int, count: int) -> str | None:
    if not gpus:
        return None
    first = local_rank * count
    wanted = range(first, first + min(count, len(gpus)))
    return ",".join(gpus[number % len(gpus)] for number in wanted)


def usual_variables(share: Share) -> dict[str, str]:
    """The settings of TensorFlow that a worker has unless another is measured to be better."""
    return {**{name: str(share.threads) for name in THREAD_VARIABLES}, ONEDNN_VARIABLE: "1"}


def parent_variables(
    environ: Mapping[str, str], share: Share, chosen: Mapping[str, str] = NONE_CHOSEN
) -> dict[str, str]:
    """The environment of the process that imports TensorFlow before the workers are forked.

    A variable that the user has set stays as it is.

    Args:
        environ: The agent's own environment.
        share: The share of one worker: TensorFlow reads some of its settings,
            and others count their threads, when their library is loaded.
        chosen: What is set otherwise than usual, see `Tuner`.
    """
    variables = {**HASH_SEED, **usual_variables(share), **chosen}
    variables[LOG_LEVEL_VARIABLE] = "3" if share.gpu is None else "2"
    variables.update(environ)
    for name in SECRET_VARIABLES:
        variables.pop(name, None)
    return variables


def worker_environment(
    *,
    environ: Mapping[str, str],
    share: Share,
    identity: Identity,
    tf_config: str | None,
    mpi: Mapping[str, str] | None = None,
    chosen: Mapping[str, str] = NONE_CHOSEN,
) -> WorkerEnvironment:
    """The environment of one worker.

    Args:
        environ: The agent's own environment; what the user set there wins over
            what is chosen here, apart from TF_CONFIG, PMI_* and DRUMBEAT_*.
        share: The worker's part of the node.
        identity: Who it is.
        tf_config: The job as this task sees it, JSON; None to have no TF_CONFIG.
        mpi: Variables of the MPI library; None without MPI.
        chosen: See `parent_variables`.
    """
    variables = parent_variables(environ, share, chosen)
    if share.gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = share.gpu
    variables.pop("TF_CONFIG", None)
    if tf_config is not None:
        variables["TF_CONFIG"] = tf_config
    for name in [name for name in variables if name.startswith(("PMI_", "PMIX_"))]:
        # Left by a batch system's own launcher; MPI would listen to it instead of to us.
        del variables[name]
    variables.update(mpi or {})
    variables.update(identity.to_env())
    return WorkerEnvironment(variables=variables, cpus=share.cpus)


def find_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The NVIDIA GPUs that workers may use, as CUDA_VISIBLE_DEVICES names them.

    CUDA_VISIBLE_DEVICES decides if it is set (CUDA stops reading it at the
    first -1), else the driver's `nvidia-smi -L` is asked. No driver, no GPU.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        for stop in ("-1", ""):
            names = names[: names.index(stop)] if stop in names else names
        return tuple(names)
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return ()
    try:
        listing = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if listing.returncode != 0:
        return ()
    lines = [line for line in listing.stdout.splitlines() if line.startswith("GPU ")]
    return tuple(str(index) for index in range(len(lines)))


def mpi_is_installed() -> bool:
    """Whether mpi4py can be found; importing it here would start MPI in the agent."""
    return importlib.util.find_spec("mpi4py") is not None


def choose_collectives(requested: str, *, gpus: bool, mpi: bool) -> tuple[str, str]:
    """Which engine carries the collectives, and why, for the log.

    Args:
        requested: "auto", "mpi" or "tensorflow".
        gpus: Whether any node has a GPU.
        mpi: Whether every node has MPI installed.

    Returns:
        "mpi" or "tensorflow", and the reason.
    """
    if requested != "auto":
        return requested, "as asked for"
    if gpus:
        return "tensorflow", "there are GPUs, NCCL serves them best"
    if not mpi:
        return "tensorflow", "mpi4py and mpich are not installed"
    return "mpi", "no GPU, and MPI is faster on CPUs"
