"""What runs in each bundle of a Ray placement group: an actor that starts one node's agent."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

MAX_LINES = 1000
_DRAIN_S = 2.0
_START_TIMEOUT_S = 60.0


class Agent:
    """One node of the job. `ray.remote` makes an actor of it."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue(maxsize=MAX_LINES)
        self._leash: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._reader: threading.Thread | None = None

    def place(self) -> tuple[str, int]:
        """An address of this node, and a port that is free there."""
        import ray.util

        address = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return address, probe.getsockname()[1]

    def start(self, command: Sequence[str], env: Mapping[str, str], grace_s: float) -> None:
        """Starts the command, with `env` beside this process' variables."""
        status, told = os.pipe()
        words = [sys.executable, "-m", "drumbeat.platforms.ray.leash", str(told), str(grace_s)]
        if command[0] == "drumbeat":  # Ray's Python has it, whatever PATH has
            command = [sys.executable, "-m", *command]
        self._leash = subprocess.Popen(
            [*words, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**_own_variables(), **env},
            pass_fds=(told,),
        )
        os.close(told)
        self._leash.wait(_START_TIMEOUT_S)  # what is left of it is nobody's child
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, args=(status,), daemon=True).start()

    def poll(self, timeout_s: float) -> tuple[list[str], int | None]:
        """Lines since the last time, and the exit code once all has been told."""
        lines: list[str] = []
        deadline = time.monotonic() + timeout_s
        ended = self._code  # read first: what came before the end is in the queue by now
        while len(lines) < MAX_LINES:
            left_s = deadline - time.monotonic()
            try:
                if ended is None and not lines and left_s > 0:
                    lines.append(self._lines.get(timeout=min(left_s, 0.2)))
                else:
                    lines.append(self._lines.get_nowait())
            except queue.Empty:
                ended = self._code if ended is None and not lines else ended
                if ended is not None or lines or left_s <= 0:
                    break
        is_full = len(lines) == MAX_LINES
        return lines, None if is_full else ended

    def end(self) -> None:
        """Asks the command to save its state and end."""
        assert self._leash is not None  # noqa: S101
        assert self._leash.stdin is not None  # noqa: S101
        self._leash.stdin.write(b"T")
        self._leash.stdin.flush()

    def _read(self) -> None:
        assert self._leash is not None  # noqa: S101
        assert self._leash.stdout is not None  # noqa: S101
        for line in self._leash.stdout:
            self._lines.put(line.decode("utf-8", "replace").rstrip("\n"))

    def _wait(self, status: int) -> None:
        with os.fdopen(status) as file:
            text = file.read().strip()
        assert self._reader is not None  # noqa: S101
        # What the command has left behind may hold its output open for ever.
        self._reader.join(_DRAIN_S)
        self._code = int(text) if text.isdigit() else 1


def _own_variables() -> dict[str, str]:
    """This process' variables, without what Ray set for its own sake."""
    import ray

    found = dict(os.environ)
    given = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    if "OMP_NUM_THREADS" not in given:
        found.pop(
            "OMP_NUM_THREADS", None
        )  # by the bundle's CPUs; the agent chooses for each worker
    return found
