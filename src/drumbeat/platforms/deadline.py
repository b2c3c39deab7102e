"""Calls of others' libraries that have no deadline of their own, or one of many minutes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from drumbeat.errors import DrumbeatError

T = TypeVar("T")


NETWORK = "Check the network and the credentials."


def within(timeout_s: float, call: Callable[[], T], what: str, hint: str = NETWORK) -> T:
    """What `call` returns or raises.

    Args:
        timeout_s: How long it may take; after that it goes on in a thread that nobody waits for.
        call: The call.
        what: For the message, as in "Reading gs://bucket/file".
        hint: What to do then.

    Raises:
        DrumbeatError: It took longer.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:  # goes on in the thread that waits
            answers.put((None, error))

    threading.Thread(target=run, name="drumbeat-call", daemon=True).start()
    try:
        answer, error = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise DrumbeatError(f"{what} took longer than {timeout_s:g} s. {hint}") from None
    if error is not None:
        raise error
    return answer  # pyright: ignore[reportReturnType]
