"""What a ClusterSpec answers, and that TensorFlow reads it the same way."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from drumbeat.cluster import ClusterSpec, Task
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.timeout(60)

TWO = {"worker": ["a:1", "b:2"]}
W0 = {"type": "worker", "index": 0}
EVAL = {"type": "evaluator", "index": 0}


def config(cluster: Any, task: Any = W0, **more: Any) -> str:
    return json.dumps({"cluster": cluster, "task": task, **more})


def read(source: Any) -> ClusterSpec:
    spec = ClusterSpec.from_tf_config(source)
    assert spec is not None
    return spec


def test_chief_rule() -> None:
    with_chief = ClusterSpec({"worker": ["b:1", "c:1"], "chief": ["a:1"]})
    assert with_chief.chief == Task("chief", 0)
    assert with_chief.is_chief(Task("chief", 0))
    assert not with_chief.is_chief(Task("worker", 0))
    without = ClusterSpec(TWO)
    assert without.chief == Task("worker", 0)
    assert without.is_chief(Task("worker", 0))
    assert not without.is_chief(Task("worker", 1))
    assert not without.is_chief(Task("evaluator", 0))


def test_evaluator_takes_no_part_wherever_it_is_listed() -> None:
    inside = read(config({**TWO, "evaluator": ["e:1"]}, EVAL))
    outside = read(config(TWO, EVAL))
    for spec in (inside, outside):
        assert spec.sync_tasks == (Task("worker", 0), Task("worker", 1))
        assert spec.rank_of(Task("evaluator", 0)) == -1
    assert inside.address(Task("evaluator", 0)) == "e:1"
    with pytest.raises(ConfigError, match=r"evaluator 0 has no address.*worker 0, worker 1"):
        outside.address(Task("evaluator", 0))


def test_addresses_follow_the_tasks() -> None:
    spec = ClusterSpec({"evaluator": ["e:1"], "ps": ["p:1"], "worker": ["w:1"], "chief": ["c:1"]})
    assert [str(task) for task in spec.tasks] == ["chief 0", "worker 0", "ps 0", "evaluator 0"]
    assert spec.addresses == ("c:1", "w:1", "p:1", "e:1")
    assert spec.address(Task("ps", 0)) == "p:1"


@pytest.mark.parametrize(
    ("addresses", "count"),
    [
        (["a:1", "a:2"], 1),
        (["a:1", "A:2", "b:1"], 2),
        (["localhost:1", "127.0.0.1:2", "[::1]:3"], 1),
        (["127.0.0.2:1", "127.0.0.3:1"], 2),
        (["[2001:db8::1]:1", "[2001:DB8:0::1]:2"], 1),
    ],
)
def test_num_nodes_counts_hosts(addresses: list[str], count: int) -> None:
    assert ClusterSpec({"worker": addresses}).num_nodes == count


def test_dynamic_workers_beside_ps() -> None:
    """A TFJob's dynamic worker knows itself and the ps: fine for ps training only."""
    spec = read(config({"worker": {"3": "w:1"}, "ps": ["p:1"]}, {"type": "worker", "index": 3}))
    assert spec.address(Task("worker", 3)) == "w:1"
    assert json.loads(spec.to_json())["cluster"]["worker"] == {"3": "w:1"}
    for ask in (lambda: spec.sync_tasks, lambda: spec.world_size, spec.without_ps):
        with pytest.raises(ConfigError, match=r"cluster\.worker has the indices 3 but not 0"):
            ask()


def test_without_ps() -> None:
    spec = read(config({**TWO, "ps": ["p:1", "q:1"]}, rpc_layer="grpc", environment="cloud"))
    rest, note = spec.without_ps()
    assert rest == read(config(TWO, rpc_layer="grpc", environment="cloud"))
    assert note is not None
    assert "ps 0, ps 1" in note
    assert "ParameterServerStrategy" in note
    assert rest.without_ps() == (rest, None)


def test_without_ps_has_no_place_for_a_ps() -> None:
    spec = ClusterSpec({**TWO, "ps": ["p:1"]}, task=Task("ps", 0))
    with pytest.raises(ConfigError, match=r"this process is ps 0.*ParameterServerStrategy"):
        spec.without_ps()


def test_local_of_workers() -> None:
    spec = ClusterSpec.local(2, ports=[5001, 5002])
    assert spec == ClusterSpec({"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]})
    assert spec.task is None
    assert spec.num_nodes == 1


def test_local_with_ps_has_a_chief() -> None:
    ports = range(5001, 5001 + ClusterSpec.ports_needed(2, 1))
    spec = ClusterSpec.local(2, num_ps=1, ports=ports, host="::1")
    assert spec == ClusterSpec(
        {
            "chief": ["[::1]:5001"],
            "worker": ["[::1]:5002", "[::1]:5003"],
            "ps": ["[::1]:5004"],
        }
    )


@pytest.mark.parametrize(
    ("workers", "ps", "ports", "part"),
    [
        (0, 0, [], "number of workers is 0"),
        (1, -1, [1], "number of ps tasks is -1"),
        (2, 0, [5001], "1 ports for 2 tasks"),
        (1, 1, [5001, 5002], "2 ports for 3 tasks"),
        (2, 0, [5001, 5001], "same address"),
        (1, 0, [70000], "out of range"),
    ],
)
def test_local_refuses(workers: int, ps: int, ports: list[int], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        ClusterSpec.local(workers, num_ps=ps, ports=ports)


def test_for_task() -> None:
    spec = ClusterSpec(TWO)
    assert spec.for_task(Task("worker", 1)).task == Task("worker", 1)
    assert spec.for_task(Task("evaluator", 0)).task == Task("evaluator", 0)
    assert spec.task is None
    with pytest.raises(ConfigError, match="indices 0 to 1"):
        spec.for_task(Task("worker", 2))
    with pytest.raises(ConfigError, match="indices 0 to 1"):
        spec.rank_of(Task("worker", 2))


def test_constructor_checks_too() -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.worker\[0\] is 'a'"):
        ClusterSpec({"worker": ["a"]})
    with pytest.raises(ConfigError, match="no job"):
        ClusterSpec({})


def test_is_a_value() -> None:
    spec = ClusterSpec(TWO, task=Task("worker", 1), rpc_layer="grpc")
    same = ClusterSpec({"worker": {1: "b:2", 0: "a:1"}}, task=Task("worker", 1), rpc_layer="grpc")
    assert {spec, same} == {spec}
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.deepcopy(ClusterSpec(TWO)) == ClusterSpec(TWO)
    assert spec != spec.for_task(Task("worker", 0))
    with pytest.raises(TypeError):
        spec.jobs["worker"][0] = "z:1"  # pyright: ignore[reportIndexIssue]


def test_reads_well() -> None:
    spec = ClusterSpec(TWO, task=Task("worker", 1))
    assert str(spec) == "worker 0 at a:1, worker 1 at b:2; this is worker 1"
    assert repr(spec) == f"ClusterSpec({spec})"
    many = ClusterSpec({"worker": [f"h{i}:1" for i in range(100)]})
    assert str(many).endswith("worker 7 at h7:1 and 92 more")


def test_imports_neither_tensorflow_nor_sockets() -> None:
    code = (
        "import sys; before = set(sys.modules); import drumbeat.cluster; "
        "print(sorted({'tensorflow', 'keras', 'socket'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "spec",
    [
        ClusterSpec(TWO, task=Task("worker", 1), rpc_layer="grpc", environment="cloud"),
        ClusterSpec({"master": ["a:1"], "worker": ["b:1"]}, task=Task("master", 0)),
        ClusterSpec({**TWO, "chief": ["c:1"], "ps": ["p:1"]}, task=Task("ps", 0)),
        ClusterSpec({**TWO, "evaluator": ["e:1"]}, task=Task("evaluator", 0)),
        ClusterSpec(TWO, task=Task("evaluator", 0)),
        ClusterSpec({"worker": {4: "w:1"}, "ps": ["p:1"]}, task=Task("worker", 4)),
        ClusterSpec.local(3, ports=[5001, 5002, 5003]).for_task(Task("worker", 2)),
    ],
    ids=str,
)
def test_tensorflow_reads_the_same(spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf
    from tensorflow.python.distribute import multi_worker_util

    monkeypatch.setenv("TF_CONFIG", spec.to_json())
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    theirs = resolver.cluster_spec()
    assert spec.task is not None
    assert {job: dict(tasks) for job, tasks in spec.jobs.items()} == {
        job: {i: theirs.task_address(job, i) for i in theirs.task_indices(job)}
        for job in theirs.jobs
    }
    assert (resolver.task_type, resolver.task_id) == (spec.task.type, spec.task.index)
    assert resolver.rpc_layer == spec.rpc_layer
    if "ps" not in spec.jobs and spec.task.type != "evaluator":
        place = (theirs, spec.task.type, spec.task.index)
        assert multi_worker_util.id_in_cluster(*place) == spec.rank_of(spec.task)
        assert multi_worker_util.is_chief(*place) == spec.is_chief(spec.task)
        assert multi_worker_util.worker_count(theirs, spec.task.type) == spec.world_size
