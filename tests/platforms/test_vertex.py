"""Vertex AI: what is rendered, what is refused, and what a rehearsal's replicas are told."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drumbeat.errors import ConfigError
from drumbeat.platforms import registry
from drumbeat.platforms.jobfile import Job
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.platform import Manifest
from drumbeat.platforms.vertex import render as vertex
from drumbeat.platforms.vertex import spec as vertex_spec

SCHEMA = json.loads(
    (Path(__file__).parent / "schemas" / "vertex_CustomJob.discovery-subset.json").read_text()
)
PREFIX = "GoogleCloudAiplatformV1"
JOB = {
    "name": "digits",
    "script": "train.py",
    "image": "us-docker.pkg.dev/p/team/digits:1",
    "workers": 3,
    "machine_type": "n1-standard-8",
    "output": "gs://bucket/digits",
}
T4 = {"type": "gpu", "accelerator": "NVIDIA_TESLA_T4"}
NFS = {"name": "data", "path": "/mnt/nfs/data", "source": "10.0.0.2:/export"}
NETWORK = "projects/12/global/networks/default"


class Places:
    """Ports in order, from 5001."""

    def __init__(self):
        self.last = 5000

    def port(self) -> int:
        self.last += 1
        return self.last


def render(**changes):
    return vertex.render(Job.model_validate({**JOB, **changes}))


def spec_of(rendered):
    (document,) = parse_yaml(rendered.main, "custom-job.yaml")
    return document.value


def manifest(text) -> Manifest:
    text = text if isinstance(text, str) else json.dumps(text)
    return Manifest(path=Path("job.yaml"), text=text, documents=tuple(parse_yaml(text, "job.yaml")))


def proto(spec):
    from google.cloud.aiplatform_v1.types import CustomJob
    from google.protobuf import json_format

    described = {"displayName": "digits", "jobSpec": spec}
    return CustomJob.wrap(json_format.ParseDict(described, CustomJob.pb(CustomJob())))


@pytest.mark.parametrize(
    ("changes", "path", "expected"),
    [
        ({}, "workerPoolSpecs.0.replicaCount", 1),
        ({}, "workerPoolSpecs.1.replicaCount", 2),
        ({}, "workerPoolSpecs.1.machineSpec", {"machineType": "n1-standard-8"}),
        ({}, "workerPoolSpecs.1.containerSpec.imageUri", JOB["image"]),
        ({}, "workerPoolSpecs.0.containerSpec.command.0", "drumbeat"),
        ({}, "workerPoolSpecs.0.diskSpec.bootDiskSizeGb", 100),
        ({}, "baseOutputDirectory.outputUriPrefix", "gs://bucket/digits"),
        ({}, "scheduling.restartJobOnWorkerRestart", False),
        ({"timeouts": {"total": "2h"}}, "scheduling.timeout", "7200s"),
        ({"vertex": {"spot": True}}, "scheduling.strategy", "SPOT"),
        ({"vertex": {"boot_disk": "200Gi"}}, "workerPoolSpecs.1.diskSpec.bootDiskSizeGb", 200),
        ({"vertex": {"service_account": "a@b"}}, "serviceAccount", "a@b"),
        ({"vertex": {"network": NETWORK}}, "network", NETWORK),
        (
            {"vertex": {"tensorboard": "projects/1/x", "service_account": "a@b"}},
            "tensorboard",
            "projects/1/x",
        ),
        ({"devices": {**T4, "count": 1}}, "workerPoolSpecs.0.machineSpec.acceleratorCount", 1),
        (
            {"workers": 8, "devices": {**T4, "count": 4}},
            "workerPoolSpecs.1.machineSpec",
            {
                "machineType": "n1-standard-8",
                "acceleratorType": "NVIDIA_TESLA_T4",
                "acceleratorCount": 4,
            },
        ),
        ({"workers": 8, "devices": {**T4, "count": 4}}, "workerPoolSpecs.1.replicaCount", 1),
        ({"ps": 2}, "workerPoolSpecs.2.replicaCount", 2),
        ({"ps": 2}, "workerPoolSpecs.1.replicaCount", 3),
        ({"ps": 2, "workers": 1}, "workerPoolSpecs.1.replicaCount", 1),
        (
            {"ps": 1, "devices": T4},
            "workerPoolSpecs.0.machineSpec",
            {"machineType": "n1-standard-8"},
        ),
        ({"ps": 1, "devices": T4}, "workerPoolSpecs.2.machineSpec.machineType", "n1-standard-8"),
        (
            {"ps": 1, "vertex": {"ps_machine_type": "n1-highmem-8"}},
            "workerPoolSpecs.2.machineSpec",
            {"machineType": "n1-highmem-8"},
        ),
        (
            {"mounts": [NFS], "vertex": {"network": NETWORK}},
            "workerPoolSpecs.1.nfsMounts.0",
            {"server": "10.0.0.2", "path": "/export", "mountPoint": "data"},
        ),
    ],
)
def test_each_key_has_its_place(changes, path, expected):
    spec = spec_of(render(**changes))
    proto(spec)
    found = spec
    for step in path.split("."):
        found = found[int(step)] if isinstance(found, list) else found[step]
    assert found == expected


def test_a_single_replica_has_one_pool_and_no_secret():
    spec = spec_of(render(workers=1, environment={"A": "1"}))
    assert len(spec["workerPoolSpecs"]) == 1
    names = [each["name"] for each in spec["workerPoolSpecs"][0]["containerSpec"]["env"]]
    assert names == ["A", "DRUMBEAT_OUTPUT"]


def test_the_agents_secret_is_a_file_beside_the_output():
    for pool in spec_of(render(ps=1))["workerPoolSpecs"]:
        variables = {each["name"]: each["value"] for each in pool["containerSpec"]["env"]}
        assert variables["DRUMBEAT_TOKEN_FILE"] == "gs://bucket/digits/drumbeat-token"
        assert "DRUMBEAT_TOKEN" not in variables
    job = Job.model_validate({**JOB, "output": "/gcs/bucket/digits"})
    assert vertex.token_place(job) == "gs://bucket/digits/drumbeat-token"


def test_the_header_is_the_command_with_what_the_spec_has_no_fields_for():
    rendered = render(vertex={"region": "us-central1", "labels": {"team": "a", "cost": "b"}})
    assert rendered.main.splitlines()[0] == (
        "# gcloud ai custom-jobs create --region=us-central1 --display-name=digits "
        "--labels=team=a,cost=b --config=custom-job.yaml"
    )
    assert "labels" not in spec_of(rendered)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine_type": None}, "no machine_type"),
        ({"image": None}, "no image"),
        ({"output": None}, "no output"),
        ({"output": "/tmp/x"}, "expected gs://BUCKET/FOLDER"),
        ({"devices": {"type": "gpu"}}, "no devices.accelerator"),
        ({"devices": {**T4, "accelerator": "T4"}}, "did you mean NVIDIA_TESLA_T4?"),
        ({"devices": {**T4, "accelerator": "nvidia-l4"}}, "did you mean NVIDIA_L4?"),
        ({"devices": {**T4, "accelerator": "NVIDIA_A100_80G"}}, "did you mean NVIDIA_A100_80GB?"),
        ({"devices": {**T4, "accelerator": "TPU_V3"}}, "TPUStrategy"),
        ({"devices": {**T4, "accelerator": "NVIDIA_L4"}}, "expected a machine type g2-"),
        (
            {
                "devices": {**T4, "accelerator": "NVIDIA_L4"},
                "machine_type": "g2-standard-4",
                "ps": 1,
            },
            "vertex.ps_machine_type",
        ),
        ({"mounts": [{"name": "data", "path": "/data"}]}, "is not one of NFS"),
        ({"mounts": [{**NFS, "source": "/home"}]}, "is not one of NFS"),
        ({"mounts": [{**NFS, "path": "/data"}]}, "expected path: /mnt/nfs/data"),
        ({"mounts": [NFS]}, "needs the job's network"),
        ({"vertex": {"network": "default"}}, "expected projects/NUMBER/global/networks/NAME"),
        ({"vertex": {"tensorboard": "projects/1/x"}}, "tensorboard needs serviceAccount"),
        ({"vertex": {"labels": {"Team": "a"}}}, "expected small letters"),
        ({"environment": {f"V{n}": "1" for n in range(100)}}, "expected at most 100"),
        ({"secrets": [{"name": "wandb", "env": "WANDB_API_KEY"}]}, "Secret Manager"),
    ],
)
def test_what_vertex_has_nothing_for_is_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        render(**changes)
    assert message in str(caught.value)


def test_a_key_file_gives_way_to_the_service_account_and_is_named():
    key = {"name": "gcp-key", "env": "GOOGLE_APPLICATION_CREDENTIALS", "path": "/secrets"}
    rendered = render(secrets=[key])
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in rendered.main
    assert any("vertex.service_account" in note for note in rendered.notes)


def _models():
    import pydantic

    return [
        value
        for value in vars(vertex_spec).values()
        if isinstance(value, type)
        and issubclass(value, pydantic.BaseModel)
        and PREFIX + value.__name__ in SCHEMA
    ]


@pytest.mark.parametrize("model", _models(), ids=lambda model: model.__name__)
def test_fields_are_those_of_the_discovery_document(model):
    published = SCHEMA[PREFIX + model.__name__]["properties"]
    written = {
        name
        for name, field in published.items()
        if not field.get("readOnly") and not field.get("description", "").startswith("Output only")
    }
    assert set(model.model_fields) == written - set(
        vertex_spec.WRITTEN_BY_SERVICE if model is vertex_spec.CustomJob else ()
    )


def test_enums_are_those_of_the_discovery_document():
    machine = SCHEMA[PREFIX + "MachineSpec"]["properties"]["acceleratorType"]["enum"]
    assert set(vertex_spec.ACCELERATORS) == set(machine) - {"ACCELERATOR_TYPE_UNSPECIFIED"}
    strategy = SCHEMA[PREFIX + "Scheduling"]["properties"]["strategy"]["enum"]
    assert {*vertex_spec.STRATEGIES, *vertex_spec.OLD_STRATEGIES} == set(strategy)
    assert len(_models()) >= 16


IMAGE = {"imageUri": "gcr.io/i"}
POOL = {
    "machineSpec": {"machineType": "n1-standard-8"},
    "replicaCount": 1,
    "containerSpec": {"imageUri": "gcr.io/i", "command": ["drumbeat", "run", "train.py"]},
}
L4 = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
REDUCER = {
    "machineSpec": {"machineType": "n1-highcpu-16"},
    "replicaCount": 4,
    "containerSpec": {
        "imageUri": "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
    },
}
V100 = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_V100"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"workerPoolSpecs": [POOL], "schedulng": {}}, "'schedulng' is unknown; did you mean sch"),
        ({"workerPoolSpecs": [{**POOL, "replicaCount": 2}]}, "the chief alone"),
        ({"workerPoolSpecs": [{}, POOL]}, "no first pool"),
        ({"workerPoolSpecs": [POOL] * 5}, "has 5 pools"),
        ({"workerPoolSpecs": [POOL, {}, POOL]}, "gcloud's --config refuses"),
        ({"workerPoolSpecs": [{**POOL, "containerSpec": {}}]}, "imageUri is missing"),
        ({"workerPoolSpecs": [{**POOL, "machineSpec": {}}]}, "machineType is missing"),
        ({"workerPoolSpecs": [{**POOL, "pythonPackageSpec": {}}]}, "either containerSpec or"),
        ({"workerPoolSpecs": [POOL, {"replicaCount": 0}]}, "or {} for none"),
        ({"workerPoolSpecs": [POOL], "scheduling": {"timeout": "2h"}}, 'such as "7200s"'),
        ({"workerPoolSpecs": [POOL], "scheduling": {"strategy": "SPOTTY"}}, "did you mean SPOT?"),
        ({"workerPoolSpecs": [POOL], "scheduling": {"strategy": "ON_DEMAND"}}, "an old name of"),
        (
            {"workerPoolSpecs": [POOL], "scheduling": {"maxWaitDuration": "60s"}},
            "belongs to strategy FLEX_START",
        ),
        ({"workerPoolSpecs": [{**POOL, "machineSpec": L4}]}, "expected a machine type g2-"),
        (
            {"workerPoolSpecs": [{**POOL, "machineSpec": {**L4, "acceleratorType": "NVIDIA_T4"}}]},
            "did you mean NVIDIA_TESLA_T4?",
        ),
        ({"workerPoolSpecs": [{**POOL, "machineSpec": V100}]}, "no acceleratorCount"),
        (
            {
                "workerPoolSpecs": [
                    {**POOL, "containerSpec": {"imageUri": "gcr.io/i", "env": {"A": "1"}}}
                ]
            },
            "containerSpec.env",
        ),
        (
            {
                "workerPoolSpecs": [
                    {
                        **POOL,
                        "containerSpec": {
                            "imageUri": "gcr.io/i",
                            "env": [{"name": "TF_CONFIG", "value": "{}"}],
                        },
                    }
                ]
            },
            "sets TF_CONFIG",
        ),
        (
            {
                "workerPoolSpecs": [
                    {
                        **POOL,
                        "machineSpec": {
                            "machineType": "n1-standard-8",
                            "reservationAffinity": {
                                "reservationAffinityType": "ANY_RESERVATION",
                                "key": "k",
                                "values": ["v"],
                            },
                        },
                    }
                ]
            },
            "belong to SPECIFIC_RESERVATION",
        ),
        (
            {"workerPoolSpecs": [{**POOL, "containerSpec": {"imageUri": "ghcr.io/team/d:1"}}]},
            "Artifact Registry",
        ),
        ({"workerPoolSpecs": [POOL, {}, REDUCER]}, "no worker has GPUs"),
        ({"workerPoolSpecs": [POOL, POOL, {}, {**POOL, "replicaCount": 2}]}, "several evaluators"),
        ({"displayName": "x" * 129, "jobSpec": {"workerPoolSpecs": [POOL]}}, "at most 128"),
        ({"jobSpec": {"workerPoolSpecs": [POOL]}}, "displayName is missing"),
    ],
)
def test_problems_of_anybodys_manifest(spec, message):
    found = vertex.problems(manifest(spec))
    assert any(message in text for text in found), found


def test_a_sound_manifest_has_no_problems_in_either_spelling():
    snake = {
        "worker_pool_specs": [
            {
                "machine_spec": {"machine_type": "n1-standard-8"},
                "replica_count": "1",
                "container_spec": {"image_uri": "gcr.io/i"},
            }
        ]
    }
    assert vertex.problems(manifest(snake)) == []
    described = {
        "name": "projects/1/locations/r/customJobs/2",
        "state": "JOB_STATE_SUCCEEDED",
        "displayName": "d",
        "labels": {"my_team": "a"},
        "jobSpec": {"workerPoolSpecs": [POOL, {**POOL, "replicaCount": "2"}]},
    }
    assert vertex.problems(manifest(described)) == []
    assert registry.recognise(manifest(snake)).name == "vertex"


def test_problems_have_the_line():
    text = "workerPoolSpecs:\n  - replicaCount: 1\n    containerSpecs: {}\n"
    assert vertex.problems(manifest(text)) == [
        "job.yaml:3: in workerPoolSpecs.0: 'containerSpecs' is unknown; did you mean containerSpec?"
    ]


def rehearsed(spec):
    return vertex.rehearse(manifest(spec), Places())


def test_each_replica_is_told_its_place_as_vertex_does():
    spec = spec_of(render(ps=1, workers=2))
    spec["workerPoolSpecs"].append({**POOL})
    found = {each.name: each for each in rehearsed(spec).processes}
    assert list(found) == [
        "workerpool0-0",
        "workerpool1-0",
        "workerpool1-1",
        "workerpool2-0",
        "workerpool3-0",
    ]
    cluster = {
        "workerpool0": ["127.0.0.1:5001"],
        "workerpool1": ["127.0.0.1:5002", "127.0.0.1:5003"],
        "workerpool2": ["127.0.0.1:5004"],
        "workerpool3": ["127.0.0.1:5005"],
    }
    tasks = {
        "chief": ["127.0.0.1:5001"],
        "worker": ["127.0.0.1:5002", "127.0.0.1:5003"],
        "ps": ["127.0.0.1:5004"],
    }
    expected = [
        ("workerpool0-0", "workerpool0", "chief", 0),
        ("workerpool1-1", "workerpool1", "worker", 1),
        ("workerpool2-0", "workerpool2", "ps", 0),
        ("workerpool3-0", "workerpool3", "evaluator", 0),
    ]
    for name, pool, task, index in expected:
        env = found[name].env
        assert json.loads(env["CLUSTER_SPEC"]) == {
            "cluster": cluster,
            "environment": "cloud",
            "task": {"type": pool, "index": index},
            "job": spec,
        }
        config = json.loads(env["TF_CONFIG"])
        assert config["cluster"] == tasks
        assert config["environment"] == "cloud"
        assert config["job"] == spec
        assert (config["task"]["type"], config["task"]["index"]) == (task, index)
        assert found[name].is_main == (task in ("chief", "worker"))
    env = found["workerpool1-0"].env
    assert set(env) == {
        "CLUSTER_SPEC",
        "TF_CONFIG",
        "CLOUD_ML_JOB_ID",
        "AIP_MODEL_DIR",
        "AIP_CHECKPOINT_DIR",
        "AIP_TENSORBOARD_LOG_DIR",
        "DRUMBEAT_OUTPUT",
        "DRUMBEAT_TOKEN_FILE",
    }
    assert env["AIP_MODEL_DIR"] == "gs://bucket/digits/model/"
    assert env["AIP_CHECKPOINT_DIR"] == "gs://bucket/digits/checkpoints/"
    assert env["AIP_TENSORBOARD_LOG_DIR"] == "gs://bucket/digits/logs/"


def test_a_single_replica_has_cluster_spec_and_no_tf_config():
    (process,) = rehearsed({"workerPoolSpecs": [POOL]}).processes
    assert set(process.env) == {"CLUSTER_SPEC", "CLOUD_ML_JOB_ID"}


def test_a_reduction_server_is_left_out_with_a_sentence():
    gpus = {**POOL, "machineSpec": {**V100, "acceleratorCount": 1}}
    found = rehearsed({"workerPoolSpecs": [gpus, gpus, REDUCER]})
    assert [each.name for each in found.processes] == ["workerpool0-0", "workerpool1-0"]
    assert all("ps" not in json.loads(p.env["TF_CONFIG"])["cluster"] for p in found.processes)
    assert any("Reduction Server" in text for text in found.differences)


def test_each_pool_runs_its_own_command():
    package = {
        **{key: POOL[key] for key in ("machineSpec", "replicaCount")},
        "pythonPackageSpec": {
            "executorImageUri": "tf",
            "packageUris": ["gs://b/p.tar.gz"],
            "pythonModule": "trainer.task",
            "args": ["--epochs", "2"],
        },
    }
    chief, worker = rehearsed({"workerPoolSpecs": [POOL, package]}).processes
    assert chief.command == ("drumbeat", "run", "train.py")
    assert worker.command == ("python", "-m", "trainer.task", "--epochs", "2")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"workerPoolSpecs": [{**POOL, "containerSpec": {"imageUri": "gcr.io/i"}}]}, "ENTRYPOINT"),
        ({"workerPoolSpecs": [{**POOL, "replicaCount": 2}]}, "the chief alone"),
        ({"workerPoolSpecs": 3}, "workerPoolSpecs is 3"),
    ],
)
def test_what_cant_be_rehearsed_is_explained(spec, message):
    with pytest.raises(ConfigError) as caught:
        rehearsed(spec)
    assert message in str(caught.value)


def test_rendering_needs_no_client():
    before = {name for name in sys.modules if name.startswith("google.cloud.aiplatform")}
    render()
    after = {name for name in sys.modules if name.startswith("google.cloud.aiplatform")}
    assert after == before
    assert replace(vertex.PLATFORM, name="x").render is not None
