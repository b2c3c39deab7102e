"""Each platform's environment, whole and broken."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.cluster import launched_by
from drumbeat.errors import ConfigError

SLURM = {
    "SLURM_JOB_ID": "20077",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NODELIST": "n[1-2,10]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_DISTRIBUTION": "block",
}
# As slurm-wlm 22.05 sets them: a job of 1 and 2 machines, in one step and in one of the second.
SLURM_HET = {
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_ID_HET_GROUP_0": "2",
    "SLURM_JOB_ID_HET_GROUP_1": "3",
    "SLURM_JOB_NODELIST": "127.0.0.[1-3]",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "127.0.0.1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "127.0.0.[2-3]",
    "SLURM_NTASKS": "3",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "127.0.0.[1-3]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}
SLURM_HET_SECOND = SLURM_HET | {
    "SLURM_NTASKS": "2",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "127.0.0.[2-3]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}
RESOURCES = {
    "TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:1:training-job/digits",
    "SM_RESOURCE_CONFIG": json.dumps(
        {"current_host": "algo-2", "hosts": ["algo-1", "algo-10", "algo-2"]}
    ),
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n",
    "SKYPILOT_NUM_NODES": "2",
}
JOBSET = {
    "JOB_COMPLETION_INDEX": "2",
    "DRUMBEAT_NODES": "3",
    "HOSTNAME": "train-node-0-2",
    "DRUMBEAT_SUBDOMAIN": "train",
}
OURS = {
    "DRUMBEAT_NODES": "2",
    "DRUMBEAT_NODE_RANK": "1",
    "DRUMBEAT_RENDEZVOUS": "first.example.org:4711",
}


def vertex(pools: dict[str, int], task: object, index: object = 0) -> dict[str, str]:
    cluster = {
        f"workerpool{pool}": [f"training-workerpool{pool}-ab-{n}:2222" for n in range(count)]
        for pool, count in pools.items()
    }
    spec = {"cluster": cluster, "environment": "cloud", "task": {"type": task, "index": index}}
    return {"CLUSTER_SPEC": json.dumps(spec)}


VERTEX = vertex({"0": 1, "1": 2}, "workerpool1", 1)


@pytest.mark.parametrize(
    ("env", "platform", "rank", "nodes", "place"),
    [
        (SLURM, "Slurm", 2, 4, "n1:20077"),
        (SLURM | {"SLURM_PROCID": "0"}, "Slurm", 0, 4, "n1:20077"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "Slurm", 0, 1, ":2222"),
        # tf#51760, keras#19218 (what to set under srun is hard to know): nothing is to be set.
        # Cyclic or uneven, rank 0 runs on the first host; n10 comes after n2 as Slurm has it.
        (SLURM | {"SLURM_DISTRIBUTION": "cyclic"}, "Slurm", 2, 4, "n1:20077"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x2),2"}, "Slurm", 2, 4, "n1:20077"),
        (
            SLURM
            | {"SLURM_STEP_NODELIST": "rack[2,10]n[09-10]", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"},
            "Slurm",
            2,
            4,
            "rack2n09:20077",
        ),
        # A second step of the job, beside the first, meets elsewhere.
        (SLURM | {"SLURM_STEP_ID": "1"}, "Slurm", 2, 4, "n1:20178"),
        (SLURM | {"SLURM_JOB_ID": "4000000000"}, "Slurm", 2, 4, "n1:20000"),
        (SLURM | {"DRUMBEAT_RENDEZVOUS": "head:4711"}, "Slurm", 2, 4, "head:4711"),
        (SLURM_HET, "Slurm", 1, 3, "127.0.0.1:20002"),
        (SLURM_HET_SECOND, "Slurm", 1, 2, "127.0.0.2:20204"),
        (SAGEMAKER, "SageMaker", 1, 2, "algo-1:2222"),
        ({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}, "SageMaker", 0, 1, ":2222"),
        # Hosts are sorted as text.
        (RESOURCES, "SageMaker", 2, 3, "algo-1:2222"),
        (RESOURCES | {"DRUMBEAT_RENDEZVOUS": "127.0.0.1:7"}, "SageMaker", 2, 3, "127.0.0.1:7"),
        (RESOURCES | SAGEMAKER, "SageMaker", 1, 2, "algo-1:2222"),
        ({"TRAINING_JOB_ARN": "arn"}, "SageMaker", 0, 1, ":2222"),
        (SKYPILOT, "SkyPilot", 1, 2, "10.0.0.4:2222"),
        (JOBSET, "Kubernetes", 2, 3, "train-node-0-0.train:2222"),
        (
            JOBSET | {"HOSTNAME": "mnist-2", "DRUMBEAT_SUBDOMAIN": "mnist.team.svc"},
            "Kubernetes",
            2,
            3,
            "mnist-0.mnist.team.svc:2222",
        ),
        (JOBSET | {"DRUMBEAT_RENDEZVOUS": "a:7"}, "Kubernetes", 2, 3, "a:7"),
        (OURS, "drumbeat", 1, 2, "first.example.org:4711"),
        (OURS | {"DRUMBEAT_RENDEZVOUS": "[fe80::1]:4711"}, "drumbeat", 1, 2, "fe80::1:4711"),
        (VERTEX, "Vertex AI", 2, 3, "training-workerpool0-ab-0:2222"),
        (vertex({"0": 1}, "workerpool0"), "Vertex AI", 0, 1, ":2222"),
        ({"JOB_COMPLETION_INDEX": "2"}, "Kubernetes", 0, 1, ":2222"),
        # A batch script that is not a step of srun is alone.
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None, 0, 0, ""),
        ({}, None, 0, 0, ""),
    ],
)
def test_who_this_is(env, platform, rank, nodes, place):
    found = launched_by.find(env)
    if platform is None:
        assert found is None
        return
    assert found is not None
    assert (found.platform, found.node_rank, found.nodes) == (platform, rank, nodes)
    assert f"{found.host}:{found.port}" == place
    assert f"node {rank} of {nodes}" in str(found)


BROKEN = [
    ("Slurm", SLURM, {"SLURM_PROCID": "4"}, "expected 0 to 3"),
    ("Slurm", SLURM, {"SLURM_PROCID": None}, "SLURM_PROCID is not set"),
    ("Slurm", SLURM, {"SLURM_STEP_NODELIST": "n[1-"}, "no list of hosts"),
    ("Slurm", SLURM, {"SLURM_STEP_NODELIST": None}, "SLURM_STEP_NODELIST is not set"),
    ("Slurm", SLURM, {"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, "6 tasks on 3 hosts"),
    ("Slurm", SLURM, {"SLURM_STEP_NUM_TASKS": "many"}, "expected a whole number"),
    ("Slurm", SLURM, {"SLURM_DISTRIBUTION": "arbitrary"}, "--distribution=block"),
    # That of the job in place of that of the step: one machine too many.
    ("Slurm", SLURM, {"SLURM_STEP_NODELIST": "n[1-2,10-11]"}, "4 tasks on 3 hosts"),
    ("Slurm", SLURM, {"SLURM_STEP_NODELIST": "n[1-2]-ib"}, "4 tasks on 3 hosts"),
    ("Slurm", SLURM, {"SLURM_STEP_TASKS_PER_NODE": "2,x"}, "expected one such as 2(x3),1"),
    ("Slurm", SLURM, {"SLURM_JOB_ID": "4_2"}, "SLURM_JOB_ID is '4_2'"),
    ("Slurm", SLURM, {"SLURM_STEP_ID": "batch"}, "SLURM_STEP_ID is 'batch'"),
    ("Slurm", SLURM, {"SLURM_PROCID": "-1"}, "expected a whole number"),
    ("Slurm", SLURM, {"DRUMBEAT_RENDEZVOUS": "head"}, "has no port"),
    ("SageMaker", SAGEMAKER, {"SM_CURRENT_HOST": "algo-3"}, "not in SM_HOSTS"),
    ("SageMaker", SAGEMAKER, {"SM_CURRENT_HOST": None}, "not in SM_HOSTS"),
    ("SageMaker", SAGEMAKER, {"SM_HOSTS": "algo-1,algo-2"}, "expected JSON"),
    ("SageMaker", SAGEMAKER, {"SM_HOSTS": "[]"}, "expected a list"),
    ("SageMaker", SAGEMAKER, {"SM_HOSTS": '["algo-2","algo-2"]'}, "each host once"),
    ("SageMaker", SAGEMAKER, {"SM_HOSTS": '["a b","algo-2"]'}, "expected a name or an address"),
    ("SageMaker", RESOURCES, {"SM_RESOURCE_CONFIG": "{"}, "expected JSON"),
    ("SageMaker", RESOURCES, {"SM_RESOURCE_CONFIG": "[]"}, "expected an object"),
    ("SageMaker", RESOURCES, {"SM_RESOURCE_CONFIG": '{"hosts": "a"}'}, "expected a list"),
    ("SageMaker", RESOURCES, {"SM_RESOURCE_CONFIG": '{"hosts": ["a"]}'}, "current_host is ''"),
    ("SageMaker", RESOURCES, {"DRUMBEAT_RENDEZVOUS": "algo-1"}, "has no port"),
    ("SkyPilot", SKYPILOT, {"SKYPILOT_NODE_IPS": ""}, "one address a line"),
    ("SkyPilot", SKYPILOT, {"SKYPILOT_NODE_RANK": "2"}, "expected 0 to 1"),
    ("SkyPilot", SKYPILOT, {"SKYPILOT_NODE_RANK": "-1"}, "expected a whole number"),
    ("SkyPilot", SKYPILOT, {"SKYPILOT_NUM_NODES": "3"}, "has 2 addresses"),
    ("SkyPilot", SKYPILOT, {"SKYPILOT_NODE_IPS": "http://a 10.0.0.5"}, "a name or an address"),
    ("Kubernetes", JOBSET, {"DRUMBEAT_NODES": "1.5"}, "expected a whole number"),
    ("Kubernetes", JOBSET, {"JOB_COMPLETION_INDEX": "3"}, "expected 0 to 2"),
    ("Kubernetes", JOBSET, {"HOSTNAME": "train-node-0-1"}, "whose name ends in -2"),
    ("Kubernetes", JOBSET, {"HOSTNAME": None}, "whose name ends in -2"),
    ("Kubernetes", JOBSET, {"DRUMBEAT_SUBDOMAIN": None}, "DRUMBEAT_SUBDOMAIN is not set"),
    ("Kubernetes", JOBSET, {"DRUMBEAT_RENDEZVOUS": "train"}, "has no port"),
    ("drumbeat", OURS, {"DRUMBEAT_NODES": None}, "expected both"),
    ("drumbeat", OURS, {"DRUMBEAT_NODE_RANK": None}, "DRUMBEAT_NODE_RANK is not set"),
    ("drumbeat", OURS, {"DRUMBEAT_RENDEZVOUS": None}, "DRUMBEAT_RENDEZVOUS is not set"),
    ("drumbeat", OURS, {"DRUMBEAT_RENDEZVOUS": "a:0"}, "out of range"),
    ("drumbeat", OURS, {"DRUMBEAT_NODES": "0"}, "from 1 to"),
    ("Vertex AI", VERTEX, {"CLUSTER_SPEC": "{"}, "expected JSON"),
    ("Vertex AI", VERTEX, {"CLUSTER_SPEC": "[]"}, "expected an object like"),
    ("Vertex AI", VERTEX, vertex({"0": 1}, "workerpool1"), "workerpool0: 1"),
    ("Vertex AI", VERTEX, vertex({"0": 1}, "worker"), "expected one of its cluster"),
    ("Vertex AI", VERTEX, vertex({"0": 1}, "workerpool0", True), "expected one of its cluster"),
    ("Vertex AI", VERTEX, vertex({"0": 1, "3": 1}, "workerpool3"), "this is evaluator 0"),
]


@pytest.mark.parametrize(("platform", "env", "change", "message"), BROKEN)
def test_a_broken_environment_is_explained(platform, env, change, message):
    assert launched_by.FINDERS[platform](env) is not None
    broken = {k: v for k, v in {**env, **change}.items() if v is not None}
    with pytest.raises(ConfigError) as caught:
        launched_by.FINDERS[platform](broken)
    assert message in str(caught.value)


def test_vertex_says_of_an_evaluator_that_tf_config_knows_it():
    env = {**vertex({"0": 1, "3": 1}, "workerpool3"), "TF_CONFIG": "{}"}
    assert launched_by.FINDERS["Vertex AI"](env) is None


def test_each_platform_has_five_broken_environments():
    # What Ray's processes go by is drumbeat's or TF_CONFIG: see tests/platforms/test_ray.py.
    others = launched_by.FINDERS.keys() - {"Ray"}
    assert all(sum(platform == name for name, *_ in BROKEN) >= 5 for platform in others)


_TEXTS = st.text(st.sampled_from("0127 -[]{},:\"'nax²\n\x00"), max_size=20)


@given(st.sampled_from([SLURM, SAGEMAKER, RESOURCES, SKYPILOT, JOBSET, OURS, VERTEX]), st.data())
def test_any_value_is_taken_or_explained(env, data):
    name = data.draw(st.sampled_from(sorted(env)))
    try:
        found = launched_by.find({**env, name: data.draw(_TEXTS)})
    except ConfigError:
        return
    assert found is None or 0 <= found.node_rank < found.nodes


def test_sagemakers_file_is_read_where_it_alone_says_who_this_is():
    text = RESOURCES["SM_RESOURCE_CONFIG"]
    job = {"TRAINING_JOB_ARN": "arn"}
    read: list[str] = []

    def reader(path: str) -> str | None:
        read.append(path)
        return text

    assert launched_by.with_files(job, reader) == {**job, "SM_RESOURCE_CONFIG": text}
    assert read == ["/opt/ml/input/config/resourceconfig.json"]
    for env in ({}, {**job, **SAGEMAKER}, RESOURCES):
        assert launched_by.with_files(env, reader) == env
    assert len(read) == 1
    assert launched_by.with_files(job, lambda _: None) == job
    assert "trains alone" in str(launched_by.find(job))
