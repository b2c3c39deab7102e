"""The process that imports TensorFlow once and forks every worker from itself.

Importing TensorFlow and Keras takes seconds and a fork takes milliseconds, so
a node pays for the import once, and not again when workers are restarted. A
fork is safe as long as this process has run no TensorFlow operation: it only
imports the preload module, then waits for requests.

It talks with the agent over a Unix socket: each message is four bytes of
length and a JSON object; a worker's file descriptors come along (SCM_RIGHTS).
When the agent is gone, however it ended, every worker's process group is
killed: Linux kills this process with the agent until the import is done, and
afterwards the closed socket tells.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

from drumbeat.launch import worker

# Imports TensorFlow and Keras; its `install()` makes their strategies and `fit` drumbeat's.
DEFAULT_PRELOAD = "drumbeat.training.unmodified"
# Imports JAX and Keras; its `install()` makes the workers one for JAX.
JAX_PRELOAD = "drumbeat.training.jax_processes"
LEFTOVER_GRACE_S = 1.0
_POLL_S = 0.05
_MAX_FDS = 16
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
# Run with -c, not -m: with -m Python puts the current folder first on sys.path, where a
# user's file or folder of the same name would hide a module that is imported here.
BOOTSTRAP = (
    "import sys\n"
    "sys.path[:] = [p for p in sys.path if p]\n"
    "if sys.argv[1] not in sys.path: sys.path.append(sys.argv[1])\n"
    "from drumbeat.launch.parent import main\n"
    "main(sys.argv[2:])\n"
)


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """What the agent wants to have started.

    Attributes:
        name: The worker's name, unique on its node.
        command: The script's path, or the module's name.
        is_module: Which of the two it is.
        args: What follows on the command line.
        variables: The complete environment.
        folder: The working folder.
        cpus: CPUs to run on; empty for any.
        failure_path: File in which the worker explains an exception that ended it.
        memory_path: Shared memory file of its MPI library, which the agent removes,
            or the parent if the agent is killed; "" for none.
        fd_variables: For each descriptor beyond stdout and stderr, the variable that
            tells the worker its number; several of one name are joined by commas.
    """

    name: str
    command: str
    is_module: bool
    args: list[str]
    variables: dict[str, str]
    folder: str
    cpus: list[int]
    failure_path: str
    memory_path: str = ""
    fd_variables: list[str] = field(default_factory=list)


def encode(message: dict[str, Any]) -> bytes:
    """A message as it goes over the socket."""
    data = json.dumps(message).encode("ascii")
    return struct.pack("!I", len(data)) + data


def start_message(request: WorkerRequest) -> bytes:
    """The message that asks for a worker; its descriptors go with the first byte."""
    return encode({"start": asdict(request)})


def die_with_parent(parent_pid: int) -> None:
    """Has this process killed when its parent ends (Linux; elsewhere nothing happens).

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)  # it ended before the request took effect


def live_on() -> None:
    """Undoes `die_with_parent`."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


class ForkServer:
    """Starts workers on request and reports how they end.

    `serve` returns twice, like fork itself: in every worker with what it is
    to do, so that a worker's stack is unwound to the top of the program and
    the interpreter ends as any other would; in the parent with None.
    """

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._names: dict[int, str] = {}
        self._leftovers: dict[int, float] = {}
        self._memory_paths: set[str] = set()
        self._wake_read, self._wake_write = -1, -1

    def serve(self) -> tuple[WorkerRequest, list[int]] | None:
        """Runs until the agent asks to stop or is gone."""
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            timeout_s = _POLL_S if self._leftovers else None
            readable, _, _ = select.select([self._agent, self._wake_read], [], [], timeout_s)
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
            self._reap()
            self._clear_leftovers()
            if self._agent not in readable:
                continue
            message, fds = self._receive()
            if message is None or "stop" in message:
                self._end(at_once=message is None)
                return None
            request = WorkerRequest(**message["start"])
            if self._fork(request, fds):
                return request, fds

    def _fork(self, request: WorkerRequest, fds: list[int]) -> bool:
        """Forks; True in the worker."""
        parent_pid = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns of threads. What TensorFlow's import leaves running are idle
            # thread pools, which are started anew in the child.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            die_with_parent(parent_pid)
            os.setpgid(0, 0)
            self._forget()
            return True
        with contextlib.suppress(OSError):  # the worker was faster, or is gone already
            os.setpgid(pid, pid)
        for fd in fds:
            os.close(fd)
        self._names[pid] = request.name
        if request.memory_path:
            self._memory_paths.add(request.memory_path)
        self._send({"started": request.name, "pid": pid})
        return False

    def _forget(self) -> None:
        """In a worker: gives up everything that belongs to the parent."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._agent.close()

    def _reap(self) -> None:
        while self._names:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            name = self._names.pop(pid, None)
            if name is None:
                continue
            # What it started and left behind ends with it. TERM first: Python's resource
            # tracker ignores that, and removes the worker's shared memory.
            if _signal_group(pid, signal.SIGTERM):
                self._leftovers[pid] = time.monotonic() + LEFTOVER_GRACE_S
            self._send({"ended": name, "status": os.waitstatus_to_exitcode(status)})

    def _clear_leftovers(self) -> None:
        now = time.monotonic()
        for group, deadline in list(self._leftovers.items()):
            if not _signal_group(group, 0):
                del self._leftovers[group]
            elif now >= deadline:
                _signal_group(group, signal.SIGKILL)
                del self._leftovers[group]

    def _end(self, *, at_once: bool) -> None:
        for pid in self._names:
            _signal_group(pid, signal.SIGKILL)
        while self._leftovers and not at_once:
            self._clear_leftovers()
            time.sleep(_POLL_S)
        for group in self._leftovers:
            _signal_group(group, signal.SIGKILL)
        if at_once:
            self._remove_memory()

    def _remove_memory(self) -> None:
        deadline = time.monotonic() + LEFTOVER_GRACE_S
        while self._names and time.monotonic() < deadline:
            self._reap()
            time.sleep(_POLL_S)
        for path in self._memory_paths:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the agent is gone; the next read says so too
            self._agent.sendall(encode(message))

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        """The next message with its descriptors; None when the agent is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._agent, 4, _MAX_FDS)
            data += self._exactly(4 - len(data)) if data else b""
            if len(data) < 4:
                return None, []
            (size_bytes,) = struct.unpack("!I", data)
            return json.loads(self._exactly(size_bytes)), list(fds)
        except (OSError, EOFError):
            return None, []

    def _exactly(self, size_bytes: int) -> bytes:
        data = b""
        while len(data) < size_bytes:
            chunk = self._agent.recv(size_bytes - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data


def _signal_group(group: int, number: int) -> bool:
    """Sends a signal to a process group; False if there is none any more."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main(argv: list[str]) -> None:
    """Entry point: `argv` is the socket's descriptor, the agent's pid and the preload module."""
    fd, agent_pid, preload_name = int(argv[0]), int(argv[1]), argv[2]
    die_with_parent(agent_pid)
    # Signals are the agent's to handle, also when a terminal or a platform sends them to all.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    agent = socket.socket(fileno=fd)
    os.set_inheritable(fd, False)
    gc.disable()  # all that an import makes stays; looking through it takes a sixth of the time
    preload = importlib.import_module(preload_name)
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the pages that are shared
    gc.enable()
    live_on()
    server = ForkServer(agent)
    agent.sendall(encode({"ready": os.getpid()}))
    task = server.serve()
    if task is None:
        agent.close()
        # Nothing is worth the time of a normal end here, and TensorFlow's can hang.
        os._exit(0)
    request, fds = task
    worker.run(request, fds, preload)
