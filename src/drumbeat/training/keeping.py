"""Backups of a job that trains: when one is due, what goes into it, what a new job takes of it.

The chief writes what snapshots hold anyway: nothing is captured for a backup alone. Whether
one is due is the chief's to say, and all workers hear of it at their next beat.
"""

from __future__ import annotations

import atexit
import datetime
import logging
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumbeat.cluster.identity import Identity
from drumbeat.errors import ConfigError
from drumbeat.state.backups import DEFAULT_KEEP, Backups, Content, join_archive, split_archive
from drumbeat.state.folders import open_folder
from drumbeat.state.format import State
from drumbeat.state.manifest import About
from drumbeat.state.memory import SnapshotMemory
from drumbeat.state.writer import BackupWriter

logger = logging.getLogger("drumbeat")

# The end of a worker waits so long for its last backup; a platform's patience ends sooner.
FLUSH_TIMEOUT_S = 600.0
_TELL_AFTER_S = 5.0
_UNITS_S = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|min|h)\s*")
_EXPECTED = (
    'expected "epoch", a number of steps such as 500, a datetime.timedelta, or a time such as '
    '"30s", "5min" or "1h"'
)


@dataclass(frozen=True)
class Every:
    """How often. One of these is set.

    Attributes:
        seconds: At least so long after the last one.
        steps: After each step of the job that this divides.
        epochs: At the end of each epoch.
    """

    seconds: float | None = None
    steps: int | None = None
    epochs: bool = False

    @classmethod
    def of(cls, given: Any) -> Every:
        """What a user gives as `every`.

        Raises:
            ConfigError: Anything but what it says.
        """
        if given == "epoch":
            return cls(epochs=True)
        if isinstance(given, int) and not isinstance(given, bool) and given > 0:
            return cls(steps=given)
        seconds = 0.0
        if isinstance(given, datetime.timedelta):
            seconds = given.total_seconds()
        elif isinstance(given, str) and (found := _TIME.fullmatch(given)):
            seconds = float(found[1]) * _UNITS_S[found[2]]
        if not 0 < seconds < math.inf:
            raise ConfigError(f"every is {given!r}; {_EXPECTED}.")
        return cls(seconds=seconds)


class Keeper:
    """Keeps the backups in one folder. Only the chief's reads and writes.

    Args:
        identity: Of this worker.
        memory: What the backups are of.
        place: Path or URL of the folder.
        every: How often.
        keep: How many.

    Attributes:
        every: See above.
        unread: Whether what is in the folder has not been looked at yet.
    """

    def __init__(
        self,
        identity: Identity,
        memory: SnapshotMemory,
        place: str,
        every: Every,
        keep: int = DEFAULT_KEEP,
    ) -> None:
        self.every = every
        self.unread = True
        self._identity = identity
        self._memory = memory
        self._backups = Backups(open_folder(place), keep=keep)
        self._writer = BackupWriter(self._backups)
        self._last_s = time.monotonic()
        self._last_step = self._last_phase = self._last_epoch = 0
        self._put_step: int | None = None
        self._phases: tuple[int, tuple[bytes, ...]] = (0, ())

    @property
    def place(self) -> str:
        """The folder, as messages call it."""
        return self._backups.folder.name

    def start(self) -> None:
        """Looks whether the folder can be written to, and has the process wait for it at its end.

        Raises:
            ConfigError: It can't.
        """
        self._backups.folder.check()
        atexit.register(self.flush)

    # Reading ----------------------------------------------------------------------

    def load(self) -> bool:
        """Puts the newest intact backup into the memory; whether there is one.

        Raises:
            StateError: The folder can't be read, or there is not enough memory.
        """
        self.unread = False
        content = self._backups.newest()
        if content is None:
            return False
        self._memory.put_archive(join_archive(content.phases))
        if content.snapshot is not None:
            self._memory.put(content.snapshot)
        self._follow(content.about)
        logger.warning("%s", self._going_on(content))
        return True

    def _going_on(self, content: Content) -> str:
        about, over = content.about, ""
        if finished := len(content.phases):
            over = f" Trainings of the script that were finished are passed over: {finished}."
        if content.snapshot is None:
            where = f"after step {about.step}, the end of a training,"
        else:
            where = f"from step {about.step} (epoch {about.epoch + 1})"
        return (
            f"Going on {where} of the backup that {about.job} wrote to {self.place} at "
            f"{about.time}.{over} To train anew, give another folder or empty this one."
        )

    def _follow(self, about: About) -> None:
        self._last_s = time.monotonic()
        self._last_step, self._last_phase, self._last_epoch = about.step, about.phase, about.epoch

    # Writing ----------------------------------------------------------------------

    @property
    def is_overdue(self) -> bool:
        """Whether a snapshot is wanted now, for a backup by the clock."""
        seconds = self.every.seconds
        return seconds is not None and time.monotonic() - self._last_s >= seconds

    def snapshot_taken(self, state: State) -> None:
        """A snapshot is in memory."""
        if self._is_due(state.step, state.meta):
            self._put(state.step, state.meta)

    def phase_finished(self, state: State) -> None:
        """The end of a phase is in memory."""
        self._put(state.step, state.meta)

    def stopping(self) -> None:
        """The process is to end now; the newest snapshot is saved before."""
        steps = self._memory.steps()
        if steps and steps[0] != self._put_step:
            state = self._memory.read(steps[0])
            self._put(state.step, state.meta)
        self.flush()

    def flush(self) -> None:
        """Waits until the last backup is written."""
        if self._writer.is_busy and not self._writer.flush(_TELL_AFTER_S) and self._writer.is_busy:
            logger.warning("Waiting for the last backup to be written to %s…", self.place)
            if not self._writer.flush(FLUSH_TIMEOUT_S) and self._writer.is_busy:
                logger.warning(
                    "It took more than %g s; the one before it has to do.", FLUSH_TIMEOUT_S
                )

    def _is_due(self, step: int, meta: Any) -> bool:
        if self.every.epochs:
            return (meta["phase"], meta["epoch"]) != (self._last_phase, self._last_epoch)
        if self.every.steps is not None:
            return step // self.every.steps > self._last_step // self.every.steps
        return self.is_overdue

    def _put(self, step: int, meta: Any) -> None:
        finished = bool(meta["finished"])
        about = About(
            job=Path(self._identity.run_dir).name or "a training without drumbeat run",
            step=step,
            phase=meta["phase"],
            epoch=meta.get("epoch", 0),
            world_size=self._identity.world_size,
            seed=self._identity.seed,
            onednn=os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""),
            finished=finished,
        )
        snapshot = None if finished else self._memory.packed(step)
        self._put_step = step
        self._follow(about)
        self._writer.put(Content(about=about, snapshot=snapshot, phases=self._finished_phases()))

    def _finished_phases(self) -> tuple[bytes, ...]:
        # Read again only when there are more, or less of them.
        size = sum(self._memory.archive_sizes())
        if size != self._phases[0]:
            self._phases = (size, split_archive(self._memory.archive_bytes()))
        return self._phases[1]
