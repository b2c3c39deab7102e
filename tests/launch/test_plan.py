"""Which processes a node runs, with which TF_CONFIG."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from drumbeat.launch.plan import cluster_of, local_tasks, sync_sizes
from drumbeat.launch.roster import Node
from drumbeat.launch.settings import RunArguments, RunSettings, plan_run


def settings(env: dict[str, str] | None = None, **given: object) -> RunSettings:
    arguments = RunArguments(command=(__file__,), **given)  # type: ignore[arg-type]
    env = {"DRUMBEAT_TOKEN": "t", **(env or {})}
    return plan_run(arguments, env, cpus=8, now=datetime(2030, 1, 1))


def node(rank: int, host: str, *ports: int) -> Node:
    return Node(node_rank=rank, host=host, num_workers=len(ports), ports=ports, boot_id="b")


def test_workers_of_one_node():
    plan = settings(workers=2)
    assert plan.task_count == 2
    roster = [node(0, "127.0.0.1", 11, 12)]
    cluster = cluster_of(plan, roster)
    tasks = local_tasks(plan, roster, cluster)
    assert [(task.name, task.folder, task.rank) for task in tasks] == [
        ("worker 0", "worker-0", 0),
        ("worker 1", "worker-1", 1),
    ]
    assert json.loads(tasks[1].tf_config) == {
        "cluster": {"worker": ["127.0.0.1:11", "127.0.0.1:12"]},
        "task": {"type": "worker", "index": 1},
    }


def test_ranks_go_on_from_node_to_node():
    plan = settings(nodes=3, node_rank=1, rendezvous="a:1", workers=2)
    roster = [node(0, "a", 1), node(1, "b", 1, 2), node(2, "2001:db8::1", 1)]
    cluster = cluster_of(plan, roster)
    assert cluster.addresses == ("a:1", "b:1", "b:2", "[2001:db8::1]:1")
    tasks = local_tasks(plan, roster, cluster)
    assert [(task.name, task.rank, task.local_rank) for task in tasks] == [
        ("worker 1", 1, 0),
        ("worker 2", 2, 1),
    ]
    assert sync_sizes(plan, roster) == (1, 2, 1)


def test_ps_tasks_come_after_the_ranks_of_node_0():
    plan = settings(workers=2, ps=1)
    assert plan.task_count == 4
    roster = [node(0, "h", 1, 2, 3, 4)]
    cluster = cluster_of(plan, roster)
    assert cluster.addresses == ("h:1", "h:2", "h:3", "h:4")
    assert cluster.jobs["ps"] == {0: "h:4"}
    tasks = local_tasks(plan, roster, cluster)
    # The chief looks for its servers, so they come first; and they have the GPUs.
    assert [(task.name, task.rank, task.number) for task in tasks] == [
        ("worker 0", -1, 1),
        ("worker 1", -1, 2),
        ("ps 0", -1, 3),
        ("chief 0", 0, 0),
    ]
    assert [task.is_server for task in tasks] == [True, True, True, False]
    assert [task.starts_alone for task in tasks] == [True, True, False, False]
    assert [task.uses_devices for task in tasks] == [True, True, False, False]
    assert sync_sizes(plan, roster) == (3,)


def test_with_their_own_servers_all_tasks_run_the_script():
    plan = settings(workers=1, ps=1, keep_tf_strategies=True)
    roster = [node(0, "h", 1, 2, 3)]
    tasks = local_tasks(plan, roster, cluster_of(plan, roster))
    assert [(task.name, task.rank) for task in tasks] == [
        ("chief 0", 0),
        ("worker 0", 1),
        ("ps 0", -1),
    ]
    assert not any(task.is_server or task.starts_alone for task in tasks)


def test_an_evaluator_is_in_no_cluster():
    plan = settings(workers=2, evaluator=True)
    assert plan.task_count == 2  # it needs no port
    roster = [node(0, "h", 1, 2)]
    cluster = cluster_of(plan, roster)
    last = local_tasks(plan, roster, cluster)[-1]
    assert (last.name, last.rank, last.is_evaluator, last.uses_devices) == (
        *("evaluator 0", -1, True, False),
    )
    assert json.loads(last.tf_config) == {
        "cluster": {"worker": ["h:1", "h:2"]},
        "task": {"type": "evaluator", "index": 0},
    }


@pytest.mark.parametrize(("kind", "name"), [("chief", "chief 0"), ("worker", "worker 0")])
def test_a_platforms_cluster_keeps_its_shape(kind, name):
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"], "evaluator": ["d:1"]}
    config = {"cluster": jobs, "task": {"type": kind, "index": 0}, "rpc_layer": "grpc"}
    plan = settings({"TF_CONFIG": json.dumps(config)})
    roster = [node(0, "a", 77), node(1, "b", 1), node(2, "c", 1)]
    (task,) = local_tasks(plan, roster, cluster_of(plan, roster))
    assert task.name == name
    assert json.loads(task.tf_config) == {**config, "cluster": {**jobs, "chief": ["a:77"]}}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_node_of_a_platform_serves_its_own_task(rank):
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    kinds = ("chief", "worker", "ps")
    config = {"cluster": jobs, "task": {"type": kinds[rank], "index": 0}}
    plan = settings({"TF_CONFIG": json.dumps(config)})
    roster = [node(0, "a", 77), node(1, "b", 1), node(2, "c", 1)]
    cluster = cluster_of(plan, roster)
    assert cluster.addresses == ("a:77", "b:1", "c:1")
    (task,) = local_tasks(plan, roster, cluster)
    assert (task.name, task.rank, task.is_server) == (f"{kinds[rank]} 0", -(rank > 0), rank > 0)
    assert sync_sizes(plan, roster) == (1, 1, 0)


def test_a_platforms_evaluator_sees_what_the_platform_wrote():
    config = {
        "cluster": {"worker": ["a:1", "b:1"]},
        "task": {"type": "evaluator", "index": 0},
    }
    plan = settings({"TF_CONFIG": json.dumps(config)})
    roster = [node(0, "127.0.0.1", 99)]
    (task,) = local_tasks(plan, roster, cluster_of(plan, roster))
    assert (task.name, task.rank, task.is_evaluator) == ("evaluator 0", -1, False)
    assert json.loads(task.tf_config) == config
