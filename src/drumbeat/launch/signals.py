"""What Ctrl-C and SIGTERM do while the agent does not handle them itself."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

STOPPING = (signal.SIGINT, signal.SIGTERM)


def exit_quietly() -> None:
    """Has the process exit at once, without a traceback, with 128 + the signal's number.

    For its first and its last moments, when there is nothing to stop. A signal
    that is ignored stays ignored: nohup and a shell's `&` rely on it.
    """
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)


@contextlib.contextmanager
def exit_by_raising() -> Iterator[None]:
    """Has them raise SystemExit within it, so that what was begun is undone, and programs end."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _exit(number: int, _frame: object) -> None:
    os._exit(128 + number)
