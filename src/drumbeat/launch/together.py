"""Several programs at once on one screen: all succeed, or all are ended. Nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from drumbeat.errors import ConfigError
from drumbeat.launch.console import Console
from drumbeat.launch.failures import explanation
from drumbeat.launch.streams import WorkerStream

LIMIT_CODE = 124
"""As timeout(1) has it."""
TERM_S, SECOND_TERM_S = 5.0, 3.0
"""Between SIGTERM and the second one, upon which agents hurry; then until SIGKILL."""
# An agent that has heard of another's failure ends at once; the first to fail may be the second
# to be seen.
_CAUSE_WAIT_S = 0.5
_DRAIN_S = 1.0
_SWEEP_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36
# Ends the groups whose numbers it reads where this process ends without a word, as of SIGKILL.
_GUARD = """
import os, signal, sys
for group in list(map(int, sys.stdin.buffer)):
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One program.

    Attributes:
        name: In front of its lines, and of its log.
        argv: The program and its arguments.
        env: Its complete environment.
        is_main: All is over when these have ended; the others are then ended.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    is_main: bool = True


@dataclass(frozen=True, kw_only=True)
class Result:
    """How it went.

    Attributes:
        code: 0 if all main parts ended with 0; else the exit code of the part that failed first,
            128 + a signal, or `LIMIT_CODE`.
        failed: The part that failed, or "".
        text: What it wrote last.
    """

    code: int
    failed: str = ""
    text: str = ""


@dataclass
class _Running:
    part: Part
    process: asyncio.subprocess.Process
    stdout: WorkerStream
    stderr: WorkerStream
    ended_s: float = 0.0

    @property
    def code(self) -> int | None:
        code = self.process.returncode
        return None if code is None else 128 - code if code < 0 else code

    async def until_end(self) -> None:
        await self.process.wait()
        self.ended_s = time.monotonic()

    def signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def run_together(
    parts: Sequence[Part], *, logs: Path, timeout_s: float, environ: Mapping[str, str], fd: int = 1
) -> Result:
    """Runs them to the end of the main ones, the first failure, or a deadline.

    Args:
        parts: At least one of them main.
        logs: The folder for `<name>.log`; exists.
        timeout_s: When all are ended.
        environ: NO_COLOR and TERM decide about colours.
        fd: The screen.

    Raises:
        ConfigError: A program can't be started.
    """
    console = Console(fd, environ)
    with _guard() as guard, _orphans_are_ended():
        try:
            return asyncio.run(_Together(parts, logs, console, guard).run(timeout_s))
        finally:
            console.close()


class _Together:
    def __init__(
        self, parts: Sequence[Part], logs: Path, console: Console, guard: IO[bytes]
    ) -> None:
        self._guard = guard
        self._parts = parts
        self._logs = logs
        self._console = console
        self._running: list[_Running] = []
        self._stopped: asyncio.Future[signal.Signals] | None = None

    async def run(self, timeout_s: float) -> Result:
        loop = asyncio.get_running_loop()
        self._stopped = loop.create_future()
        self._console.start(chief=self._parts[0].name)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)
        try:
            for part in self._parts:
                await self._start(part)
            return await self._until_over(timeout_s)
        finally:
            await self._end_all()
            await self._console.drain(_DRAIN_S)

    def _on_signal(self, number: signal.Signals) -> None:
        assert self._stopped is not None  # noqa: S101
        if not self._stopped.done():
            self._console.note(f"Ending all processes ({number.name}).")
            self._stopped.set_result(number)

    async def _start(self, part: Part) -> None:
        (out, err), fds = self._console.attach(part.name, self._logs / f"{part.name}.log")
        try:
            process = await asyncio.create_subprocess_exec(
                *part.argv,
                env=dict(part.env) | self._console.variables(part.name),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=fds[0],
                stderr=fds[1],
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: text that no system call takes
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"{part.name} can't be started: {part.argv[0]!r}: {why}.") from None
        finally:
            for each in fds:
                os.close(each)
        self._running.append(_Running(part, process, out, err))
        _tell(self._guard, str(process.pid))

    async def _until_over(self, timeout_s: float) -> Result:
        assert self._stopped is not None  # noqa: S101
        deadline_s = time.monotonic() + timeout_s
        ends = {asyncio.ensure_future(each.until_end()) for each in self._running}
        try:
            while True:
                failed = [each for each in self._running if each.code]
                if failed:
                    return await self._failure(ends)
                if all(each.code == 0 for each in self._running if each.part.is_main):
                    return Result(code=0)
                waits = {end for end in ends if not end.done()} | {self._stopped}
                left_s = deadline_s - time.monotonic()
                await asyncio.wait(
                    waits, timeout=max(left_s, 0.0), return_when=asyncio.FIRST_COMPLETED
                )
                if self._stopped.done():
                    return Result(code=128 + self._stopped.result())
                if time.monotonic() >= deadline_s:
                    return Result(code=LIMIT_CODE)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _failure(self, ends: Iterable[asyncio.Future[None]]) -> Result:
        open_ends = {end for end in ends if not end.done()}
        if open_ends:
            await asyncio.wait(open_ends, timeout=_CAUSE_WAIT_S)
        first = min((each for each in self._running if each.code), key=lambda each: each.ended_s)
        await asyncio.wait(
            [asyncio.ensure_future(each.closed.wait()) for each in (first.stdout, first.stderr)],
            timeout=_DRAIN_S,
        )
        text = explanation(first.stderr.tail_text(), first.stdout.tail_text())
        return Result(code=first.code or 1, failed=first.part.name, text=text)

    async def _end_all(self) -> None:
        waits = {asyncio.ensure_future(each.process.wait()) for each in self._running}
        for number, grace_s in (
            (signal.SIGTERM, TERM_S),
            (signal.SIGTERM, SECOND_TERM_S),
            (signal.SIGKILL, SECOND_TERM_S),
        ):
            for each in self._running:
                if each.code is None:
                    each.signal_group(number)
            if waits:
                _, waits = await asyncio.wait(waits, timeout=grace_s)
        for wait in waits:
            wait.cancel()


@contextlib.contextmanager
def _guard() -> Iterator[IO[bytes]]:
    """A process that ends the groups which are written to it, where this one is killed."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None  # noqa: S101
    try:
        yield guard.stdin
    finally:
        guard.kill()
        guard.wait()
        with contextlib.suppress(OSError):
            guard.stdin.close()


def _tell(guard: IO[bytes], word: str) -> None:
    with contextlib.suppress(OSError):  # somebody has killed it
        guard.write(f"{word}\n".encode())
        guard.flush()


@contextlib.contextmanager
def _orphans_are_ended() -> Iterator[None]:
    """On Linux, has processes that lose their parent within it become this one's, and ends them."""
    if sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = _children()
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        deadline_s = time.monotonic() + _SWEEP_S
        while (left := _children() - before) and time.monotonic() < deadline_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children() -> set[int]:
    """Process ids of this process's children."""
    mine, found = str(os.getpid()), set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[1].decode() == mine:
                found.add(int(name))
    return found
