"""What SIGTERM does in a worker that keeps backups: it asks for a stop, as the agent would.

The training looks at its page now and then, stops together with the other workers, and
saves its state. Where no training is under way there is nothing to stop: everything
finished has been saved, and the worker may end at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from drumbeat.errors import PREEMPTED_CODE
from drumbeat.state.progress import ProgressPage, Request

# Platforms that signal every process may do so twice in a moment.
SECOND_AFTER_S = 1.0
_TERM_CODE = 128 + signal.SIGTERM


class Notice:
    """Listens for SIGTERM in this process, from `listen` on.

    Args:
        page: Gets the request to stop.
        is_training: Whether steps are being made, so that someone looks at the page.
        on_idle: Called before the process ends because they aren't, such as to wait for
            a backup that is being written.
    """

    def __init__(
        self, page: ProgressPage, is_training: Callable[[], bool], on_idle: Callable[[], None]
    ) -> None:
        self._page = page
        self._is_training = is_training
        self._on_idle = on_idle
        self._first_s: float | None = None
        self._wake = -1

    def listen(self) -> bool:
        """Takes over SIGTERM; to be called in the main thread.

        Returns:
            Whether it did. It leaves a handler that a script has installed alone.
        """
        self._page.accept_stop()
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None):
            return False
        read, self._wake = os.pipe()
        for fd in (read, self._wake):
            os.set_blocking(fd, fd == read)
        signal.signal(signal.SIGTERM, self._on_term)
        # Python runs the handler between two lines of the main thread, which may wait in a
        # collective for minutes. A byte in this pipe wakes a thread at once.
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        threading.Thread(
            target=self._watch, args=[read], name="drumbeat-notice", daemon=True
        ).start()
        os.register_at_fork(after_in_child=self._forget)
        return True

    def _forget(self) -> None:
        """A script's own child processes end by SIGTERM like any other."""
        with contextlib.suppress(ValueError):  # forked by another thread than the main one
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)

    def _watch(self, read: int) -> None:
        while data := os.read(read, 64):
            if signal.SIGTERM in data:
                self._note()

    def _note(self) -> None:
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
        elif now_s - self._first_s > SECOND_AFTER_S:
            os._exit(_TERM_CODE)
        if self._page.requests() & Request.DIE:
            os._exit(_TERM_CODE)
        self._page.request(Request.STOP)

    def _on_term(self, number: int, frame: Any) -> None:
        # Of the same signal as the byte in the pipe; it may come much later.
        self._page.request(Request.STOP)
        if not self._is_training():
            self._on_idle()
            sys.exit(PREEMPTED_CODE)
