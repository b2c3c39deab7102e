"""The backups of a job, in one folder or several: what all workers must know of them alike.

`--backup-dir` keeps backups of the whole job, `BackupAndRestore` of the `fit` that it is given
to. The chief's count: it alone reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumbeat.cluster.identity import Identity
from drumbeat.collectives.communicator import Communicator
from drumbeat.state.format import State
from drumbeat.state.memory import SnapshotMemory
from drumbeat.training.keeping import Every, Keeper


class JobBackups:
    """Of one worker.

    Args:
        identity: Who it is.
        memory: What is backed up, and where a backup is put that the job goes on from.

    Attributes:
        origin: The folder of the backup that the job goes on from; "" for none.
        are_kept: Whether the chief keeps any of the present phase.
        epoch_ends_matter: Whether one is to be made at the end of each epoch.
    """

    def __init__(self, identity: Identity, memory: SnapshotMemory) -> None:
        self.origin = ""
        self.are_kept = False
        self.epoch_ends_matter = False
        self._identity = identity
        self._memory = memory
        self._steps = 0
        self._by_place: dict[str, Keeper] = {}
        self._of_job: list[Keeper] = []
        self._of_phase: list[Keeper] = []

    def keeper(self, place: str, every: Every, keep: int) -> Keeper:
        """The keeper of the backups in a folder, the same for one folder.

        Raises:
            ConfigError: The folder can't be written to, or `keep` can't be used.
        """
        made = Keeper(self._identity, self._memory, place, every, keep)
        known = self._by_place.setdefault(made.place, made)
        if known is made and self._is_chief:
            known.start()
        elif known not in self._of_job:
            known.every = every
        return known

    def keep_all(self, keeper: Keeper) -> None:
        """Has it keep backups of the whole job."""
        self._of_job.append(keeper)

    def begin_phase(self, keepers: Sequence[Keeper], communicator: Communicator) -> bool:
        """Learns from the chief when it wants backups; all workers must call this.

        Args:
            keepers: Of this phase only.
            communicator: Of the workers.

        Returns:
            Whether the chief has a folder into which it hasn't looked yet.
        """
        self._of_phase = [keeper for keeper in dict.fromkeys(keepers) if keeper not in self._of_job]
        own = [*self._of_job, *self._of_phase]
        mine = [
            bool(own),
            any(keeper.unread for keeper in own),
            any(keeper.every.epochs for keeper in own),
            min((keeper.every.steps for keeper in own if keeper.every.steps), default=0),
        ]
        chiefs = communicator.broadcast_numpy(np.array(mine, np.int64), name="backups").tolist()
        self.are_kept, self.epoch_ends_matter = chiefs[0] > 0, chiefs[2] > 0
        self._steps = chiefs[3]
        return chiefs[1] > 0

    def load(self, communicator: Communicator) -> bool:
        """Has the chief put its newest backup into its node's memory; all must call this.

        Snapshots that any node has are forgotten: they are of phases that are over.

        Returns:
            Whether there is one.

        Raises:
            StateError: On the chief: a folder can't be read.
        """
        found = False
        if self._identity.local_rank == 0:
            for step in self._memory.steps():
                self._memory.discard(step)
        for keeper in self._writing:
            if keeper.unread and not found and keeper.load():
                found, self.origin = True, keeper.place
            keeper.unread = False
        # Nobody reads the memory before it's there.
        found = communicator.broadcast_numpy(np.array([found], np.int64), name="backup found")
        communicator.barrier("backup")
        if found[0] and not self.origin:
            self.origin = "the chief's folder"
        return bool(found[0])

    @property
    def is_overdue(self) -> bool:
        """Whether the chief wants a snapshot now."""
        return any(keeper.is_overdue for keeper in self._writing)

    def is_due(self, before: int, now: int) -> bool:
        """Whether one is wanted after the steps from `before` to `now`; alike on all workers."""
        return self._steps > 0 and now // self._steps > before // self._steps

    def snapshot_taken(self, state: State) -> None:
        """A snapshot is in memory."""
        for keeper in self._writing:
            keeper.snapshot_taken(state)

    def phase_finished(self, state: State) -> None:
        """The end of a phase is in memory."""
        for keeper in self._writing:
            keeper.phase_finished(state)

    def stopping(self, communicator: Communicator) -> None:
        """All workers stop; returns when the last backup is written."""
        if self.are_kept:
            for keeper in self._writing:
                keeper.stopping()
            communicator.barrier("the last backup")

    def flush(self) -> None:
        """Waits for what is being written."""
        if self._is_chief:
            for keeper in self._by_place.values():
                keeper.flush()

    @property
    def _is_chief(self) -> bool:
        return self._identity.rank == 0

    @property
    def _writing(self) -> list[Keeper]:
        return [*self._of_job, *self._of_phase] if self._is_chief else []
