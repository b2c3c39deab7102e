"""Lines of several programs at once, in the order in which they come."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from drumbeat.errors import ConfigError, DrumbeatError

_POLL_S = 1.0
_MAX_LINES = 1000


class Merged:
    """Readers in threads of their own, whose lines one iterator gives."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=_MAX_LINES)
        self._processes: list[subprocess.Popen[str]] = []
        self._ended = threading.Event()
        self._readers = 0
        self._errors: list[DrumbeatError] = []

    @property
    def is_ended(self) -> bool:
        """Whether nobody wants more lines."""
        return self._ended.is_set()

    def start(self, read: Callable[[], Iterator[str]]) -> None:
        """Begins to read what `read` yields."""
        self._readers += 1
        threading.Thread(target=self._read, args=(read,), name="drumbeat-logs", daemon=True).start()

    def lines(self) -> Iterator[str]:
        """Lines until all readers have ended; whoever stops early ends the rest.

        Raises:
            DrumbeatError: The first that a reader has raised, after the lines of all.
        """
        left = self._readers
        try:
            while left:
                line = self._lines.get()
                if line is None:
                    left -= 1
                else:
                    yield line
            if self._errors:
                raise self._errors[0]
        finally:
            self._ended.set()
            for process in self._processes:
                process.kill()

    def run(self, words: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
        """The output of a program, for a reader. It is killed where nobody wants more.

        Raises:
            DrumbeatError: It can't be started, or has failed.
        """
        try:
            process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=dict(env),
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise ConfigError(f"{words[0]} can't be started: {error.strerror or error}.") from None
        self._processes.append(process)
        if self.is_ended:
            process.kill()
        with process:
            for text in process.stdout or ():
                yield text.rstrip("\n")
        if process.returncode and not self.is_ended:
            raise DrumbeatError(
                f"{words[0]} ended with code {process.returncode}; what it says is above."
            )

    def wait(self, seconds: float) -> None:
        """Waits, or until nobody wants more."""
        self._ended.wait(seconds)

    def _read(self, read: Callable[[], Iterator[str]]) -> None:
        try:
            for line in read():
                self._put(line)
        except DrumbeatError as error:
            self._errors.append(error)
        finally:
            self._put(None)

    def _put(self, line: str | None) -> None:
        while not self.is_ended:
            with contextlib.suppress(queue.Full):
                self._lines.put(line, timeout=_POLL_S)
                return
