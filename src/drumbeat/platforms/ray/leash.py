"""Runs a command for a Ray actor, and ends it with the actor, whatever ends that.

Ray kills its own processes without a word to theirs, and the children of those that it lets end. So
this one is nobody's child: it leaves a parent behind, and knows by the pipe that is its standard
input what becomes of the actor. `T` in it asks for a soft end, its end for an immediate one.

    python -m drumbeat.platforms.ray.leash STATUS_FD GRACE_S COMMAND…
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

POLL_S = 0.1
KILLED_AFTER_S = 5.0
"""An agent that is killed has a keeper which ends its workers."""


def main(arguments: Sequence[str]) -> None:
    """The program."""
    status_fd, grace_s, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    if os.fork():
        os._exit(0)
    os.setsid()
    code = _run(command, grace_s)
    with contextlib.suppress(OSError):
        os.write(status_fd, f"{code}\n".encode())


def _run(command: Sequence[str], grace_s: float) -> int:
    """The command's exit code, 128 + the signal's number where one has ended it."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]} can't be started: {error.strerror or error}", flush=True)
        return 127
    deadline: float | None = None
    while process.poll() is None:
        if deadline is not None and time.monotonic() > deadline:
            break
        word = _asked(POLL_S)
        if word == "gone" and deadline is None:
            break
        if word == "end" and deadline is None:
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + grace_s
    else:
        return process.returncode if process.returncode >= 0 else 128 - process.returncode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(KILLED_AFTER_S)
    return 128 + signal.SIGKILL


def _asked(timeout_s: float) -> str:
    """What the actor asks for: "end", "gone", or "" where it is nothing."""
    readable, _, _ = select.select([0], [], [], timeout_s)
    if not readable:
        return ""
    data = os.read(0, 64)
    if not data:
        # After a T its end says no more, and would be readable for ever.
        time.sleep(timeout_s)
        return "gone"
    return "end" if b"T" in data else ""


if __name__ == "__main__":
    main(sys.argv[1:])
