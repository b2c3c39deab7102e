"""SIGTERM in a process that keeps backups, at the wrong times too."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import ctypes, multiprocessing, os, signal, sys, threading, time
from drumbeat.state.notice import Notice
from drumbeat.state.progress import ProgressPage, Request

page = ProgressPage.create()
how = sys.argv[1]
if how == "users":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
notice = Notice(page, is_training=lambda: how != "idle", on_idle=lambda: print("idle", flush=True))
print(notice.listen(), page.accepts_stop, flush=True)
if how == "die":
    page.request(Request.DIE)
if how == "child":
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[60])
    child.start()
    time.sleep(0.2)
    child.terminate()
    child.join(10)
    print(child.exitcode, int(page.requests()), flush=True)
    sys.exit(3)
print("ready", flush=True)
if how == "late":
    # 1.5 s without a line of Python; unlike a sleep, a lock goes on after a signal.
    lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    libc.pthread_mutex_lock(lock)
    threading.Timer(1.5, libc.pthread_mutex_unlock, [lock]).start()
    libc.pthread_mutex_lock(lock)
    how = "training"
if how in ("blocked", "die"):
    # A collective that waits: no Python runs in the main thread.
    threading.Thread(target=lambda: (time.sleep(1.5), print(int(page.requests()), flush=True),
                                     os._exit(4)), daemon=True).start()
    ctypes.CDLL(None).sleep(10)
for _ in range(200):
    if page.requests() & Request.STOP and how == "training":
        print("stopped", flush=True)
        sys.exit(75)
    time.sleep(0.05)
sys.exit(5)
"""


@pytest.mark.parametrize(
    ("how", "code", "printed", "least_s"),
    [
        ("training", 75, ["True True", "ready", "stopped"], 0),
        ("late", 75, ["True True", "ready", "stopped"], 1.2),
        ("idle", 75, ["True True", "ready", "idle"], 0),
        ("blocked", 4, ["True True", "ready", "1"], 1),
        ("die", 143, ["True True", "ready"], 0),
        ("users", 9, ["False True", "ready"], 0),
        ("twice", 143, ["True True", "ready"], 1),
    ],
)
def test_what_a_worker_does(how: str, code: int, printed: list[str], least_s: float) -> None:
    began_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip(), process.stdout.readline().strip()]
        if how == "late":
            time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        if how == "twice":
            time.sleep(1.2)
            process.send_signal(signal.SIGTERM)
        lines += process.stdout.read().split("\n")
        assert process.wait(20) == code
    assert [line for line in lines if line] == printed
    assert least_s <= time.monotonic() - began_s < 8


def test_a_scripts_own_children_end_by_it_and_ask_for_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "child"], capture_output=True, text=True, timeout=30
    )
    assert done.stdout.split("\n")[:2] == ["True True", f"{-signal.SIGTERM} 0"], done.stderr
    assert done.returncode == 3
