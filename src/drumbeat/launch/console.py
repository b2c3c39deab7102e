"""The agent's screen and the run's log files, and the pipes that lead to them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import struct
import termios
from collections.abc import Callable, Mapping
from pathlib import Path

from drumbeat.launch.output import Screen
from drumbeat.launch.streams import (
    DescriptorSink,
    FileSink,
    Sink,
    WorkerStream,
    Writer,
    wait_closed,
)

FLUSH_TIMEOUT_S = 2.0
_OUTPUT_FLAGS, _WINDOW_ROWS = 1, 24


class _Warnings(logging.Handler):
    """Shows what the agent's own modules log, where stderr would break the screen."""

    def __init__(self, loop: asyncio.AbstractEventLoop, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._loop = loop
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._show, record.getMessage())


class Console:
    """Shows the workers' output and drumbeat's own messages on one screen.

    Args:
        fd: Where to write, usually the agent's stdout.
        environ: NO_COLOR and TERM decide about colours.
        chief: Name of the worker whose progress is shown.
    """

    def __init__(self, fd: int, environ: Mapping[str, str]) -> None:
        capable = os.isatty(fd) and environ.get("TERM") != "dumb"
        self.live = capable
        self._color = capable and not environ.get("NO_COLOR")
        self._fd = fd
        self._terminal = DescriptorSink(fd)
        self._writer = Writer(on_problem=self._problem)
        self._streams: list[WorkerStream] = []
        self._sinks: dict[Path, FileSink] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._warnings: _Warnings | None = None
        self._screen = Screen(color=self._color, live=self.live, chief="", width=self._width)

    def start(self, *, chief: str) -> None:
        """Begins to write. To be called in the event loop.

        Args:
            chief: Name of the worker whose progress displays are shown, "" for none.
        """
        self._loop = asyncio.get_running_loop()
        self._screen = Screen(color=self._color, live=self.live, chief=chief, width=self._width)
        self._chief = chief
        self._writer.start()
        self._warnings = _Warnings(self._loop, self.note)
        logging.getLogger("drumbeat").addHandler(self._warnings)

    def note(self, text: str) -> None:
        """Shows a message of drumbeat's own."""
        self._show(self._screen.note(text))

    def report(self, heading: str, body: str) -> None:
        """Shows why the run failed; to be the last thing on the screen."""
        self._show(self._screen.report(heading, body))

    def attach(
        self, name: str, log: Path, heading: str = ""
    ) -> tuple[tuple[WorkerStream, WorkerStream], list[int]]:
        """Makes the streams of a worker.

        Args:
            name: The worker's name.
            log: Its file. What is in it stays.
            heading: What goes to the file first.

        Returns:
            Its stdout and stderr, being read from now on, and the descriptors to
            give to its process, to be closed here afterwards.

        Raises:
            OSError: No descriptor is left.
        """
        self._screen.prefix(name)  # colours go by the order of workers, not of their output
        sink = self._sinks.setdefault(log, FileSink(log))
        self._writer.put(sink, heading.encode())
        opened = [self._terminal_pair() if self.live and name == self._chief else os.pipe()]
        opened.append(os.pipe())
        streams = [
            WorkerStream(
                read,
                name=name,
                screen=self._screen,
                terminal=self._terminal,
                log=sink,
                writer=self._writer,
            )
            for read, _ in opened
        ]
        for stream in streams:
            stream.start()
        self._streams += streams
        return (streams[0], streams[1]), [write for _, write in opened]

    def variables(self, name: str) -> dict[str, str]:
        """What tells a worker without a terminal of its own how wide the screen is."""
        if not self.live or name == self._chief:
            return {}
        return {"COLUMNS": str(self._columns(name))}

    async def drain(self, timeout_s: float) -> None:
        """Reads what the workers, ended by now, have left; then closes the streams."""
        await wait_closed(self._streams, timeout_s)
        for stream in self._streams:
            stream.drain()
        self._streams = []

    def close(self) -> None:
        """Writes everything that waits, for at most 2 s if nobody takes it."""
        if self._warnings is not None:
            logging.getLogger("drumbeat").removeHandler(self._warnings)
        self._writer.close(FLUSH_TIMEOUT_S)

    def _show(self, text: str) -> None:
        self._writer.put(self._terminal, text.encode("utf-8", "backslashreplace"))

    def _width(self) -> int:
        return shutil.get_terminal_size().columns

    def _columns(self, name: str) -> int:
        return max(self._width() - len(f"[{name}] "), 20)

    def _problem(self, sink: Sink, error: OSError) -> None:
        """In the writer's thread: a file or the screen can't be written any more."""
        if not isinstance(sink, FileSink) or self._loop is None:
            return  # there is no screen left to say it on
        text = f"Can't write {sink.path}: {error.strerror or error}. The run goes on without it."
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.note, text)

    def _terminal_pair(self) -> tuple[int, int]:
        """A pseudo-terminal, so that the chief's script knows that someone looks on."""
        read, write = os.openpty()
        attributes = termios.tcgetattr(write)
        attributes[_OUTPUT_FLAGS] &= ~termios.OPOST  # newlines stay newlines
        termios.tcsetattr(write, termios.TCSANOW, attributes)
        size = struct.pack("HHHH", _WINDOW_ROWS, self._columns(self._chief), 0, 0)
        fcntl.ioctl(write, termios.TIOCSWINSZ, size)
        for fd in (read, write):
            os.set_inheritable(fd, False)
        return read, write
