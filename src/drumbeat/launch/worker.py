"""From a forked process to a user's script that can't tell the difference.

The script sees what `python script.py` would show it: `sys.argv`, `sys.path`,
a `__main__` module with its file, an environment and a working folder of its
own; and its exceptions look and exit as under Python itself.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
import types
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from drumbeat.cluster.identity import PID_VARIABLE
from drumbeat.errors import (
    CollectiveError,
    CollectiveMismatch,
    ConfigError,
    DataError,
    DrumbeatError,
    Regrouped,
)
from drumbeat.launch import stacks

if TYPE_CHECKING:
    from drumbeat.launch.parent import WorkerRequest

# How the loss of another worker shows in this one. Inside a tf.function the exception's class
# is lost and its name is part of the message.
_PEER_LOST_NAMES = ("CollectiveTimeout", "CollectiveError")
_PEER_LOST_CODES = ("UnavailableError", "AbortedError", "CancelledError")
_FINAL_NAMES = ("CollectiveMismatch", "DataError")
_MESSAGE_LIMIT = 4000
EXIT_GRACE_S = 1.0
_OUR_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Preload(Protocol):
    """What the module that is imported before the fork offers."""

    def install(self) -> None:
        """Called in every worker, in its final environment, just before its script."""
        ...


def run(request: WorkerRequest, fds: list[int], preload: Any) -> NoReturn:
    """Becomes the worker that `request` describes.

    Args:
        request: What to run, and in which surroundings.
        fds: stdout, stderr and what `request.fd_variables` names.
        preload: The preload module, see `Preload`.

    Never returns: the process ends here, with the script's exit code.
    """
    _enter(request, fds)
    try:
        preload.install()
        _execute(request)
        _end()
    except SystemExit as error:
        if isinstance(error, Regrouped):
            _explain(request, error)
        if error.code is None or error.code == 0:
            _end()
        if isinstance(error.code, int):
            _leave(error.code & 0xFF)
        sys.stdout.flush()
        print(error.code, file=sys.stderr, flush=True)
        _leave(1)
    except DrumbeatError as error:
        _explain(request, error)
        sys.stdout.flush()
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        _leave(error.exit_code)
    except BaseException as error:
        _explain(request, error)
        _show_as_python_does(error)
        _leave(130 if isinstance(error, KeyboardInterrupt) else 1)


def _end() -> NoReturn:
    """Ends a worker that succeeded: as Python does, up to the libraries' own destructors.

    Those of MPI's transports wait for workers that have gone.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _leave(code: int) -> NoReturn:
    """Ends a worker that failed, within `EXIT_GRACE_S`.

    Not the interpreter's own end: MPI finalizes there, which waits for the other
    workers, which wait for this one in a collective. They would all find out
    only when the agent's patience ends.
    """
    # Out of memory, there may be no thread any more: the system's own timer ends the process then.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 2 * EXIT_GRACE_S)
    with contextlib.suppress(BaseException):
        timer = threading.Timer(EXIT_GRACE_S, os._exit, [code])
        timer.daemon = True
        timer.start()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    os._exit(code)


def _enter(request: WorkerRequest, fds: list[int]) -> None:
    """Takes on the environment, the streams, the CPUs and the folder."""
    os.environ.clear()
    os.environ.update(request.variables)
    os.environ[PID_VARIABLE] = str(os.getpid())
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    for fd in fds[:2]:
        os.close(fd)
    for name in request.fd_variables:
        os.environ.pop(name, None)
    for name, fd in zip(request.fd_variables, fds[2:], strict=True):
        before = os.environ.get(name)
        os.environ[name] = f"{before},{fd}" if before else str(fd)
    for stream in (sys.stdout, sys.stderr):
        # Lines must reach the agent when they are written, not when a buffer is full.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    faulthandler.enable()
    stacks.offer(os.environ)
    if request.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request.cpus)
    os.chdir(request.folder)
    time.tzset()
    if "numpy" in sys.modules:
        # NumPy drew its seed when it was imported, before the fork: every worker and every
        # restart would draw the same numbers. Python's own `random` sees to this itself.
        sys.modules["numpy"].random.seed()


def _execute(request: WorkerRequest) -> None:
    """Runs the script or the module as `__main__`."""
    importlib.invalidate_caches()
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    code = _load_module(request, main) if request.is_module else _load_script(request, main)
    exec(code, main.__dict__)


def _load_script(request: WorkerRequest, main: types.ModuleType) -> types.CodeType:
    path = request.command
    sys.argv[:] = [path, *request.args]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    loader = SourceFileLoader("__main__", path)
    full_path = os.path.abspath(path)
    main.__dict__.update(__file__=full_path, __loader__=loader, __cached__=None)
    return loader.source_to_code(loader.get_data(path), full_path)


def _load_module(request: WorkerRequest, main: types.ModuleType) -> types.CodeType:
    sys.argv[:] = ["-m", *request.args]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())
    spec = _find(request.command)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find(f"{request.command}.__main__")
    loader: Any = getattr(spec, "loader", None)
    if spec is None or not hasattr(loader, "get_code"):
        _no_module(request.command, "is it installed, and does a package have a __main__.py?")
    code = loader.get_code(spec.name)
    if code is None:
        _no_module(request.command, "it has no Python code")
    sys.argv[0] = spec.origin or request.command
    main.__dict__.update(
        __file__=spec.origin,
        __loader__=loader,
        __spec__=spec,
        __package__=spec.parent,
        __cached__=spec.cached,
    )
    return code


def _find(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise
    except ValueError:
        return None  # a module that is imported already and has no spec


def _no_module(name: str, why: str) -> NoReturn:
    print(f"No module named {name} can be run ({why}).", file=sys.stderr, flush=True)
    sys.exit(1)


def _show_as_python_does(error: BaseException) -> None:
    """Hands the exception to `sys.excepthook`, without drumbeat's own frames."""
    frames = _users_frames(error.__traceback__)
    error.__traceback__ = frames
    sys.stdout.flush()
    try:
        sys.excepthook(type(error), error, frames)
    except BaseException:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(type(error), error, frames)
    sys.stderr.flush()


def _users_frames(frames: types.TracebackType | None) -> types.TracebackType | None:
    """The frames outside of drumbeat; all but this file's where drumbeat itself failed."""
    kept: list[types.TracebackType] = []
    while frames is not None:
        kept.append(frames)
        frames = frames.tb_next
    folder = _OUR_FOLDER if kept and not _is_in(kept[-1], _OUR_FOLDER) else __file__
    kept = [frame for frame in kept if not _is_in(frame, folder)]
    for frame, following in zip(kept, [*kept[1:], None], strict=True):
        frame.tb_next = following
    return kept[0] if kept else None


def _is_in(frame: types.TracebackType, folder: str) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(folder)


def is_consequence(error: BaseException) -> bool:
    """Whether `error` only says that another worker is gone or late.

    The agents use this to show the failure that came first, not its echoes.
    """
    if isinstance(error, CollectiveMismatch) or "CollectiveMismatch" in str(error):
        return False
    if isinstance(error, CollectiveError):
        return True
    kind = type(error)
    if kind.__module__.startswith("tensorflow") and kind.__name__ in _PEER_LOST_CODES:
        return True
    return any(f"{name}:" in str(error) for name in _PEER_LOST_NAMES)


def is_final(error: BaseException) -> bool:
    """Whether the script would end with `error` however often it is tried again."""
    if isinstance(error, (ConfigError, DataError, CollectiveMismatch)):
        return True
    # Inside a tf.function the exception's class is lost and its name is part of the message.
    return any(f"{name}:" in str(error) for name in _FINAL_NAMES)


def _explain(request: WorkerRequest, error: BaseException) -> None:
    """Leaves a note for the agent; without one it judges by the exit code alone."""
    note = {
        "name": request.name,
        "host": socket.gethostname(),
        "time_s": time.time(),
        "type": type(error).__name__,
        "message": str(error)[:_MESSAGE_LIMIT],
        "consequence": is_consequence(error),
        "final": is_final(error),
    }
    try:
        os.makedirs(os.path.dirname(request.failure_path), exist_ok=True)
        with open(f"{request.failure_path}.new", "w", encoding="utf-8") as file:
            json.dump(note, file)
        os.replace(f"{request.failure_path}.new", request.failure_path)
    except OSError:
        pass  # a full disk must not hide the error itself
