"""What this machine is, for settings that are measured once on each kind."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from drumbeat.launch import environment
from drumbeat.launch.tuning import Cache

_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tf-nightly")
_CPU_FIELDS = ("vendor_id", "cpu family", "model", "stepping", "model name", "CPU implementer")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the agent found on its machine.

    Attributes:
        cpus: CPUs it may use.
        gpus: GPUs, as CUDA_VISIBLE_DEVICES names them.
        mpi: Whether mpi4py is installed.
        environ: Its environment.
        folder: Its working folder.
        cpu_limit: See `machine.cpu_limit`.
        cache: What was measured on it; None to measure nothing.
    """

    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    mpi: bool
    environ: Mapping[str, str]
    folder: Path
    cpu_limit: float | None = None
    cache: Cache | None = None

    def share(
        self, local_rank: int, local_world_size: int, devices: int | None = 1
    ) -> environment.Share:
        """The part of it that one of its workers gets, see `environment.share_of`."""
        return environment.share_of(
            self.cpus, self.gpus, local_rank, local_world_size, self.cpu_limit, devices
        )


def cpu_model(root: Path = Path("/")) -> str:
    """The kind of processor, as far as the system tells it; its name and numbers."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    first = text.split("\n\n")[0]
    found = dict(line.split(":", 1) for line in first.splitlines() if ":" in line)
    values = {name.strip(): value.strip() for name, value in found.items()}
    known = [values[name] for name in _CPU_FIELDS if values.get(name)]
    return " ".join(known) or platform.machine()


def tensorflow_version() -> str:
    """Of the installed TensorFlow, "" without one; nothing is imported."""
    for name in _TENSORFLOWS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def cpu_limit(root: Path = Path("/")) -> float | None:
    """How many CPUs' time a container's limit leaves to this process; None without a limit.

    The limits of control groups (version 2: `cpu.max`; version 1: `cpu.cfs_quota_us` and
    `cpu.cfs_period_us`) of this process's group and those above it. Docker's --cpus and the
    limits of Kubernetes set them; they leave all of the machine's CPUs in sight.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(root / "sys/fs/cgroup", path)
        elif "cpu" in controllers.split(","):
            for name in (controllers, "cpu"):
                limits += _limits(root / "sys/fs/cgroup" / name, path)
    return min(limits, default=None)


def _limits(top: Path, path: str) -> list[float]:
    """Those of a group and of all above it."""
    group = top / path.strip("/")
    folders = [folder for folder in (group, *group.parents) if folder.is_relative_to(top)]
    found = [_limit(folder) for folder in folders]
    return [limit for limit in found if limit is not None]


def _limit(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def physical_cores(cpus: Sequence[int], root: Path = Path("/")) -> int | None:
    """How many cores these CPUs are, where two may be threads of one; None if unknown."""
    cores = set()
    for cpu in cpus:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        try:
            cores.add((folder / "thread_siblings_list").read_text().strip())
        except OSError:
            return None
    return len(cores) or None
