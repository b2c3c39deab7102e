"""Carries out, in a worker, the failures that `--inject` asks for.

Nothing is pretended: a worker that is to be killed is, and one that is to run out of
memory gets no more from the system. What follows is what would follow outside of a
rehearsal.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from drumbeat.cluster import faults as described
from drumbeat.cluster.faults import Fault, FaultKind
from drumbeat.errors import StateError
from drumbeat.state.memory import SnapshotMemory
from drumbeat.state.progress import ProgressPage

_STATM = Path("/proc/self/statm")
# What a worker that is to run out of memory may still have, and in which pieces it asks.
_HEADROOM_BYTES = 64 << 20
_PIECE_BYTES = 8 << 20
_SIGNALS = {
    FaultKind.KILL: signal.SIGKILL,
    FaultKind.CORRUPT_SNAPSHOT: signal.SIGKILL,
    FaultKind.STOP: signal.SIGSTOP,
    FaultKind.CRASH: signal.SIGSEGV,
}
logger = logging.getLogger("drumbeat")


class Injector:
    """The faults that are to happen to this worker.

    Args:
        faults: By their number in the job.
        page: Where it is noted, before a fault is carried out, that it is. The
            worker's one and only: it is written by others, too.
        memory: The node's snapshots; None where there are none.
        step: Finished training steps of the job before this worker's first. Faults
            that belong to earlier steps don't happen any more.
    """

    def __init__(
        self,
        faults: Mapping[int, Fault],
        page: ProgressPage | None,
        memory: SnapshotMemory | None,
        step: int,
    ) -> None:
        self._faults = faults
        self._page = page
        self._memory = memory
        self._step = step
        self._slow: list[tuple[float, float]] = []

    @classmethod
    def from_env(
        cls,
        env: Mapping[str, str],
        *,
        page: ProgressPage | None,
        memory: SnapshotMemory | None,
        step: int,
    ) -> Injector | None:
        """What the agent has told this worker; None if nothing is to happen to it."""
        faults = described.from_worker_text(env.get(described.VARIABLE, ""))
        return cls(faults, page, memory, step) if faults else None

    def after_step(self, step: int) -> None:
        """Carries out what is to happen now. To be called once a step is finished.

        Args:
            step: Finished training steps of the job.

        Raises:
            RuntimeError: As a "raise" fault asks for.
            MemoryError: As an "oom" fault leads to.
        """
        for seconds, last in self._slow:
            if step <= last:
                time.sleep(seconds)
        numbers, self._step = described.due(self._faults, self._step, step), step
        for number in numbers:
            fault = self._faults[number]
            logger.warning("--inject %s strikes, after step %d.", fault, step)
            if self._page is not None:
                self._page.fire(number)
            self._strike(fault, step)

    def _strike(self, fault: Fault, step: int) -> None:
        if fault.kind is FaultKind.CORRUPT_SNAPSHOT:
            _damage_newest(self._memory)
        if fault.kind in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[fault.kind])
        elif fault.kind is FaultKind.EXIT:
            os._exit(int(fault.numbers["code"]))
        elif fault.kind is FaultKind.RAISE:
            raise RuntimeError(f"--inject {fault}: raised as asked for.")
        elif fault.kind is FaultKind.OOM:
            _run_out_of_memory()
        elif fault.kind is FaultKind.DELAY:
            time.sleep(fault.seconds)
        elif fault.kind is FaultKind.SLOW:
            self._slow.append((fault.seconds, step + fault.numbers["steps"] - 1))
            time.sleep(fault.seconds)


def _damage_newest(memory: SnapshotMemory | None) -> None:
    """Inverts a byte of the newest snapshot, as bad memory might."""
    steps = memory.steps() if memory is not None else []
    if memory is None or not steps:
        logger.warning("There is no snapshot to damage yet.")
        return
    try:
        arrays = memory.read(steps[0]).arrays
    except StateError as error:  # its writer has just begun the next one there
        logger.warning("The snapshot of step %d was not damaged: %s", steps[0], error)
        return
    # A view of the memory itself.
    largest = max(arrays.values(), key=lambda array: array.nbytes)
    largest.reshape(-1).view(np.uint8)[largest.nbytes // 2] ^= 0xFF


def _run_out_of_memory() -> None:
    """Asks for memory until the system gives no more: the limit is put just above what there is.

    Where the system has no such limit, what would follow is raised all the same.
    """
    if _STATM.exists():
        has_bytes = int(_STATM.read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (has_bytes + _HEADROOM_BYTES, hard))
    taken = [b"\1" * _PIECE_BYTES for _ in range(2 * _HEADROOM_BYTES // _PIECE_BYTES)]
    raise MemoryError(f"--inject oom: {len(taken)} pieces of memory were given all the same.")
