"""The machine: what it is, who else uses it, and what it can do at best."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Cores that other processes may use during a run that counts.
QUIET_CORES = 0.15
WINDOW_S = 1.5
PASSES = Path(__file__).resolve().parents[1] / "workers" / "passes.py"


def busy_cpu_s() -> float:
    """CPU seconds that all processes have used since boot, and that the host kept from us."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """CPU seconds of this process and of those it started and that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Others:
    """How many cores all other processes used since this was made."""

    def __init__(self) -> None:
        self._begin = (time.monotonic(), busy_cpu_s(), own_cpu_s())

    def cores(self) -> float:
        elapsed_s = time.monotonic() - self._begin[0]
        others_s = busy_cpu_s() - self._begin[1] - (own_cpu_s() - self._begin[2])
        return max(0.0, others_s / elapsed_s)


def wait_for_quiet(deadline: float) -> None:
    """Returns when others have been quiet for a moment, or at the deadline."""
    while time.monotonic() < deadline:
        others = Others()
        time.sleep(WINDOW_S)
        if others.cores() < QUIET_CORES:
            return


def marked(mark: str) -> list[int]:
    """Processes that have this text in the environment they were started with."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return found


def memory_mb(processes: Sequence[int]) -> float:
    """Proportional set size of processes: pages that several share count once."""
    total_kb = 0
    for process in processes:
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        total_kb += int(re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[0])
    return total_kb / 1024


def cores() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0))


def pinned(core: int) -> list[str]:
    """What to put before a command that is to run on one core only."""
    return ["taskset", "--cpu-list", str(core)]


def sum_ms(size_bytes: int, workers: int) -> float:
    """The floor of an all-reduce within a machine: each worker adds two such buffers, at once.

    Each worker has to read its own part and another's, and to write the sum: that is what
    this measures, with each worker pinned to a core and all at the same time.
    """
    commands = [
        [*pinned(cores()[index % len(cores())]), sys.executable, str(PASSES), str(size_bytes)]
        for index in range(workers)
    ]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    said = [process.communicate(timeout=60)[0] for process in started]
    return statistics.median(float(text) for text in said)


def description() -> dict[str, Any]:
    """What the figures hold for."""
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(cores()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "mpich")},
    }


def settings_of_drumbeat() -> str:
    """What `drumbeat tune` has found for this machine, in its own words."""
    drumbeat = Path(sys.executable).with_name("drumbeat")
    done = subprocess.run(
        [str(drumbeat), "tune", "-n", "2"], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout
