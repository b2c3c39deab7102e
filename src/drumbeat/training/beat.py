"""The beat: every few steps the workers tell each other what it takes to decide alike."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from drumbeat.collectives.communicator import Communicator
from drumbeat.state.cadence import COSTS_KEPT, Decision, Measured, decide, usual_cost_s
from drumbeat.state.progress import ProgressPage, Request


class Beat:
    """Of one phase on one worker.

    Args:
        communicator: Of the workers, which all count the same steps.
        page: Where the agent asks for a stop.
        every: See `cadence.decide`; may be changed, on all workers after the same step.
        kept: What is known from phases before: `time.monotonic` when a state was kept last, 0.0
            for never, and what the last snapshots took.
    """

    def __init__(
        self,
        communicator: Communicator,
        page: ProgressPage | None,
        every: int | None,
        kept: tuple[float, tuple[float, ...]] = (0.0, ()),
    ) -> None:
        self._communicator = communicator
        self._page = page
        self.every = every
        self._next_in = 1
        self._since_beat = 0
        self._steps = 0
        self._beat_s = time.monotonic()
        self._snapshot_s, self._costs_s = kept[0] or self._beat_s, kept[1]
        self.backup_is_overdue: Callable[[], bool] = lambda: False
        """Whether this worker wants a snapshot at once, for a backup."""
        self.may_regroup = False
        """Whether the workers may stop for others, as there are snapshots to go on from."""
        self.held = False
        """Whether no snapshot can be taken for now."""

    def after_step(self, *, due: bool = False) -> Decision | None:
        """One more step is finished; what to do, if this is a beat.

        Args:
            due: See `now`; then it is one.
        """
        self._steps += 1
        self._since_beat += 1
        return self.now(due=due) if due or self._since_beat >= self._next_in else None

    def now(self, *, due: bool = False) -> Decision:
        """A beat out of turn, which all workers must make.

        Args:
            due: All workers know that a snapshot is wanted.
        """
        now_s = time.monotonic()
        asked = Request(0) if self._page is None else self._page.requests()
        mine = [
            float(bool(asked & Request.STOP)),
            float(self.held),
            now_s - self._snapshot_s,
            (now_s - self._beat_s) / max(self._since_beat, 1),
            usual_cost_s(self._costs_s),
            float(due or self.backup_is_overdue()),
            float(self.may_regroup and bool(asked & Request.REGROUP)),
        ]
        if self._communicator.size > 1:
            mine = self._communicator.all_reduce_numpy(
                np.array(mine, np.float64), "max", name="beat"
            ).tolist()
        decision = decide(
            Measured(
                stop=bool(mine[0]),
                held=bool(mine[1]),
                steps=self._steps,
                since_s=mine[2],
                step_s=mine[3],
                cost_s=mine[4],
                due=bool(mine[5]),
                regroup=bool(mine[6]),
            ),
            every=self.every,
            last_in=self._next_in,
        )
        self._next_in = decision.next_in
        self._since_beat = 0
        self._beat_s = time.monotonic()
        return decision

    @property
    def kept(self) -> tuple[float, tuple[float, ...]]:
        """For the next phase, see above."""
        return self._snapshot_s, self._costs_s

    def took_snapshot(self, began_s: float) -> None:
        """Args: `time.monotonic` when it was begun."""
        self._snapshot_s = self._beat_s = time.monotonic()
        self._costs_s = (*self._costs_s, self._snapshot_s - began_s)[-COSTS_KEPT:]
        self._steps = 0
