"""What a worker is at, for its agent to see at any time, and what the agent asks of it.

One page of memory that both have mapped: writing to it takes a worker about two
microseconds and no system call, and the agent can read it when the worker hangs, is
stopped or is dead.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from drumbeat.state.anonymous import anonymous

FD_VARIABLE = "DRUMBEAT_PROGRESS_FD"
_SIZE_BYTES = 4096
# A count that is odd while the rest is being written; then step, phase, epoch, activity,
# time of the last sign of life and slowest recent step in ns, fired faults, length of the detail.
_COUNT = struct.Struct("<q")
_WORKER = struct.Struct("<8q")
_WORKER_AT = 8
_DETAIL_AT = 128
_DETAIL_BYTES = 512
_ACCEPTS_STOP_AT = 1024
_UPDATES_AT = 1032
_TOGETHER_AT = 1040
# From 1280 to 1535: `drumbeat.state.waiting`.
# The agent's part, away from the worker's.
_REQUESTS_AT = 2048
_READ_TRIES = 100


class Activity(enum.IntEnum):
    """What a worker is doing."""

    STARTING = 0
    """Its script runs, and no training has begun."""
    TRAINING = 1
    """Within the steps of an epoch."""
    BETWEEN_EPOCHS = 2
    """In `fit`, outside of its steps: callbacks at the end of an epoch, validation's start."""
    EVALUATING = 3
    """In `evaluate`, as in the validation of `fit`."""
    PREDICTING = 4
    SCRIPT = 5
    """Its script runs, between or after phases of training."""
    ENDED = 6
    """The script has ended, and the process is about to."""
    SAVING = 7
    """In `fit`, writes a model, perhaps from a callback between two steps."""


class Request(enum.IntFlag):
    """What an agent asks of a worker."""

    STOP = 1
    """Stop after a step that all workers have made, save the state and exit."""
    DIE = 2
    """The SIGTERM that follows is meant: end at once, whatever else a worker does upon it."""
    REGROUP = 4
    """Stop after a step that all workers have made and have a snapshot of: nodes have joined."""
    FINISH = 8
    """To an evaluator: the training has ended, so evaluate what is left and end."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A worker's page as read.

    Attributes:
        step: Finished training steps of the whole job, as far as this worker knows.
        phase: Number of the phase, from 0; -1 before the first.
        epoch: From 0.
        activity: What it is doing.
        detail: More of it, such as the collective that it waits in, or "".
        alive_s: `time.monotonic` of its last sign of life; 0.0 before the first.
        slowest_step_s: The slowest of recent steps; 0.0 before an epoch's first is done.
        fired: Bit i is set when fault i of `--inject` has been carried out.
    """

    step: int
    phase: int
    epoch: int
    activity: Activity
    detail: str
    alive_s: float
    slowest_step_s: float
    fired: int


class ProgressPage:
    """The page. The worker calls `update` and `requests`, the agent `read` and `request`."""

    def __init__(self, fd: int) -> None:
        """Args: descriptor of a file of one page."""
        self.fd = fd
        self._page = mmap.mmap(fd, _SIZE_BYTES)
        self._count = 0
        # The worker's own, in the order of `_WORKER` up to the fired faults.
        self._fields = [0, -1, 0, 0, 0, 0, 0]
        self._detail = b""

    @classmethod
    def create(cls) -> ProgressPage:
        """A new page; to be closed.

        Raises:
            OSError: The system has no more descriptors or memory.
        """
        fd = anonymous("progress")
        os.ftruncate(fd, _SIZE_BYTES)
        page = cls(fd)
        page._write()
        return page

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> ProgressPage | None:
        """The page whose descriptor the agent has given to this worker, if it has."""
        text = env.get(FD_VARIABLE, "")
        return cls(int(text)) if text else None

    def close(self) -> None:
        """Gives the descriptor back."""
        self._page.close()
        os.close(self.fd)

    # The worker's side.

    @property
    def activity(self) -> Activity:
        """What this process has said last that it is doing."""
        return Activity(self._fields[3])

    def update(
        self,
        activity: Activity | None = None,
        *,
        step: int | None = None,
        phase: int | None = None,
        epoch: int | None = None,
        slowest_step_s: float | None = None,
        detail: str = "",
    ) -> None:
        """Writes what has changed, and gives a sign of life. None: as it was."""
        fields = self._fields
        if step is not None:
            fields[0] = step
        if phase is not None:
            fields[1] = phase
        if epoch is not None:
            fields[2] = epoch
        if activity is not None:
            fields[3] = activity
        if slowest_step_s is not None:
            fields[5] = int(slowest_step_s * 1e9)
        fields[4] = time.monotonic_ns()
        self._detail = detail.encode()[:_DETAIL_BYTES] if detail else b""
        self._write()

    def fire(self, fault: int) -> None:
        """Notes that a fault is about to be carried out."""
        self._fields[6] |= 1 << fault
        self._write()

    def accept_stop(self) -> None:
        """Says that this worker will act on `Request.STOP`: it keeps backups."""
        _COUNT.pack_into(self._page, _ACCEPTS_STOP_AT, 1)

    def updated(self, count: int, *, together: bool) -> None:
        """Says how many updates an optimizer of this process has made, in whatever loop.

        Args:
            count: Of the optimizer that has made the most.
            together: One of them was of all workers.
        """
        _COUNT.pack_into(self._page, _TOGETHER_AT, together)
        _COUNT.pack_into(self._page, _UPDATES_AT, count)

    def requests(self) -> Request:
        """What the agent has asked for since the process began."""
        return Request(_COUNT.unpack_from(self._page, _REQUESTS_AT)[0])

    def _write(self) -> None:
        page = self._page
        self._count += 1
        _COUNT.pack_into(page, 0, self._count)
        _WORKER.pack_into(page, _WORKER_AT, *self._fields, len(self._detail))
        page[_DETAIL_AT : _DETAIL_AT + len(self._detail)] = self._detail
        self._count += 1
        _COUNT.pack_into(page, 0, self._count)

    # The agent's side.

    def request(self, what: Request) -> None:
        """Asks the worker for something, besides what was asked before."""
        _COUNT.pack_into(self._page, _REQUESTS_AT, self.requests() | what)

    @property
    def accepts_stop(self) -> bool:
        """Whether the worker will act on `Request.STOP`; others have to be killed."""
        return _COUNT.unpack_from(self._page, _ACCEPTS_STOP_AT)[0] == 1

    @property
    def made(self) -> int:
        """Steps of the job, or updates of an optimizer where a rehearsal counts these."""
        return max(self.read().step, _COUNT.unpack_from(self._page, _UPDATES_AT)[0])

    @property
    def trains_apart(self) -> bool:
        """Whether updates were counted, and all were of this worker alone."""
        count, together = (
            _COUNT.unpack_from(self._page, at)[0] for at in (_UPDATES_AT, _TOGETHER_AT)
        )
        return count > 0 and not together

    def read(self) -> Progress:
        """What the worker wrote last.

        Of one that was killed while it wrote, the parts may not fit together.
        """
        page = self._page
        fields, detail = self._parts()
        for _ in range(_READ_TRIES):
            (before,) = _COUNT.unpack_from(page, 0)
            fields, detail = self._parts()
            if before % 2 == 0 and before == _COUNT.unpack_from(page, 0)[0]:
                break
        step, phase, epoch, activity, alive_ns, slowest_ns, fired, _ = fields
        return Progress(
            step=step,
            phase=phase,
            epoch=epoch,
            activity=Activity(activity),
            detail=detail.decode(errors="replace"),
            alive_s=alive_ns / 1e9,
            slowest_step_s=slowest_ns / 1e9,
            fired=fired,
        )

    def _parts(self) -> tuple[tuple[int, ...], bytes]:
        fields = _WORKER.unpack_from(self._page, _WORKER_AT)
        return fields, self._page[_DETAIL_AT : _DETAIL_AT + min(fields[7], _DETAIL_BYTES)]
