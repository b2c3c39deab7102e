"""What every test answers for: it leaves no variable, thread or process behind.

Nothing here imports TensorFlow, so tests that don't need it stay fast.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

import psutil
import pytest

# Children inherit it, and so does a process that lost its parent: it tells this test run's
# processes from everybody else's.
RUN_MARK = "DRUMBEAT_TEST_RUN"
os.environ[RUN_MARK] = uuid.uuid4().hex
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
# Nothing can be kept there: jobs of tests take the usual settings, and measure nothing.
os.environ["XDG_CACHE_HOME"] = os.devnull
# A shell has what it starts in the background ignore Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Set by imports of TensorFlow, Keras, h5py, scikit-learn and Ray, and by pytest itself.
SET_BY_OTHERS = {
    "ENABLE_RUNTIME_UPTIME_TELEMETRY",
    "HDF5_PLUGIN_PATH",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "PYTEST_CURRENT_TEST",
    "RAY_CLIENT_MODE",
    "TF2_BEHAVIOR",
    "TPU_ML_PLATFORM",
    "TPU_ML_PLATFORM_VERSION",
}
# Python's own helper processes, which live until the interpreter ends.
PYTHON_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

PROCESS_GRACE_S = 3.0
THREAD_GRACE_S = 1.0


@pytest.fixture(autouse=True)
def _no_leaked_environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    leaks = describe_changes(before, after)
    if leaks:
        os.environ.clear()
        os.environ.update(before)
        pytest.fail(f"The test left the environment changed: {leaks}. Use monkeypatch.setenv.")


@pytest.fixture(autouse=True)
def _no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    leaks = still_there(lambda: new_threads(before), THREAD_GRACE_S)
    if leaks:
        names = ", ".join(repr(thread.name) for thread in leaks)
        pytest.fail(f"The test left non-daemon threads running: {names}. Join them.")


@pytest.fixture(autouse=True)
def _no_leaked_processes() -> Iterator[None]:
    before = set(psutil.pids())
    yield
    leaks = still_there(lambda: new_processes(before), PROCESS_GRACE_S)
    if leaks:
        found = ", ".join(describe_process(process) for process in leaks)
        for process in leaks:
            process.kill()
        pytest.fail(f"The test left processes running (killed now): {found}.")


def describe_changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Which variables were set, changed or removed, or an empty string."""
    names = sorted(
        name
        for name in before.keys() | after.keys()
        if name not in SET_BY_OTHERS and before.get(name) != after.get(name)
    )
    return ", ".join(f"{name}: {before.get(name)!r} -> {after.get(name)!r}" for name in names)


def new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.daemon and thread.is_alive()
    ]


def new_processes(before: set[int]) -> list[psutil.Process]:
    """Living processes of this test run that were not there before, orphans included."""
    found = []
    for pid in set(psutil.pids()) - before:
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE or not is_ours(process):
                continue
            if any(helper in " ".join(process.cmdline()) for helper in PYTHON_HELPERS):
                continue
        except psutil.Error:
            continue
        found.append(process)
    return found


def is_ours(process: psutil.Process) -> bool:
    if process.ppid() == os.getpid():
        return True
    return process.environ().get(RUN_MARK) == os.environ[RUN_MARK]


def describe_process(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({' '.join(process.cmdline())[:120]})"
    except psutil.Error:
        return str(process.pid)


def still_there(look: Callable[[], list], grace_s: float) -> list:
    """What `look` still finds after up to `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    while (leaks := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return leaks
