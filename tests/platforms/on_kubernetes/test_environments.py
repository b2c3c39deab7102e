"""What `drumbeat run` makes of the variables of each platform's pods, whole and broken."""

from __future__ import annotations

import json

import pytest

from drumbeat.errors import ConfigError
from drumbeat.launch.place import find_place
from drumbeat.launch.settings import RunArguments
from drumbeat.launch.token import token_of
from drumbeat.platforms import registry
from drumbeat.platforms.kubernetes.manifests import jobs, tfjob, trainjob
from drumbeat.platforms.kubernetes.manifests.pod import variables
from drumbeat.platforms.kubernetes.manifests.reading import objects

RUN = RunArguments(command=("train.py",))


@pytest.fixture
def pods(job, manifest):
    """The variables of each pod by its name, with the platform's names of hosts."""

    def make(platform: str, **changes) -> dict[str, dict[str, str]]:
        found = manifest(registry.get(platform).render(job(**changes)).main)
        if platform == "tfjob":
            made = tfjob.pods_of(found.documents[0].value)
        elif platform == "jobset":
            made = jobs.pods_of_set(found.documents[0].value)
        else:
            runtime = objects(found, "TrainingRuntime")[0]
            made = trainjob.pods_of(objects(found, "TrainJob")[0], runtime)
        return {pod.name: dict(variables(pod).values) for pod in made}

    return make


@pytest.mark.parametrize(
    ("platform", "changes", "first", "place"),
    [
        ("tfjob", {}, "worker-0", ("digits-worker-0.team.svc", 2222)),
        ("tfjob", {"tfjob": {"chief": True}}, "chief-0", ("digits-chief-0.team.svc", 2222)),
        ("tfjob", {"ps": 1}, "chief-0", ("digits-chief-0.team.svc", 2222)),
        ("jobset", {}, "worker-0", ("digits-worker-0-0.digits", 2222)),
        ("jobset", {"ps": 2}, "worker-0", ("digits-worker-0-0.digits", 2222)),
        ("trainjob", {}, "node-0", ("digits-node-0-0.digits", 2222)),
    ],
)
def test_each_pod_finds_its_place(platform, changes, first, place, pods):
    found = pods(platform, workers=3, kubernetes={"namespace": "team"}, **changes)
    assert next(iter(found)) == first
    places = [find_place(RUN, env) for env in found.values()]
    assert [each.node_rank for each in places] == list(range(len(found)))
    assert {each.nodes for each in places} == {len(found)}
    assert {each.rendezvous for each in places} == {place}


@pytest.mark.parametrize("platform", ["tfjob", "jobset", "trainjob"])
def test_one_pod_needs_nobody(platform, pods):
    (env,) = pods(platform, workers=1).values()
    place = find_place(RUN, env)
    assert (place.nodes, place.notes) == (1, ())
    assert token_of(place, env) == ""


@pytest.mark.parametrize("platform", ["tfjob", "jobset", "trainjob"])
def test_several_need_the_secret(platform, pods):
    env = next(iter(pods(platform).values()))
    with pytest.raises(ConfigError, match="DRUMBEAT_TOKEN is not set"):
        token_of(find_place(RUN, env), env)


def changed(**more):
    """TF_CONFIG with other keys in it, or in its cluster."""

    def change(env: dict[str, str]) -> str:
        config = json.loads(env["TF_CONFIG"])
        for key, value in more.items():
            (config if key == "task" else config["cluster"])[key] = value
        return json.dumps(config)

    return change


OWN = "digits-worker-1.default.svc:2222"
BROKEN = [
    ("tfjob", {"TF_CONFIG": changed(worker={"1": OWN}, ps=[])}, "ps"),
    ("tfjob", {"TF_CONFIG": changed(worker={"1": OWN})}, "worker"),
    ("tfjob", {"TF_CONFIG": changed(ps=None)}, "cluster.ps is None"),
    ("tfjob", {"TF_CONFIG": changed(ps=[])}, "cluster.ps"),
    ("tfjob", {"TF_CONFIG": changed(ps=["digits-ps-0.default.svc:2222"])}, "no chief"),
    ("tfjob", {"TF_CONFIG": changed(Worker=[OWN])}, "'Worker' is unknown"),
    ("tfjob", {"TF_CONFIG": changed(task={"type": "worker", "index": 2})}, "2"),
    ("tfjob", {"TF_CONFIG": changed(task={"type": "master", "index": 0})}, "chief"),
    ("tfjob", {"TF_CONFIG": changed(worker=["digits-worker-0", OWN])}, "has no port"),
    ("tfjob", {"TF_CONFIG": changed(worker=[OWN, OWN])}, OWN),
    ("tfjob", {"TF_CONFIG": lambda env: env["TF_CONFIG"].replace('"', "'")}, "double quotes"),
    ("tfjob", {"TF_CONFIG": lambda env: "$(TF_CONFIG)"}, "TF_CONFIG"),
    ("jobset", {"DRUMBEAT_NODES": "1"}, "JOB_COMPLETION_INDEX is 1, but DRUMBEAT_NODES says 1"),
    ("jobset", {"DRUMBEAT_NODES": "two"}, "expected a whole number"),
    ("jobset", {"DRUMBEAT_SUBDOMAIN": None}, "DRUMBEAT_SUBDOMAIN is not set"),
    ("jobset", {"DRUMBEAT_SUBDOMAIN": "a b"}, "expected a name or an address"),
    ("jobset", {"HOSTNAME": "digits-worker-0-0"}, "whose name ends in -1"),
    ("jobset", {"HOSTNAME": "gke-node-7f"}, "whose name ends in -1"),
    ("jobset", {"JOB_COMPLETION_INDEX": "$(INDEX)"}, "expected a whole number"),
    ("trainjob", {"DRUMBEAT_NODES": ""}, "expected a whole number"),
    ("trainjob", {"DRUMBEAT_NODES": "1"}, "expected 0 to 0"),
    ("trainjob", {"DRUMBEAT_SUBDOMAIN": ""}, "DRUMBEAT_SUBDOMAIN is not set"),
    ("trainjob", {"HOSTNAME": None}, "whose name ends in -1"),
    ("trainjob", {"JOB_COMPLETION_INDEX": "-1"}, "expected a whole number"),
    ("trainjob", {"DRUMBEAT_RENDEZVOUS": "digits-node-0-0.digits"}, "has no port"),
    ("trainjob", {"JOB_COMPLETION_INDEX": None}, "DRUMBEAT_NODE_RANK is not set"),
]


@pytest.mark.parametrize(("platform", "change", "message"), BROKEN)
def test_a_broken_environment_is_explained(platform, change, message, pods):
    env = list(pods(platform).values())[1]
    assert find_place(RUN, env).node_rank == 1
    for name, value in change.items():
        if value is None:
            del env[name]
        else:
            env[name] = value(env) if callable(value) else value
    with pytest.raises(ConfigError) as caught:
        find_place(RUN, env)
    assert message in str(caught.value)


def test_each_platform_has_five_broken_environments():
    for platform in ("tfjob", "jobset", "trainjob"):
        assert sum(name == platform for name, *_ in BROKEN) >= 5


def test_an_index_that_nobody_was_told_of_trains_alone_and_says_so(pods):
    env = list(pods("jobset").values())[1]
    del env["DRUMBEAT_NODES"]
    place = find_place(RUN, env)
    assert place.nodes == 1
    assert "set DRUMBEAT_NODES to that number" in place.notes[0]
