"""Carries the workers' output to the screen and to their files, and keeps its tail.

The event loop reads, a thread writes: a terminal that is stopped, a pipe that
nobody reads or a slow disk never keeps the agent from stopping its workers.
What waits to be written is bounded: beyond `HIGH_WATER_BYTES` nothing more is
read, so a worker that writes faster than its output can be taken waits in its
own write, as it would on a plain pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from drumbeat.launch.output import LineAssembler, Screen

READ_BYTES = 64 * 1024
HIGH_WATER_BYTES = 4 * 1024 * 1024
LOW_WATER_BYTES = 1024 * 1024
TAIL_BYTES = 64 * 1024


class Sink(Protocol):
    """Something bytes can be written to; called from the writer's thread only."""

    def write(self, data: bytes) -> None:
        """Writes all of `data`, or raises OSError."""
        ...


class FileSink:
    """A file that is created with its first byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def write(self, data: bytes) -> None:
        """Appends `data`.

        Raises:
            OSError: The disk is full, the folder is gone, ...
        """
        if self._fd < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(self.path, flags, 0o644)
        _write_all(self._fd, data)


class DescriptorSink:
    """An open file descriptor, such as the agent's stdout."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, data: bytes) -> None:
        """Writes `data`, waiting as long as the other side does not read.

        Raises:
            OSError: The other side is gone.
        """
        _write_all(self.fd, data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [], 1.0)


class Writer:
    """A thread that writes what it is given, in order.

    A sink that fails is reported once through `on_problem` (called in the
    thread) and gets nothing more; training goes on without it.
    """

    def __init__(self, *, on_problem: Callable[[Sink, OSError], None]) -> None:
        self._on_problem = on_problem
        self._queue: deque[tuple[Sink, bytes]] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._broken: set[Sink] = set()
        self._on_room: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="drumbeat-writer", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def put(self, sink: Sink, data: bytes) -> None:
        """Queues `data` for `sink`; never waits."""
        if not data:
            return
        with self._changed:
            self._queue.append((sink, data))
            self._waiting_bytes += len(data)
            self._changed.notify_all()

    def when_room(self, callback: Callable[[], None]) -> bool:
        """Whether there is room now; if not, `callback` runs (in the thread) when there is."""
        with self._changed:
            if self._waiting_bytes < HIGH_WATER_BYTES:
                return True
            self._on_room.append(callback)
            return False

    def close(self, timeout_s: float) -> bool:
        """Writes what is queued and ends the thread; False if `timeout_s` did not suffice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                sink, data = self._queue.popleft()
            self._write(sink, data)
            self._written(len(data))

    def _write(self, sink: Sink, data: bytes) -> None:
        if sink in self._broken:
            return
        try:
            sink.write(data)
        except OSError as error:
            self._broken.add(sink)
            self._on_problem(sink, error)

    def _written(self, size_bytes: int) -> None:
        callbacks: list[Callable[[], None]] = []
        with self._changed:
            self._waiting_bytes -= size_bytes
            if self._waiting_bytes < LOW_WATER_BYTES:
                callbacks, self._on_room = self._on_room, []
        for callback in callbacks:
            callback()


class WorkerStream:
    """One worker's stdout or stderr on its way to the screen and the file.

    Must be used in the event loop it was made in.
    """

    def __init__(
        self, fd: int, *, name: str, screen: Screen, terminal: Sink, log: Sink, writer: Writer
    ) -> None:
        self.fd = fd
        self.name = name
        self.tail = bytearray()
        self.closed = asyncio.Event()
        self._screen = screen
        self._terminal = terminal
        self._log = log
        self._writer = writer
        self._lines = LineAssembler()
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begins to read."""
        os.set_blocking(self.fd, False)
        self._loop.add_reader(self.fd, self._readable)

    def drain(self) -> None:
        """Takes what can be read at once, and closes: for the end of a run.

        A process that the worker left behind may hold the other end open.
        """
        left_bytes = HIGH_WATER_BYTES
        while not self.closed.is_set() and left_bytes > 0:
            taken_bytes = self._take()
            if taken_bytes == 0:
                break
            left_bytes -= taken_bytes
        self._close()

    def tail_text(self) -> str:
        """The last 64 KiB written, as text."""
        return bytes(self.tail).decode("utf-8", "backslashreplace")

    def _readable(self) -> None:
        self._take()
        if not self.closed.is_set() and not self._writer.when_room(self._resume_soon):
            self._loop.remove_reader(self.fd)

    def _resume_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop ended while the thread still wrote
            self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        if not self.closed.is_set():
            self._loop.add_reader(self.fd, self._readable)

    def _take(self) -> int:
        """Reads once; returns how many bytes came, 0 for none or the end."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""  # a pty whose other side is closed reads as EIO
        if not data:
            self._close()
            return 0
        self._writer.put(self._log, data)
        self.tail += data
        del self.tail[:-TAIL_BYTES]
        text = self._screen.lines(self.name, self._lines.feed(data))
        text += self._screen.draw(self.name, self._lines.unfinished())
        self._show(text)
        return len(data)

    def _show(self, text: str) -> None:
        self._writer.put(self._terminal, text.encode("utf-8", "backslashreplace"))

    def _close(self) -> None:
        if self.closed.is_set():
            return
        self._loop.remove_reader(self.fd)
        os.close(self.fd)
        self._show(self._screen.lines(self.name, self._lines.close()))
        self.closed.set()


async def wait_closed(streams: Sequence[WorkerStream], timeout_s: float) -> None:
    """Waits until all of `streams` have ended, but not longer than `timeout_s`."""
    waits = [asyncio.ensure_future(stream.closed.wait()) for stream in streams]
    if not waits:
        return
    _, late = await asyncio.wait(waits, timeout=timeout_s)
    for wait in late:
        wait.cancel()
