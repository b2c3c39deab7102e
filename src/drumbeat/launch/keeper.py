"""Starts processes again that the others can do without for a while: workers' servers."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from drumbeat.control.restart import EndedAlone, GiveUp, Kind, decide_alone
from drumbeat.launch.failures import Failure
from drumbeat.launch.plan import LocalTask

if TYPE_CHECKING:
    from drumbeat.launch.watch import Worker


class Keeper:
    """Of one process, through one attempt.

    Args:
        task: What it is.
        start: Starts it, at the same address.
        max_restarts: Restarts in a row without progress.
        step: Finished steps of the job, as far as they are counted.
        note: Tells the user.
        down: Told when it is gone and when it is back.
    """

    def __init__(
        self,
        task: LocalTask,
        *,
        start: Callable[[LocalTask], Awaitable[Worker]],
        max_restarts: int,
        step: Callable[[], int],
        note: Callable[[str], None],
        down: Callable[[str, bool], Awaitable[None]],
    ) -> None:
        self._task = task
        self._start = start
        self._max_restarts = max_restarts
        self._step = step
        self._note = note
        self._down = down
        self._history: list[EndedAlone] = []
        self._born_s = time.monotonic()

    async def after(self, failure: Failure) -> Worker | Failure:
        """The process that takes the place of one that has failed.

        Returns:
            It; or the failure that ends the attempt, as it is not started again.

        Raises:
            ParentError: It can't be started.
        """
        if not self._is_chance(failure):
            return failure
        step, lived_s = self._step(), time.monotonic() - self._born_s
        self._history.append(EndedAlone(step=step, lived_s=lived_s))
        decision = decide_alone(self._history, self._max_restarts)
        if isinstance(decision, GiveUp):
            if not decision.why:
                return failure
            # All together would fare no better.
            text = "\n".join(part for part in (decision.why, failure.text) if part)
            return dataclasses.replace(failure, text=text, kind=Kind.MISTAKE)
        # Its own page knows neither step nor epoch.
        failure = dataclasses.replace(failure, step=step, epoch=-1)
        when = f" in {decision.delay_s:g} s" if decision.delay_s else ""
        self._note(f"{failure.note} It is started again{when}; the others go on.")
        await self._down(self._task.name, True)
        await asyncio.sleep(decision.delay_s)
        worker = await self._start(self._task)
        self._born_s = time.monotonic()
        await self._down(self._task.name, False)
        return worker

    def _is_chance(self, failure: Failure) -> bool:
        """Whether another life may last longer; what a script raises or exits with is its own."""
        kind = failure.policy_kind
        if self._task.is_server:
            return kind is not Kind.MISTAKE
        return kind in (Kind.KILLED, Kind.CRASH)
