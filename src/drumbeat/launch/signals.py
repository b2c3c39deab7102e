"""What Ctrl-C and SIGTERM do while the agent does not handle them itself."""

from __future__ import annotations

import os
import signal

STOPPING = (signal.SIGINT, signal.SIGTERM)


def exit_quietly() -> None:
    """Has the process exit at once, without a traceback, with 128 + the signal's number.

    For its first and its last moments, when there is nothing to stop. A signal
    that is ignored stays ignored: nohup and a shell's `&` rely on it.
    """
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, _frame: object) -> None:
    os._exit(128 + number)
