"""SIGTERM where workers keep backups: they save together, whoever is told first."""

from __future__ import annotations

import os
import signal
import time

import pytest

# Stands for training: looks at its page as the training's beat does, and as there one worker's
# stop is every worker's.
KEEPER = """
    import os, sys, time
    from pathlib import Path
    from drumbeat.state.notice import Notice
    from drumbeat.state.progress import ProgressPage, Request

    rank, how = int(os.environ["DRUMBEAT_RANK"]), sys.argv[1]
    page, stop = ProgressPage.from_env(os.environ), Path("stop")

    def save():
        time.sleep(1.5 if rank == 0 else 0)
        print("saved", flush=True)

    Notice(page, is_training=lambda: how != "idle", on_idle=save).listen()
    print("up", os.getpid(), flush=True)
    for _ in range(600):
        if how == "training" and (page.requests() & Request.STOP or stop.exists()):
            stop.touch()
            save()
            sys.exit(75)
        time.sleep(0.05)
"""


def started(jobs, how: str, **options):
    job = jobs.start(jobs.script(KEEPER), how, **options)
    for worker in ("worker-0", "worker-1"):
        job.wait_for_output(worker, "up")
    return job


@pytest.mark.parametrize("how", ["training", "idle"])
def test_all_workers_save_before_the_agent_ends(jobs, how):
    job = started(jobs, how)
    job.process.send_signal(signal.SIGTERM)
    result = job.end(15)
    assert result.code == 75, result.out
    for worker in ("worker-0", "worker-1"):
        assert "saved" in result.log(worker)
    assert "The same command goes on from there" in result.out
    assert "failed" not in result.out
    assert job.alive_after(0.5) == []


def test_a_worker_that_is_told_by_itself_tells_the_others(jobs):
    job = started(jobs, "training")
    pid = int((job.run_dir / "worker-1" / "output.log").read_text().split()[1])
    os.kill(pid, signal.SIGTERM)
    result = job.end(15)
    assert result.code == 75, result.out
    assert "saved" in result.log("worker-0")


def test_a_platform_that_tells_every_process_of_the_node(jobs):
    job = started(jobs, "training")
    for process in job.family():
        process.terminate()
    job.process.send_signal(signal.SIGTERM)
    result = job.end(15)
    assert result.code == 75, result.out
    assert "saved" in result.log("worker-0")


@pytest.mark.parametrize(("grace", "again_s"), [("1", None), ("30", 0.5)])
def test_workers_that_do_not_save_in_time_are_killed(jobs, grace, again_s):
    job = started(jobs, "hangs", options=("-n", "2", "--grace", grace))
    sent = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    if again_s is not None:
        time.sleep(again_s)
        job.process.send_signal(signal.SIGTERM)
    result = job.end(15)
    assert result.code == 128 + signal.SIGTERM, result.out
    assert time.monotonic() - sent < 6
    assert job.alive_after(0.5) == []


def test_ctrl_c_does_not_wait_for_anything(jobs):
    job = started(jobs, "training")
    sent = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    result = job.end(15)
    assert result.code == 128 + signal.SIGINT
    assert time.monotonic() - sent < 5
    assert "saved" not in result.log("worker-0")
