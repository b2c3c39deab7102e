"""Jobs with parameter servers: who runs what, what is started again, and that all of it ends."""

from __future__ import annotations

import json
import signal
import socket

import psutil
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

PRELOAD = "drumbeat.training.unmodified"
THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
PHASES = """
import json, os, sys, time
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    raise AssertionError("a server runs no script")
print("rank", os.environ["DRUMBEAT_RANK"], "of", os.environ["DRUMBEAT_WORLD_SIZE"])
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)
print("on", total.device)

@tf.function
def add():
    total.assign_add(1.0)

for phase in range(int(sys.argv[1])):
    for _ in range(20):
        coordinator.schedule(add)
    coordinator.join()
    print("phase", phase, flush=True)
    while not os.path.exists(f"go{phase}"):
        time.sleep(0.02)
print("total", total.numpy())
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def server(job, number: int) -> psutil.Process:
    """Of those that live, by age: workers in their order, then ps; the chief comes last."""
    (parent,) = psutil.Process(job.process.pid).children()
    servers = sorted(parent.children(), key=lambda process: process.create_time())
    job.family()  # notes them, so that it is seen whether they end
    return servers[number]


def go(jobs, phase: int) -> None:
    (jobs.folder / f"go{phase}").touch()


def test_a_worker_is_started_again_alone_and_a_ps_with_all_others(jobs) -> None:
    job = jobs.start(
        jobs.script(PHASES),
        "3",
        options=("-n", "2", "--ps", "1"),
        env=THREADS,
        preload=PRELOAD,
    )
    job.wait_for_output("chief-0", "phase 0", 60)
    killed = server(job, 0)
    killed.send_signal(signal.SIGKILL)
    go(jobs, 0)
    job.wait_for_output("chief-0", "phase 1", 60)
    server(job, 1).send_signal(signal.SIGKILL)  # ps 0: worker 0 is the youngest now
    for phase in (1, 2):
        go(jobs, phase)
    result = job.end(90)
    assert result.code == 0, result.out
    assert "[chief 0] rank 0 of 1" in result.out
    assert "[chief 0] on /job:ps/replica:0/task:0" in result.out
    said = " was killed by SIGKILL (out of memory?). "
    assert f"worker 0 on {socket.gethostname()}{said}It is started again; the others" in result.out
    assert f"ps 0 on {socket.gethostname()}{said}Starting all workers again" in result.out
    assert "[chief 0] total 60.0" in result.out
    assert "after 1 restart." in result.out
    # Servers end by themselves, without a word.
    assert result.log("worker-1") == "--- attempt 2 ---\n"
    assert job.alive_after(1.0) == []


@pytest.mark.slow
def test_each_task_of_a_platform_ends_with_code_0(jobs) -> None:
    """As pods of a TFJob: each runs the same command, and one of them is killed."""
    cluster = {job: [f"127.0.0.1:{free_port()}"] for job in ("chief", "worker", "ps")}
    script = jobs.script(PHASES)
    started = {}
    for kind in ("ps", "worker", "chief"):
        config = {"cluster": cluster, "task": {"type": kind, "index": 0}}
        started[kind] = jobs.start(
            script,
            "2",
            options=(),
            env={**THREADS, "DRUMBEAT_TOKEN": "secret", "TF_CONFIG": json.dumps(config)},
            preload=PRELOAD,
            run_dir=kind,
        )
    started["chief"].wait_for_output("chief-0", "phase 0", 90)
    server(started["worker"], 0).send_signal(signal.SIGKILL)
    for phase in (0, 1):
        go(jobs, phase)
    results = {kind: job.end(90) for kind, job in started.items()}
    assert [result.code for result in results.values()] == [0, 0, 0], results
    assert "worker 0 on" in results["worker"].out
    assert "It is started again; the others go on." in results["worker"].out
    assert "[chief 0] total 40.0" in results["chief"].out
    assert "restart" not in results["ps"].out
    for job in started.values():
        assert job.alive_after(1.0) == []
