"""The agent's side of the parent process: start it, have workers forked, hear how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import drumbeat
from drumbeat.errors import DrumbeatError
from drumbeat.launch.parent import BOOTSTRAP, WorkerRequest, encode, start_message

_STOP = encode({"stop": True})
_LOG_TAIL_BYTES = 16 * 1024
# What TensorFlow says at every start: the oneDNN and CUDA remarks.
_LIBRARY_NOTES = re.compile(r"^(I\d{4} .*|WARNING: All log messages before absl::.*)(\n|\Z)", re.M)
_STOP_TIMEOUT_S = 2.0
_SEND_TIMEOUT_S = 30.0


class ParentError(DrumbeatError):
    """The process that imports TensorFlow and forks the workers did not do so."""


class ParentProcess:
    """A running parent, see `drumbeat.launch.parent`.

    All methods but `start` and `kill` belong into one event loop, and `ready` comes first.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], connection: socket.socket, log: Path
    ) -> None:
        self._process = process
        self._connection = connection
        self._log = log
        self._is_ready: asyncio.Future[int] | None = None
        self._pids: dict[str, asyncio.Future[int]] = {}
        self._ends: dict[str, asyncio.Future[int]] = {}
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    def start(cls, variables: Mapping[str, str], preload: str, log: Path) -> ParentProcess:
        """Starts the process; it is useful once `ready` returns.

        It has a session of its own, so the terminal's Ctrl-C does not reach it.

        Args:
            variables: Its complete environment.
            preload: Module to import.
            log: File for what the import prints.

        Raises:
            OSError: No process can be started, or `log` can't be written.
        """
        ours, theirs = socket.socketpair()
        root = str(Path(drumbeat.__file__).parents[1])
        command = [sys.executable, "-c", BOOTSTRAP, root, str(theirs.fileno()), str(os.getpid())]
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*command, preload],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(variables),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(process, ours, log)

    async def ready(self, timeout_s: float) -> None:
        """Waits until workers can be started.

        Raises:
            ParentError: It ended, or `timeout_s` passed; with what it printed.
        """
        if self._is_ready is None:
            self._is_ready = asyncio.get_running_loop().create_future()
            self._reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait_for(asyncio.shield(self._is_ready), timeout_s)
        except asyncio.TimeoutError:
            raise ParentError(
                f"Importing what workers need took longer than {timeout_s:g} s; nothing was "
                "started. Is the disk or the machine very slow? --start-timeout allows more time."
                f"{self._log_tail()}"
            ) from None

    async def start_worker(self, request: WorkerRequest, fds: Sequence[int]) -> int:
        """Forks a worker and returns its process id.

        Args:
            request: What it is to run.
            fds: stdout, stderr and what `request.fd_variables` names. They can be
                closed afterwards.

        Raises:
            ParentError: The parent is gone or does not answer.
        """
        loop = asyncio.get_running_loop()
        self._pids[request.name] = loop.create_future()
        self._ends[request.name] = loop.create_future()
        message = start_message(request)
        try:
            # The descriptors go with the first byte; so small a write is never partial.
            socket.send_fds(self._connection, [message[:1]], list(fds))
            await asyncio.wait_for(
                loop.sock_sendall(self._connection, message[1:]), _SEND_TIMEOUT_S
            )
            return await asyncio.wait_for(asyncio.shield(self._pids[request.name]), _SEND_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError):
            raise ParentError(
                f"{request.name} could not be started.{self._end_in_words()}{self._log_tail()}"
            ) from None

    async def end_of(self, name: str) -> int:
        """Waits for the end of a worker: its exit code, or minus the signal that killed it.

        Raises:
            ParentError: The parent ended first, and took the worker with it.
        """
        return await asyncio.shield(self._ends[name])

    def signal_workers(self, number: signal.Signals) -> None:
        """Sends a signal to the process groups of all workers that have not ended."""
        for name in self._pids:
            self.signal_worker(name, number)

    def signal_worker(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to the process group of a worker, if it has not ended."""
        pid = self.pid_of(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def pid_of(self, name: str) -> int | None:
        """The process id of a worker that has not ended."""
        pid = self._pids[name]
        if self._ends[name].done() or not pid.done() or pid.exception():
            return None
        return pid.result()

    def code_of(self, name: str) -> int | None:
        """As `end_of`, but None as long as it has not ended."""
        end = self._ends[name]
        return None if not end.done() or end.exception() else end.result()

    def notify_worker(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a worker that has not ended, and not to what it has started."""
        pid = self.pid_of(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    @property
    def is_ready(self) -> bool:
        """Whether it has once been able to fork workers."""
        ready = self._is_ready
        return ready is not None and ready.done() and not ready.exception()

    @property
    def is_alive(self) -> bool:
        """Whether it can still fork workers."""
        return self._process.poll() is None

    @property
    def was_killed(self) -> bool:
        """Whether a signal has ended it."""
        return (self._process.poll() or 0) < 0

    @property
    def running(self) -> list[asyncio.Future[int]]:
        """The ends of the workers that have not ended."""
        return self.running_of(self._ends)

    def running_of(self, names: Iterable[str]) -> list[asyncio.Future[int]]:
        """The ends of those of them that have not ended."""
        return [self._ends[name] for name in names if not self._ends[name].done()]

    async def stop(self) -> None:
        """Ends the parent, within 2 s, and with it whatever of the workers is left."""
        if self.is_ready:
            with contextlib.suppress(OSError):
                self._connection.send(_STOP)
            deadline = asyncio.get_running_loop().time() + _STOP_TIMEOUT_S
            while self._process.poll() is None:
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        """Ends the parent at once; Linux then kills the workers."""
        self.signal_workers(signal.SIGKILL)
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
                self._process.wait(_STOP_TIMEOUT_S)
        if self._reading is not None:
            self._reading.cancel()
        self._connection.close()

    async def _read(self) -> None:
        assert self._is_ready is not None  # noqa: S101
        received = b""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(self._connection, 65536):
                received += data
                while len(received) >= 4:
                    end = 4 + int.from_bytes(received[:4], "big")
                    if len(received) < end:
                        break
                    self._handle(_json_object(received[4:end]), self._is_ready)
                    received = received[end:]
        self._lost(self._is_ready)

    def _handle(self, message: dict[str, Any], is_ready: asyncio.Future[int]) -> None:
        match message:
            case {"ready": _}:
                _set(is_ready, 0)
            case {"started": str(name), "pid": int(pid)}:
                _set(self._pids[name], pid)
            case {"ended": str(name), "status": int(status)}:
                _set(self._ends[name], status)

    def _lost(self, is_ready: asyncio.Future[int]) -> None:
        """The parent closed the socket: it has ended, or will in a moment."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        text = f"The process that starts the workers ended.{self._end_in_words()}"
        for future in (is_ready, *self._pids.values(), *self._ends.values()):
            if not future.done():
                future.set_exception(ParentError(f"{text}{self._log_tail()}"))
                future.exception()  # nobody may be waiting for this one

    def _end_in_words(self) -> str:
        code = self._process.poll()
        if code is None:
            return ""
        if code < 0:
            return f" It was killed by {signal.Signals(-code).name}."
        return f" Its exit code was {code}."

    def _log_tail(self) -> str:
        try:
            with self._log.open("rb") as file:
                file.seek(max(self._log.stat().st_size - _LOG_TAIL_BYTES, 0))
                text = file.read().decode("utf-8", "backslashreplace").strip()
        except OSError:
            return ""
        text = _LIBRARY_NOTES.sub("", text).strip()
        return f"\nIt printed:\n{text}" if text else ""


def _json_object(data: bytes) -> dict[str, Any]:
    message = json.loads(data)
    assert isinstance(message, dict), "the parent sends objects"  # noqa: S101
    return message


def _set(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)
