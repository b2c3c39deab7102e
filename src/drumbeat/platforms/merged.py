"""Lines of several programs at once, in the order in which they come."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

_POLL_S = 1.0
_MAX_LINES = 1000


class Merged:
    """Readers in threads of their own, whose lines one iterator gives."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=_MAX_LINES)
        self._processes: list[subprocess.Popen[str]] = []
        self._ended = threading.Event()
        self._readers = 0

    @property
    def is_ended(self) -> bool:
        """Whether nobody wants more lines."""
        return self._ended.is_set()

    def start(self, read: Callable[[], Iterator[str]]) -> None:
        """Begins to read what `read` yields."""
        self._readers += 1
        threading.Thread(target=self._read, args=(read,), name="drumbeat-logs", daemon=True).start()

    def lines(self) -> Iterator[str]:
        """Lines until all readers have ended; whoever stops early ends the rest."""
        left = self._readers
        try:
            while left:
                line = self._lines.get()
                if line is None:
                    left -= 1
                else:
                    yield line
        finally:
            self._ended.set()
            for process in self._processes:
                process.kill()

    def run(self, words: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
        """The output of a program, for a reader. It is killed where nobody wants more."""
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=dict(env),
            text=True,
            errors="replace",
        )
        self._processes.append(process)
        if self.is_ended:
            process.kill()
        with process:
            for text in process.stdout or ():
                yield text.rstrip("\n")

    def wait(self, seconds: float) -> None:
        """Waits, or until nobody wants more."""
        self._ended.wait(seconds)

    def _read(self, read: Callable[[], Iterator[str]]) -> None:
        try:
            for line in read():
                self._put(line)
        finally:
            self._put(None)

    def _put(self, line: str | None) -> None:
        while not self.is_ended:
            with contextlib.suppress(queue.Full):
                self._lines.put(line, timeout=_POLL_S)
                return
