"""What this process knows of the job's phases: which are finished, which was interrupted.

A phase is a `fit`, or a loop that is `resumable`; phases are numbered in the order in
which they begin. A script that is run again begins them in the same order. Those whose
end is in the archive are passed over, the one that has a snapshot goes on from it.

Nothing of this exists outside of `drumbeat run`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drumbeat.cluster.identity import Identity
from drumbeat.collectives.communicator import Communicator
from drumbeat.errors import StateError
from drumbeat.state.format import State, unpack
from drumbeat.state.memory import SnapshotMemory
from drumbeat.state.notice import Notice
from drumbeat.state.progress import Activity, ProgressPage
from drumbeat.strategies import choose
from drumbeat.training.injection import Injector
from drumbeat.training.job_backups import JobBackups
from drumbeat.training.keeping import Keeper

logger = logging.getLogger("drumbeat")

# The part of the memory that is free at the first phase that its ends may take.
ARCHIVE_PART = 1 / 8


class Journal:
    """Of a worker under `drumbeat run`.

    Attributes:
        identity: Who it is.
        memory: Its node's snapshots.
        page: What it shows its agent; None where there is none.
        step: Finished training steps of the whole job.
        phases: How many have begun.
        active: The one that goes on; what begins within it is a part of it.
        injector: The failures that are to be rehearsed in this worker, if any.
        backups: The job's.
        last_kept: See `Beat.kept`.
    """

    def __init__(
        self, identity: Identity, memory: SnapshotMemory, page: ProgressPage | None
    ) -> None:
        self.identity = identity
        self.memory = memory
        self.page = page
        self.step = 0
        self.phases = 0
        self.active: Any = None
        self.injector: Injector | None = None
        self.backups = JobBackups(identity, memory)
        self.last_kept: tuple[float, tuple[float, ...]] = (0.0, ())
        self._notice: Notice | None = None
        self._snapshot: State | None = None
        self._finished: dict[int, State] = {}
        self._agreed = False
        self._budget_bytes = 0
        self._warned = False

    @property
    def is_writer(self) -> bool:
        """Whether this worker writes its node's snapshots."""
        return self.identity.local_rank == 0

    def begin(
        self, communicator: Communicator, keepers: Sequence[Keeper] = ()
    ) -> tuple[int, State | None, State | None]:
        """A phase begins, on all workers.

        Args:
            communicator: Of the workers.
            keepers: Of backups of this phase only.

        Returns:
            Its number; the state at its end if it is finished; else its snapshot if there
            is one.
        """
        number = self.phases
        unread = self.backups.begin_phase(keepers, communicator)
        if not self._agreed:
            self._agreed = True
            self._agree(communicator)
        if unread and not self._knows_of(number) and self.backups.load(communicator):
            self._agree(communicator)
        self.phases += 1
        finished = self._finished.pop(number, None)
        snapshot, mine = self._snapshot, None
        if finished is None and snapshot is not None and snapshot.meta["phase"] == number:
            self._snapshot, mine = None, snapshot
        if mine is not None:
            self.step = mine.step
        if self.page is not None:
            self.page.update(phase=number, step=self.step)
        if finished is None and self.injector is None:
            self.injector = Injector.from_env(
                os.environ, page=self.page, memory=self.memory, step=self.step
            )
        return number, finished, mine

    def keep(self, state: State) -> None:
        """Writes a snapshot, on the worker of each node that does.

        Raises:
            StateError: There is not enough memory.
        """
        if self.is_writer:
            self.memory.write(state)
            self.backups.snapshot_taken(state)

    def finish(self, state: State) -> None:
        """Keeps the state at the end of a phase; drops the oldest where they take too much."""
        if not self.is_writer:
            return
        try:
            self.memory.archive_append(state)
        except StateError as error:
            logger.warning("The end of this training can't be kept. %s", error)
            return
        self._make_room()
        self.backups.phase_finished(state)

    def _make_room(self) -> None:
        sizes = self.memory.archive_sizes()
        for number, size_bytes in enumerate(sizes[:-1]):
            if sum(sizes) <= self._budget_bytes:
                break
            if size_bytes:
                self._warn_of_dropping(sum(sizes))
                self.memory.archive_drop(number)
                sizes[number] = 0

    def _warn_of_dropping(self, size_bytes: int) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "The states at the ends of finished trainings take %.0f MB; the oldest are dropped "
                "from now on. After a failure, those trainings would be repeated.",
                size_bytes / 1e6,
            )

    def doing(self, activity: Activity) -> None:
        """Tells the agent."""
        if self.page is not None:
            self.page.update(activity)

    def listen(self) -> None:
        """From now on SIGTERM asks for a stop, as there are backups."""
        if self._notice is None:
            if self.page is None:
                self.page = ProgressPage.create()
            self._notice = Notice(self.page, lambda: self.active is not None, self.backups.flush)
            self._notice.listen()

    def _knows_of(self, number: int) -> bool:
        """Whether memory holds anything of phase `number` or a later one."""
        snapshot = self._snapshot
        known = [*self._finished, -1 if snapshot is None else snapshot.meta["phase"]]
        return max(known) >= number

    # What there is to go on from --------------------------------------------------

    def _agree(self, communicator: Communicator) -> None:
        """Finds the newest snapshot and archive that any node has, and gives them to all."""
        self._budget_bytes = int(_free_bytes() * ARCHIVE_PART)
        steps = self._intact_steps() if self.is_writer else []
        ends = self._intact_ends() if self.is_writer else -1
        mine = [int(self.is_writer), *(steps + [-1, -1])[:2], ends]
        everyones = communicator.all_gather_numpy(np.array([mine], np.int64), name="snapshots")
        writers = everyones[everyones[:, 0] == 1]
        newest = int(everyones[:, 1].max())
        self._take_archive(communicator, everyones[:, 3], writers[:, 3])
        if newest >= 0:
            self._take_snapshot(communicator, newest, everyones[:, 1:3], writers[:, 1:3])

    def _intact_steps(self) -> list[int]:
        found = []
        for step in self.memory.steps():
            try:
                self.memory.read(step)
            except StateError as error:
                logger.warning("%s The one before it is used.", error)
                # It must not pass for the newest, nor for what another node sends in its place.
                self.memory.discard(step)
            else:
                found.append(step)
        return found

    def _intact_ends(self) -> int:
        try:
            return len(self.memory.archive())
        except StateError as error:
            logger.warning("%s Finished trainings may be repeated.", error)
            return 0

    def _take_archive(
        self, communicator: Communicator, everyones: np.ndarray, writers: np.ndarray
    ) -> None:
        most = int(everyones.max())
        if most <= 0:
            return
        if writers.min() < most:
            root = int(everyones.argmax())
            packed = self.memory.archive_bytes() if communicator.rank == root else b""
            packed = _broadcast(communicator, packed, root)
            if self.is_writer and everyones[communicator.rank] < most:
                _try(lambda: self.memory.put_archive(packed))
            communicator.barrier("archive")
        mine: dict[int, State] = {}
        _try(lambda: mine.update({s.meta["phase"]: s for s in self.memory.archive() if s.arrays}))
        last = communicator.all_reduce_numpy(np.array([max(mine, default=-1)]), "max", name="ends")
        has = np.array([number in mine for number in range(int(last[0]) + 1)], np.int64)
        if has.size:
            # A node may have had less room than others: all must pass over the same.
            has = communicator.all_reduce_numpy(has, "min", name="ends that all have")
        self._finished = {number: mine[number] for number in np.flatnonzero(has).tolist()}

    def _take_snapshot(
        self, communicator: Communicator, step: int, everyones: np.ndarray, writers: np.ndarray
    ) -> None:
        has = (everyones == step).any(axis=1)
        if (writers == step).any(axis=1).all():
            self._snapshot = self.memory.read(step)
            return
        root = int(has.argmax())
        packed = self.memory.packed(step) if communicator.rank == root else b""
        packed = _broadcast(communicator, packed, root)
        if self.is_writer and not has[communicator.rank]:
            _try(lambda: self.memory.put(packed))
        self._snapshot = unpack(packed)


def _broadcast(communicator: Communicator, data: bytes, root: int) -> bytes:
    size = communicator.broadcast_numpy(np.array([len(data)], np.int64), root, name="size")
    mine = np.frombuffer(data, np.uint8) if data else np.zeros(int(size[0]), np.uint8)
    return communicator.broadcast_numpy(mine, root, name="state").tobytes()


def _try(step: Callable[[], None]) -> None:
    """Does what may fail for want of memory, or for damage, and says so: it goes on without."""
    try:
        step()
    except StateError as error:
        logger.warning("%s", error)


def _free_bytes() -> int:
    """Memory that the node, or the container, could still give, or 8 GB where none says."""
    free = [8 << 30]
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        free = [int(text.partition("MemAvailable:")[2].split()[0]) * 1024]
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text())
        free.append(int((group / "memory.max").read_text()) - used)
    return max(min(free), 0)


def from_env(env: Mapping[str, str]) -> Journal | None:
    """The journal of a worker that shares memory with its agent; None for all others."""
    identity = Identity.from_env(env)
    memory = SnapshotMemory.from_env(env)
    if identity is None or identity.rank < 0 or memory is None:
        return None
    return Journal(identity, memory, ProgressPage.from_env(env))


_own: list[Journal | None] = []


def own() -> Journal | None:
    """This process's journal."""
    if not _own:
        _own.append(from_env(os.environ))
    return _own[0]


def make() -> Journal:
    """This process's journal; outside of `drumbeat run` one that has memory of its own.

    All workers must call it, and have made their strategy before.
    """
    journal = own()
    if journal is None:
        strategy = choose.existing()
        communicator = None if strategy is None else strategy.communicator
        identity = Identity.from_env(os.environ) or Identity.outside(
            0 if communicator is None else communicator.rank,
            1 if communicator is None else communicator.size,
            name="",
            snapshot_every=0,
        )
        journal = _own[0] = Journal(identity, SnapshotMemory.create(), None)
    return journal
