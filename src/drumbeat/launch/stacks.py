"""The Python stacks of a worker that can't be asked for them in any other way.

faulthandler writes them from a signal handler, whatever the interpreter is busy
with, to the end of the worker's progress page, which its agent has open too.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import linecache
import os
import re
import signal
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import drumbeat
from drumbeat.state.progress import FD_VARIABLE

# Real-time, because scripts and libraries have uses for SIGUSR1 and SIGUSR2. Where a
# system has no such signals (macOS), there are no stacks.
SIGNAL: int = getattr(signal, "SIGRTMIN", 0) and signal.SIGRTMIN + 6
ANSWER_TIMEOUT_S = 2.0
_POLL_S = 0.005
_MOST_BYTES = 256 * 1024
_THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+).*:$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_OWN_FOLDER = os.path.dirname(drumbeat.__file__) + os.sep


def offer(env: Mapping[str, str]) -> None:
    """In a worker: answers `SIGNAL` with the stacks of all threads from now on."""
    fd = env.get(FD_VARIABLE, "")
    if not (SIGNAL and fd):
        return
    # Everybody else uses the page as memory: its position is for what comes behind it.
    os.lseek(int(fd), 0, os.SEEK_END)
    faulthandler.register(SIGNAL, file=int(fd), all_threads=True)


async def ask(pid: int, page_fd: int) -> str:
    """What faulthandler says of all threads of a worker; "" if it does not answer.

    A process that is stopped goes on: this is for those about to be killed.

    Args:
        pid: The worker, which has called `offer`. Another one would be ended by the signal.
        page_fd: Descriptor of its progress page.
    """
    if not SIGNAL:
        return ""
    before = os.fstat(page_fd).st_size
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, SIGNAL)
        os.kill(pid, signal.SIGCONT)
    clock = asyncio.get_running_loop().time
    deadline_s = clock() + ANSWER_TIMEOUT_S
    size = before
    while clock() < deadline_s:
        await asyncio.sleep(_POLL_S)
        last, size = size, os.fstat(page_fd).st_size
        if last == size > before:
            break
    return os.pread(page_fd, min(size - before, _MOST_BYTES), before).decode(errors="replace")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One call of a thread."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """It is neither drumbeat's nor Python's own nor an installed package's."""
        return not self.file.startswith(("<", *_library_folders()))

    def text(self) -> str:
        """As in a traceback, with the line of the source where the agent can read it."""
        source = linecache.getline(self.file, self.line).strip()
        code = f"\n    {source}" if source else ""
        return f'  File "{self.file}", line {self.line}, in {self.function}{code}'


def threads(dump: str) -> list[list[Frame]]:
    """What `ask` returned, by threads: the main one first, each with its oldest call first."""
    found: list[list[Frame]] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            found.append([])
        elif found and (match := _FRAME.match(line)):
            file, number, function = match.group("file", "line", "function")
            found[-1].insert(0, Frame(file=file, line=int(number), function=function))
    return [thread for thread in reversed(found) if thread]


def readable(dump: str) -> str:
    """The stack of the main thread, and of those others that run code of the user's.

    In the form of a traceback: the most recent call is last. "" if there is none.
    """
    found = threads(dump)
    if not found:
        return ""
    users = [thread for thread in found[1:] if any(frame.is_users for frame in thread)]
    parts = ["Main thread (most recent call last):", *_shown(found[0])]
    for thread in users:
        parts += ["Another thread (most recent call last):", *_shown(thread)]
    return "\n".join(parts)


def _shown(thread: Sequence[Frame]) -> list[str]:
    """Without drumbeat's own frames, unless it is there that the thread stands still."""
    shown = [frame for frame in thread if not frame.file.startswith(_OWN_FOLDER)]
    if shown[-1:] != [*thread[-1:]]:
        shown = [*thread]
    first = next((i for i, frame in enumerate(shown) if frame.is_users), 0)
    return [frame.text() for frame in shown[first:]]


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return (_OWN_FOLDER, *{paths[name] + os.sep for name in names})
