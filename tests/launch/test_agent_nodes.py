"""Jobs of two nodes: two agents on one machine, and in network namespaces."""

from __future__ import annotations

import json
import signal
import time

import pytest

ALL_REDUCE = """
    import os, sys
    from mpi4py import MPI
    import numpy as np
    comm = MPI.COMM_WORLD
    total = np.zeros(100_000)
    comm.Allreduce(np.full(100_000, comm.rank + 1.0), total)
    print("sum", comm.size, total[0], total[-1], flush=True)
"""
SLEEP = "import time; print('up', flush=True); time.sleep(1000)"


def test_ranks_of_two_nodes_reduce_together(pair):
    script = pair.jobs.script(ALL_REDUCE)
    second = pair.start(1, script, options=("-n", "2"))
    first = pair.start(0, script, options=("-n", "1"))
    results = [job.end() for job in (first, second)]
    assert [result.code for result in results] == [0, 0], [result.out for result in results]
    assert results[0].out.count("sum 3 6.0 6.0") == 1
    assert results[1].out.count("sum 3 6.0 6.0") == 2
    assert (second.run_dir / "worker-2" / "output.log").exists()


def test_a_failure_on_one_node_ends_the_job_on_both_and_is_shown_on_both(pair):
    jobs = pair.both(
        """
        import os, time
        if os.environ["DRUMBEAT_RANK"] == "1":
            raise ValueError("bad data")
        time.sleep(1000)
        """
    )
    results = [job.end() for job in jobs]
    for result in results:
        assert result.code == 1, result.out
        assert result.report.startswith("worker 1 on")
        assert result.report.endswith("ValueError: bad data")
        assert result.seconds < 10


def test_ctrl_c_on_one_node_ends_the_job_on_the_other(pair):
    first, second = pair.both(SLEEP)
    first.wait_for_output("worker-0", "up")
    second.wait_for_output("worker-1", "up")
    second.process.send_signal(signal.SIGINT)
    assert second.end(10).code == 130
    result = first.end(10)
    assert result.code == 130
    assert result.report.endswith("was stopped by SIGINT.")
    assert first.alive_after(0.5) == second.alive_after(0.5) == []


@pytest.mark.parametrize(
    ("lost", "options"), [(0, ("--rejoin-timeout", "1")), (1, ("--max-restarts", "0"))]
)
def test_a_lost_node_that_stays_away_ends_the_job(pair, lost, options):
    pairs = pair.both(SLEEP, options=options)
    for rank, job in enumerate(pairs):
        job.wait_for_output(f"worker-{rank}", "up")
    pairs[lost].process.kill()
    result = pairs[1 - lost].end(20)
    assert result.code == 1
    assert result.report.startswith(f"node {lost} on ")
    assert "Lost contact with it" in result.report
    assert "\nnode" not in result.out.replace("\n\n", "")  # the agent's log has a prefix
    assert pairs[lost].alive_after(3) == pairs[1 - lost].alive_after(0.5) == []


def test_a_node_whose_ranks_never_start_mpi_is_named(pair):
    text = """
        import os, sys, time
        if os.environ["DRUMBEAT_RANK"] == "1":
            time.sleep(1000)
        from mpi4py import MPI
    """
    for job in pair.both(text, options=("--collectives", "mpi", "--collective-timeout", "1.5")):
        result = job.end(15)
        assert result.code == 1
        assert result.report.startswith("node 0 on ")
        assert "after 1.5 s node 1 (127.0.0.1) had not arrived" in result.report
        assert "Fatal Python error" not in result.out
        assert job.alive_after(0.5) == []


def test_the_cause_of_a_failed_start_is_told(pair):
    (pair.jobs.folder / "broken.py").write_text("raise ImportError('no such wheel')\n")
    script = pair.jobs.script("print('ran')")
    first = pair.start(0, script)
    second = pair.start(1, script, preload="broken")
    for job in (first, second):
        result = job.end(15)
        assert result.code != 0
        assert result.report.endswith("ImportError: no such wheel")
        assert "ran" not in result.out


def test_a_node_that_never_comes_is_named(pair):
    result = pair.start(0, pair.jobs.script("1"), timeout=1.5).end(15)
    assert result.code == 3
    assert result.report.startswith("The run failed.")
    assert "node 1" in result.report


def test_another_token_is_refused(pair):
    script = pair.jobs.script("1")
    first = pair.start(0, script, timeout=4)
    second = pair.start(1, script, timeout=4, env={"DRUMBEAT_TOKEN": "f" * 32})
    assert "DRUMBEAT_TOKEN" in second.end(15).report
    assert first.end(15).code == 3


def test_ctrl_c_while_waiting_for_others(pair):
    job = pair.start(0, pair.jobs.script("1"), timeout=60)
    time.sleep(1.5)
    job.family()
    job.process.send_signal(signal.SIGINT)
    assert job.end(5).code == 130
    assert job.alive_after(0.5) == []


def test_a_platforms_tf_config_is_enough(pair):
    cluster = {"chief": [f"127.0.0.1:{pair.port}"], "worker": [f"127.0.0.2:{pair.port}"]}
    script = pair.jobs.script(
        ALL_REDUCE + "    print('config', os.environ['TF_CONFIG'], flush=True)\n"
    )
    started = []
    for kind in ("worker", "chief"):
        config = {"cluster": cluster, "task": {"type": kind, "index": 0}}
        env = {**pair.token, "TF_CONFIG": json.dumps(config)}
        started.append(pair.jobs.start(script, options=(), env=env, run_dir=kind))
    worker, chief = [job.end() for job in started]
    assert chief.code == 0, chief.out
    assert worker.code == 0, worker.out
    assert "[chief 0] sum 2 3.0 3.0" in chief.out
    assert "[worker 0] sum 2 3.0 3.0" in worker.out
    seen = json.loads(worker.out.partition("] config ")[2].splitlines()[0])
    assert seen["task"] == {"type": "worker", "index": 0}
    assert seen["cluster"]["worker"] == cluster["worker"]
    # The agents meet at the chief's own port, so the chief has another one.
    assert seen["cluster"]["chief"] != cluster["chief"]
    assert seen["cluster"]["chief"][0].startswith("127.0.0.1:")


@pytest.mark.netns
def test_nodes_in_network_namespaces_reduce_together(jobs, namespaces):
    script = jobs.script(ALL_REDUCE)
    started = []
    for rank, (name, _) in reversed(list(enumerate(namespaces))):
        started.append(
            jobs.start(
                script,
                options=(
                    *("-n", "1", "--nodes", "2", "--node-rank", str(rank)),
                    *("--rendezvous", f"{namespaces[0][1]}:2222", "--start-timeout", "30"),
                ),
                env=jobs.token,
                run_dir=f"node{rank}",
                prefix=("ip", "netns", "exec", name),
            )
        )
    for job in started:
        result = job.end(60)
        assert result.code == 0, result.out
        assert "sum 2 3.0 3.0" in result.out
