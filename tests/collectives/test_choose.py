from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from drumbeat.cluster.identity import Identity
from drumbeat.cluster.spec import ClusterSpec, Task
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.tensorflow

IDENTITY = Identity(
    rank=0,
    world_size=2,
    local_rank=0,
    local_world_size=2,
    collectives="tensorflow",
    run_dir="",
    name="worker 0",
    timeout_s=1.0,
)
TWO = ClusterSpec({"worker": ["127.0.0.1:2221", "127.0.0.1:2222"]}, task=Task("worker", 0))


@pytest.mark.parametrize("identity", [None, replace(IDENTITY, world_size=1)])
def test_alone_it_returns_what_it_gets(identity: Identity | None) -> None:
    import tensorflow as tf

    from drumbeat.collectives.choose import communicator

    c = communicator(identity)
    assert (c.rank, c.size, c.last_error) == (0, 1, None)
    x = tf.ones([2])
    slices = tf.IndexedSlices(x, tf.constant([0, 1]))
    assert c.all_reduce([x, slices]) == [x, slices]
    assert c.broadcast([x]) == [x]
    assert c.all_gather(x) is x
    assert c.all_reduce_numpy(3) == 3
    c.barrier()
    c.raise_last_error()
    c.close()
    with pytest.raises(ConfigError, match="can't carry string"):
        c.all_gather(tf.constant(["a"]))
    with pytest.raises(ConfigError, match="op='avg'"):
        c.all_reduce([x], "avg")


@pytest.mark.parametrize(
    ("identity", "cluster", "said"),
    [
        (replace(IDENTITY, rank=-1, name="ps 0"), TWO, "ps 0 takes no part"),
        (IDENTITY, None, "no TF_CONFIG"),
        (IDENTITY, ClusterSpec(TWO.jobs), "no TF_CONFIG with this process's task"),
        (replace(IDENTITY, rank=1), TWO, r"\(worker 0\) is rank 0 of 2, but .* say rank 1 of 2"),
        (replace(IDENTITY, world_size=3), TWO, "rank 0 of 2, but .* say rank 0 of 3"),
    ],
)
def test_contradictions_are_refused(
    identity: Identity, cluster: ClusterSpec | None, said: str
) -> None:
    from drumbeat.collectives.choose import communicator

    with pytest.raises(ConfigError, match=said):
        communicator(identity, cluster)


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


IN_PROCESS = """
import os, sys
from drumbeat.cluster.identity import Identity
from drumbeat.cluster.spec import ClusterSpec
from drumbeat.collectives.choose import communicator
{before}
try:
    c = communicator(Identity.from_env(os.environ), ClusterSpec.from_env(os.environ))
except Exception as error:
    print(type(error).__name__ + ": " + str(error), flush=True)
else:
    print("connected", flush=True)
os._exit(0)
"""


def test_mpi_that_disagrees_with_the_identity_is_refused() -> None:
    env = replace(IDENTITY, collectives="mpi").to_env()
    done = run_python(IN_PROCESS.format(before=""), **env)
    assert "ConfigError: MPI says this process is rank 0 of 1, but" in done.stdout, done.stderr
    assert "says rank 0 of 2" in done.stdout


def test_tensorflow_that_has_run_an_op_is_refused_with_what_to_do() -> None:
    before = "import tensorflow as tf; tf.ones([1])"
    done = run_python(
        IN_PROCESS.format(before=before), TF_CONFIG=TWO.to_json(), **IDENTITY.to_env()
    )
    assert "ConfigError: TensorFlow has already run an operation" in done.stdout, done.stderr
    assert "--collectives mpi" in done.stdout


def test_tensorflow_workers_that_never_start_are_missed_in_time(free_port: int) -> None:
    config = {
        "cluster": {"worker": [f"127.0.0.1:{free_port}", "127.0.0.1:1"]},
        "task": {"type": "worker", "index": 0},
    }
    done = run_python(
        IN_PROCESS.format(before=""), TF_CONFIG=json.dumps(config), **IDENTITY.to_env()
    )
    assert "CollectiveTimeout: worker 0 waited 1 s in all_reduce 'connect' #1" in done.stdout, (
        done.stdout + done.stderr
    )


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
