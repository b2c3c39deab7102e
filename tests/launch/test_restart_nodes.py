"""Jobs of two nodes that lose workers or whole nodes, and go on."""

from __future__ import annotations

import re
import signal
import subprocess
import time

import pytest

# Waits in each attempt for the file "go"; the first one leaves a snapshot.
STEPS = """
    import os, signal, sys, time
    import numpy as np
    from drumbeat.state.format import State
    from drumbeat.state.memory import SnapshotMemory
    from drumbeat.state.progress import Activity, ProgressPage
    rank, attempt = int(os.environ["DRUMBEAT_RANK"]), int(os.environ["DRUMBEAT_ATTEMPT"])
    page, memory = ProgressPage.from_env(os.environ), SnapshotMemory.from_env(os.environ)
    print("attempt", attempt, "seed", os.environ["DRUMBEAT_SEED"], memory.steps(), flush=True)
    print("hash", hash("a"), flush=True)
    def at(step):
        page.update(Activity.TRAINING, step=step, phase=0, epoch=0)
    at(5)
    if not memory.steps():
        memory.write(State(step=5, meta={}, arrays={"x": np.zeros(3)}))
    print("up", attempt, flush=True)
    open(f"here-{attempt}-{rank}", "w").close()
    while not all(os.path.exists(f"here-{attempt}-{other}") for other in (0, 1)):
        time.sleep(0.01)
"""
WAIT = STEPS + "    while not os.path.exists(f'go{attempt}'): time.sleep(0.02)\n"


def started(out: str) -> list[tuple[str, str, str]]:
    """(attempt, seed, steps of the snapshots) of each start of a worker."""
    return re.findall(r"\] attempt (\d+) seed (\d+) (\[.*\])", out)


def go(pair, attempt: int) -> None:
    (pair.jobs.folder / f"go{attempt}").touch()


def test_a_killed_worker_restarts_both_nodes(pair):
    text = (
        STEPS + "    if attempt == 1: os.kill(os.getpid(), 9) if rank == 1 else time.sleep(100)\n"
    )
    results = [job.end() for job in pair.both(text)]
    for result in results:
        assert result.code == 0, result.out
        assert "worker 1 on" in result.out
        assert "was killed by SIGKILL (out of memory?) after step 5" in result.out
        assert "again from the last snapshot (step 5) (attempt 2)" in result.out
    first, second = (started(result.out) for result in results)
    assert [start[0] for start in first] == [start[0] for start in second] == ["1", "2"]
    assert len({start[1] for start in first + second}) == 1
    hashes = re.findall(r"\] hash (\S+)", results[0].out + results[1].out)
    assert len(hashes) == 4
    assert len(set(hashes)) == 1


@pytest.mark.slow
def test_the_same_error_twice_ends_both_nodes_with_its_traceback(pair):
    text = STEPS + "    if rank == 1: raise ValueError('bad data')\n    time.sleep(100)\n"
    for job in pair.both(text):
        result = job.end()
        assert result.code == 1, result.out
        assert [start[0] for start in started(result.out)] == ["1", "2"]
        assert result.report.startswith("worker 1 on")
        assert "This has happened 2 times in a row after step 5" in result.report
        assert result.report.endswith("ValueError: bad data")


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_node_whose_agent_is_killed_is_replaced(pair, lost):
    pairs = pair.both(WAIT)
    for rank, job in enumerate(pairs):
        job.wait_for_output(f"worker-{rank}", "up 1")
    pairs[lost].process.kill()
    again = pair.start(lost, "script.py")
    go(pair, 2)
    result, survivor = again.end(), pairs[1 - lost].end()
    assert (result.code, survivor.code) == (0, 0), survivor.out + result.out
    assert f"node {lost} on 127.0.0.1 dropped out of the job" in survivor.out
    (_, seed, _), second = started(survivor.out)
    assert second == ("2", seed, "[5]")  # its memory has outlived its workers
    # The new agent takes part in the job that it finds: same seed, same number.
    assert started(result.out) == [("2", seed, "[]")]
    assert "again from the last snapshot (step 5) (attempt 2)" in result.out
    assert pairs[lost].alive_after(3) == []


@pytest.mark.slow
def test_ctrl_c_while_a_node_is_waited_for(pair):
    first, second = pair.both(WAIT)
    second.wait_for_output("worker-1", "up 1")
    first.wait_for_output("worker-0", "up 1")
    second.process.kill()
    time.sleep(1)
    first.process.send_signal(signal.SIGINT)
    assert first.end(5).code == 130
    assert first.alive_after(0.5) == []


@pytest.mark.slow
def test_an_agent_that_was_out_of_reach_comes_back(pair):
    pairs = pair.both(WAIT)
    for rank, job in enumerate(pairs):
        job.wait_for_output(f"worker-{rank}", "up 1")
    pairs[1].process.send_signal(signal.SIGSTOP)
    time.sleep(14)
    pairs[1].process.send_signal(signal.SIGCONT)
    go(pair, 2)
    results = [job.end() for job in pairs]
    for result in results:
        assert result.code == 0, result.out
        assert [start[0] for start in started(result.out)] == ["1", "2"]
        assert started(result.out)[1][2] == "[5]"


@pytest.mark.slow
def test_a_replacement_comes_before_the_loss_is_noticed(pair):
    pairs = pair.both(WAIT)
    for rank, job in enumerate(pairs):
        job.wait_for_output(f"worker-{rank}", "up 1")
    pairs[1].process.send_signal(signal.SIGSTOP)  # as a machine that is gone: no connection ends
    again = pair.start(1, "script.py")
    first = pairs[0]
    first.wait_for_output("worker-0", "up 2")
    # The old one finds its place taken, and leaves.
    pairs[1].process.send_signal(signal.SIGCONT)
    old = pairs[1].end(40)
    assert old.code != 0
    assert "taken already" in old.report
    go(pair, 2)
    for job in (first, again):
        result = job.end()
        assert result.code == 0, result.out
        assert started(result.out)[-1][0] == "2"


@pytest.mark.slow
@pytest.mark.netns
def test_nodes_between_which_the_cable_is_cut_go_on_when_it_is_mended(jobs, namespaces):
    script = jobs.script(WAIT)
    started_jobs = []
    for rank, (name, _) in enumerate(namespaces):
        nodes = ("-n", "1", "--nodes", "2", "--node-rank", str(rank))
        meeting = ("--rendezvous", f"{namespaces[0][1]}:2222", "--start-timeout", "30")
        started_jobs.append(
            jobs.start(
                script,
                options=(*nodes, *meeting),
                env=jobs.token,
                run_dir=f"node{rank}",
                prefix=("ip", "netns", "exec", name),
            )
        )
    for rank, job in enumerate(started_jobs):
        job.wait_for_output(f"worker-{rank}", "up 1")
    cable = ["ip", "-n", namespaces[1][0], "link", "set", "v0"]
    subprocess.run([*cable, "down"], check=True, timeout=10)
    time.sleep(14)
    subprocess.run([*cable, "up"], check=True, timeout=10)
    (jobs.folder / "go2").touch()
    for job in started_jobs:
        result = job.end(60)
        assert result.code == 0, result.out
        assert [start[0] for start in started(result.out)] == ["1", "2"]
