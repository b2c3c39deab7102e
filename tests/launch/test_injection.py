"""Faults that strike real workers and agents, in a loop that needs no TensorFlow."""

from __future__ import annotations

import re

import pytest

# Workers that make a step every 10 ms, note it where the agent sees it, and may be struck.
LOOP = """
    import os, sys, time
    from drumbeat.state.progress import Activity, ProgressPage
    from drumbeat.training.injection import Injector
    page = ProgressPage.from_env(os.environ)
    injector = Injector.from_env(os.environ, page=page, memory=None, step=0)
    for step in range(1, 41):
        time.sleep(0.01)
        page.update(Activity.TRAINING, step=step)
        print("made", step, flush=True)
        if injector:
            injector.after_step(step)
    print("went on to the end at", time.monotonic())
"""


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        ("kill:rank=1,step=7", 137, "worker 1 on .* was killed by SIGKILL"),
        ("crash:rank=1,step=7", 139, "worker 1 on .* was killed by SIGSEGV"),
        ("exit:rank=1,step=7,code=9", 9, "worker 1 on .* failed with exit code 9"),
        ("raise:rank=1,step=7", 1, "RuntimeError: --inject raise:rank=1,step=7: raised as"),
        ("oom:rank=1,step=7", 1, "MemoryError$"),
    ],
)
def test_a_worker_fails_as_asked_for(jobs, fault, code, text):
    job = jobs.run(LOOP, options=("-n", "2", "--max-restarts", "0", "--inject", fault))
    assert job.code == code
    assert "made 7" in job.log("worker-1")
    assert "made 8" not in job.log("worker-1")
    assert f"--inject {fault} strikes, after step 7." in job.log("worker-1")
    # It may have come to nothing: on a busy machine it starts late.
    assert "[worker 0] --inject" not in job.out
    assert re.search(text, job.report, re.MULTILINE), job.report


def test_pauses(jobs):
    faults = ("delay:rank=0,step=5,seconds=0.7", "slow:rank=0,step=9,seconds=0.1,steps=5")
    faults += ("kill:rank=1,step=99",)
    job = jobs.run(LOOP, options=("-n", "2", *[w for f in faults for w in ("--inject", f)]))
    assert job.code == 0
    ends = [float(job.log(f"worker-{rank}").split()[-1]) for rank in (0, 1)]
    assert 1.0 < ends[0] - ends[1] < 3.5
    assert "--inject kill:rank=1,step=99 never struck: there was no such step" in job.out
    assert "delay" not in job.out.partition("never struck")[0].rpartition("[drumbeat]")[2]


def test_a_node_is_silent_for_a_while(jobs):
    job = jobs.run(LOOP, options=("-n", "2", "--inject", "partition:node=0,step=5,seconds=0.8"))
    assert job.code == 0
    assert job.out.count("--inject partition:node=0,step=5,seconds=0.8 strikes.") == 1
    assert job.seconds > 1.2


def test_an_agent_is_killed_and_takes_its_workers_along(jobs):
    job = jobs.start(jobs.script(LOOP), options=("-n", "2", "--inject", "agent-kill:node=0,step=5"))
    ended = job.end()
    assert ended.code == -9
    assert "went on to the end" not in ended.log("worker-1")
    assert not job.alive_after(2.0)


def test_a_worker_ends_though_it_has_no_memory_for_the_thread_that_would_end_it(jobs):
    # What `oom` led to: an exit handler waited for the others, which waited for this worker.
    script = """
        import atexit, threading, time
        threading.Timer.run = lambda self: None
        atexit.register(time.sleep, 60)
        raise MemoryError("no more")
    """
    job = jobs.run(script, options=("-n", "1", "--max-restarts", "0"))
    assert job.code == 128 + 14
    assert job.seconds < 15
    assert job.report.endswith("MemoryError: no more")
