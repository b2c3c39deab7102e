"""SIGTERM where workers keep backups: they save together, whoever is told first."""

from __future__ import annotations

import os
import signal
import time

import pytest

from drumbeat.state.backups import Backups, Content
from drumbeat.state.folders import open_folder
from drumbeat.state.manifest import About

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


@pytest.mark.parametrize("how", ["training", pytest.param("idle", marks=pytest.mark.slow)])
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("grace", "again_s"), [("1", None), pytest.param("30", 0.5, marks=pytest.mark.slow)]
)
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


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_anything(jobs):
    job = started(jobs, "training")
    sent = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    result = job.end(15)
    assert result.code == 128 + signal.SIGINT
    assert time.monotonic() - sent < 5
    assert "saved" not in result.log("worker-0")


DIES = """
    import os, signal, sys
    from drumbeat.state.notice import Notice
    from drumbeat.state.progress import ProgressPage

    if sys.argv[1] == "keeps backups":
        page = ProgressPage.from_env(os.environ)
        Notice(page, is_training=lambda: True, on_idle=lambda: None).listen()
    with open("lives", "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("keeps backups", 75),
        pytest.param("keeps none", 128 + signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_before_the_next_attempt_nothing_is_left_to_save(jobs, how, code):
    lives = jobs.folder / "lives"
    job = jobs.start(jobs.script(DIES), how, options=("-n", "1"))
    deadline = time.monotonic() + 15
    while not (lives.exists() and len(lives.read_text()) == 3):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.7)  # of the 2 s until the fourth
    job.process.send_signal(signal.SIGTERM)
    result = job.end(5)
    assert result.code == code, result.out
    assert "again in 2 s" in result.out
    assert ("The same command goes on from there" in result.out) == (code == 75)
    assert len(lives.read_text()) == 3
    assert job.alive_after(0.5) == []


@pytest.mark.parametrize(("option", "seed"), [((), "77"), (("--seed", "5"), "5")])
def test_a_job_that_goes_on_is_seeded_as_before(jobs, option, seed):
    about = About(job="before", step=9, phase=0, epoch=1, world_size=2, seed=77)
    Backups(open_folder(jobs.folder / "backups")).folder.check()
    Backups(open_folder(jobs.folder / "backups")).write(Content(about=about, snapshot=b"state"))
    result = jobs.run(
        "import os; print('seed', os.environ['DRUMBEAT_SEED'])",
        options=("-n", "2", "--backup-dir", "backups", *option),
    )
    assert result.code == 0, result.out
    assert result.out.count(f"seed {seed}\n") == 2
    assert ("that of the backups in" in result.out) == bool(option)


def test_a_folder_that_can_not_be_one_is_refused_before_anything_starts(jobs):
    (jobs.folder / "backups").write_text("a file")
    result = jobs.run("print('started')", options=("--backup-dir", "backups"))
    assert result.code == 2
    assert "backups is a file; expected a folder for backups" in result.out
    assert "Traceback" not in result.out
    assert not result.run_dir.exists()
