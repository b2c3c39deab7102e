"""Shares that follow the speed of the workers: `shares="auto"`.

A worker's speed is its share of a batch over the time it was busy, that is, not
waiting in a collective. The workers compare after a few steps, then less and less
often, always after the same step; what each takes changes, the batches do not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from drumbeat.collectives.communicator import Communicator
from drumbeat.data.shares import Shares

logger = logging.getLogger("drumbeat")

UNITS = 1000
"""Into how many parts a batch is thought to be cut: shares are exact to a part in a thousand."""
TOLERANCE = 0.05
"""Workers that are busy for as long as the slowest, but for this part, are left alone."""
MIN_PART = 0.1
"""The least that a worker gets, in parts of an equal share, so that it can show its speed."""
SKIPPED_STEPS = 3
FIRST_WINDOW_STEPS = 4
LAST_WINDOW_STEPS = 64


def follow(shares: Shares, busy_s: Sequence[float]) -> Shares:
    """The shares with which all workers would have been busy for the same time.

    Args:
        shares: Those that the times were measured with.
        busy_s: For each worker, seconds it computed in the same number of steps.

    Returns:
        `shares` itself where the times differ by less than `TOLERANCE`.
    """
    busy = np.maximum(np.array(busy_s, np.float64), 1e-9)
    if busy.min() >= (1 - TOLERANCE) * busy.max():
        return shares
    parts = np.array(shares.units, np.float64) / sum(shares.units)
    speed = parts / busy
    wanted = np.maximum(speed / speed.sum(), MIN_PART / len(parts))
    return Shares.of([max(1, round(UNITS * part)) for part in wanted / wanted.sum()])


class Rebalancer:
    """Adapts the shares as training goes on.

    Args:
        communicator: Of the workers.
        read: The shares in use.
        use: Takes new ones into use, for the batches that are fetched from now on.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        communicator: Communicator,
        read: Callable[[], Shares],
        use: Callable[[Shares], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._communicator = communicator
        self._read = read
        self._use = use
        self._clock = clock
        self._steps = -SKIPPED_STEPS
        self._window = FIRST_WINDOW_STEPS
        self._busy_s = 0.0
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        """A step begins here."""
        self._began = (self._clock(), self._communicator.times.spent_s)

    def end(self) -> None:
        """The step that has begun is over. All workers must call it after the same steps."""
        if self._began is None:
            return
        began_s, spent_s = self._began
        self._began = None
        self._steps += 1
        if self._steps > 0:  # The first ones trace graphs and fill caches.
            self._busy_s += self._clock() - began_s - (self._communicator.times.spent_s - spent_s)
        if self._steps >= self._window:
            self._compare()
            self._steps, self._busy_s = 0, 0.0
            self._window = min(2 * self._window, LAST_WINDOW_STEPS)

    def _compare(self) -> None:
        everyones = self._communicator.all_gather_numpy(np.array([self._busy_s]), name="busy")
        old = self._read()
        new = follow(old, everyones.tolist())
        if new != old:
            self._use(new)
            if self._communicator.rank == 0:
                logger.info("Shares of the workers: %s", _in_percent(new))


def _in_percent(shares: Shares) -> str:
    return ", ".join(f"{100 * unit / sum(shares.units):.0f}%" for unit in shares.units)
