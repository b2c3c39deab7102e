"""A deadline for calls that can't be told one: a thread that acts when time is up."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator


class Watchdog:
    """Calls `on_late` once when a watched call takes too long.

    One thread for all calls, started at the first: a timer for each would cost more
    than a small collective. One call at a time is watched.
    """

    def __init__(self, on_late: Callable[[], None]) -> None:
        """Args: what ends the call; it is run in the watchdog's thread."""
        self._on_late = on_late
        self._changed = threading.Condition()
        self._deadline_s = math.inf
        self._wakes_at_s = math.inf
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """`on_late` is called if what is within takes more than `timeout_s` seconds.

        It isn't called any more once the block has been left.
        """
        with self._changed:
            self._deadline_s = time.monotonic() + timeout_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                self._thread.start()
            elif self._deadline_s < self._wakes_at_s:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._deadline_s = math.inf

    def _watch(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                if now_s >= self._deadline_s:
                    self._deadline_s = math.inf
                    # With the lock held, so that no call which has just ended is hit.
                    self._on_late()
                    continue
                # It sleeps on through calls that end in time: they only move the deadline.
                self._wakes_at_s = self._deadline_s
                left_s = self._deadline_s - now_s
                self._changed.wait(None if math.isinf(left_s) else min(left_s, 3600.0))
