"""Old configs of AI Platform Training: converted field by field, and rehearsed as they ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumbeat.cluster import ClusterSpec
from drumbeat.errors import ConfigError
from drumbeat.platforms import registry
from drumbeat.platforms.ai_platform import render as ai_platform
from drumbeat.platforms.ai_platform import spec as ai_platform_spec
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.platform import Manifest
from drumbeat.platforms.vertex import render as vertex

SCHEMA = json.loads(
    (Path(__file__).parent / "schemas" / "caip_Job.discovery-subset.json").read_text()
)
PREFIX = "GoogleCloudMlV1__"
IMAGE = "gcr.io/p/train:1"
CUSTOM = {
    "scaleTier": "CUSTOM",
    "region": "us-central1",
    "masterType": "n1-standard-8",
    "masterConfig": {"imageUri": IMAGE},
}
ALL_ROLES = {
    **CUSTOM,
    "workerType": "n1-standard-4",
    "workerCount": "2",
    "parameterServerType": "n1-highmem-8",
    "parameterServerCount": 1,
    "evaluatorType": "n1-standard-4",
    "evaluatorCount": "1",
}
PACKAGE = {
    "scaleTier": "BASIC",
    "region": "europe-west1",
    "runtimeVersion": "2.11",
    "packageUris": ["gs://b/trainer.tar.gz"],
    "pythonModule": "trainer.task",
}
T4 = {"count": "1", "type": "NVIDIA_TESLA_T4"}
PARAMETER = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}


class Places:
    def __init__(self):
        self.last = 5000

    def port(self) -> int:
        self.last += 1
        return self.last


def manifest(value) -> Manifest:
    text = value if isinstance(value, str) else json.dumps(value)
    documents = tuple(parse_yaml(text, "config.yaml"))
    return Manifest(path=Path("config.yaml"), text=text, documents=documents)


def convert(given, **around):
    return ai_platform.convert(manifest({"trainingInput": given, **around}))


def spec_of(rendered):
    (document,) = parse_yaml(rendered.main, vertex.FILE)
    return document.value


def at(spec, path):
    for step in path.split("."):
        spec = spec[int(step)] if isinstance(spec, list) else spec[step]
    return spec


def proto(spec):
    from google.cloud.aiplatform_v1.types import CustomJob
    from google.protobuf import json_format

    described = {"displayName": "digits", "jobSpec": spec}
    return json_format.ParseDict(described, CustomJob.pb(CustomJob()))


POOL, GPU = "workerPoolSpecs", "machineSpec.acceleratorType"
# Of each field: a job that has it, and where its value is in the CustomJobSpec.
CONVERTED = [
    ("TrainingInput.scaleTier", PACKAGE, f"{POOL}.0.machineSpec.machineType", "n1-standard-4"),
    ("TrainingInput.masterType", CUSTOM, f"{POOL}.0.machineSpec.machineType", "n1-standard-8"),
    ("TrainingInput.masterConfig", CUSTOM, f"{POOL}.0.containerSpec.imageUri", IMAGE),
    ("TrainingInput.workerType", ALL_ROLES, f"{POOL}.1.machineSpec.machineType", "n1-standard-4"),
    ("TrainingInput.workerCount", ALL_ROLES, f"{POOL}.1.replicaCount", 2),
    (
        "TrainingInput.workerConfig",
        {**ALL_ROLES, "workerConfig": {"imageUri": "gcr.io/p/w:1"}},
        f"{POOL}.1.containerSpec.imageUri",
        "gcr.io/p/w:1",
    ),
    (
        "TrainingInput.parameterServerType",
        ALL_ROLES,
        f"{POOL}.2.machineSpec.machineType",
        "n1-highmem-8",
    ),
    ("TrainingInput.parameterServerCount", ALL_ROLES, f"{POOL}.2.replicaCount", 1),
    (
        "TrainingInput.parameterServerConfig",
        {**ALL_ROLES, "parameterServerConfig": {"imageUri": "gcr.io/p/ps:1"}},
        f"{POOL}.2.containerSpec.imageUri",
        "gcr.io/p/ps:1",
    ),
    (
        "TrainingInput.evaluatorType",
        ALL_ROLES,
        f"{POOL}.3.machineSpec.machineType",
        "n1-standard-4",
    ),
    ("TrainingInput.evaluatorCount", ALL_ROLES, f"{POOL}.3.replicaCount", 1),
    (
        "TrainingInput.evaluatorConfig",
        {**ALL_ROLES, "evaluatorConfig": {"acceleratorConfig": T4}},
        f"{POOL}.3.{GPU}",
        "NVIDIA_TESLA_T4",
    ),
    (
        "TrainingInput.packageUris",
        PACKAGE,
        f"{POOL}.0.pythonPackageSpec.packageUris",
        ["gs://b/trainer.tar.gz"],
    ),
    ("TrainingInput.pythonModule", PACKAGE, f"{POOL}.0.pythonPackageSpec.pythonModule", None),
    (
        "TrainingInput.runtimeVersion",
        PACKAGE,
        f"{POOL}.0.pythonPackageSpec.executorImageUri",
        "europe-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11.py310:latest",
    ),
    (
        "TrainingInput.args",
        {**ALL_ROLES, "args": ["--epochs", "2"]},
        f"{POOL}.3.containerSpec.args",
        ["--epochs", "2"],
    ),
    (
        "TrainingInput.jobDir",
        {**CUSTOM, "jobDir": "gs://b/out", "args": ["-x"]},
        f"{POOL}.0.containerSpec.args",
        ["-x", "--job-dir", "gs://b/out"],
    ),
    (
        "TrainingInput.jobDir",
        {**CUSTOM, "jobDir": "gs://b/out"},
        "baseOutputDirectory.outputUriPrefix",
        "gs://b/out",
    ),
    ("TrainingInput.serviceAccount", {**CUSTOM, "serviceAccount": "a@b"}, "serviceAccount", "a@b"),
    (
        "TrainingInput.network",
        {**CUSTOM, "network": "projects/1/global/networks/n"},
        "network",
        "projects/1/global/networks/n",
    ),
    ("TrainingInput.enableWebAccess", {**CUSTOM, "enableWebAccess": True}, "enableWebAccess", True),
    (
        "TrainingInput.scheduling",
        {**CUSTOM, "scheduling": {"maxRunningTime": "7200s"}},
        "scheduling.timeout",
        "7200s",
    ),
    (
        "Scheduling.maxRunningTime",
        {**CUSTOM, "scheduling": {"maxRunningTime": "60s"}},
        "scheduling.timeout",
        "60s",
    ),
    ("ReplicaConfig.imageUri", ALL_ROLES, f"{POOL}.2.containerSpec.imageUri", IMAGE),
    (
        "ReplicaConfig.acceleratorConfig",
        {**CUSTOM, "masterConfig": {"imageUri": IMAGE, "acceleratorConfig": T4}},
        f"{POOL}.0.machineSpec.acceleratorCount",
        1,
    ),
    (
        "AcceleratorConfig.count",
        {**CUSTOM, "masterConfig": {"imageUri": IMAGE, "acceleratorConfig": {**T4, "count": 4}}},
        f"{POOL}.0.machineSpec.acceleratorCount",
        4,
    ),
    (
        "AcceleratorConfig.type",
        {**CUSTOM, "masterConfig": {"imageUri": IMAGE, "acceleratorConfig": T4}},
        f"{POOL}.0.{GPU}",
        "NVIDIA_TESLA_T4",
    ),
    (
        "ReplicaConfig.diskConfig",
        {**CUSTOM, "masterConfig": {"imageUri": IMAGE, "diskConfig": {"bootDiskSizeGb": 200}}},
        f"{POOL}.0.diskSpec.bootDiskSizeGb",
        200,
    ),
    (
        "DiskConfig.bootDiskSizeGb",
        {**CUSTOM, "masterConfig": {"imageUri": IMAGE, "diskConfig": {"bootDiskSizeGb": 300}}},
        f"{POOL}.0.diskSpec.bootDiskSizeGb",
        300,
    ),
    (
        "DiskConfig.bootDiskType",
        {
            **CUSTOM,
            "masterConfig": {"imageUri": IMAGE, "diskConfig": {"bootDiskType": "pd-standard"}},
        },
        f"{POOL}.0.diskSpec.bootDiskType",
        "pd-standard",
    ),
    (
        "ReplicaConfig.containerCommand",
        {**CUSTOM, "masterConfig": {"imageUri": IMAGE, "containerCommand": ["python", "t.py"]}},
        f"{POOL}.0.containerSpec.command",
        ["python", "t.py"],
    ),
    (
        "ReplicaConfig.containerArgs",
        {**CUSTOM, "masterConfig": {"imageUri": IMAGE, "containerArgs": ["--epochs"]}},
        f"{POOL}.0.containerSpec.args",
        ["--epochs"],
    ),
]
# Of each field: a job that has it, and what the command in the first line says.
IN_COMMAND = [
    ("TrainingInput.region", {"trainingInput": CUSTOM}, "--region=us-central1"),
    ("Job.jobId", {"trainingInput": CUSTOM, "jobId": "digits_1"}, "--display-name=digits_1"),
    ("Job.labels", {"trainingInput": CUSTOM, "labels": {"team": "a"}}, "--labels=team=a"),
    (
        "TrainingInput.encryptionConfig",
        {"trainingInput": {**CUSTOM, "encryptionConfig": {"kmsKeyName": "projects/p/k"}}},
        "--kms-key=projects/p/k",
    ),
    (
        "EncryptionConfig.kmsKeyName",
        {"trainingInput": {**CUSTOM, "encryptionConfig": {"kmsKeyName": "projects/p/k"}}},
        "--kms-key=projects/p/k",
    ),
]
# Of each field without an equivalent: a job that has it, and what is said of it.
NOTED = [
    (
        "TrainingInput.useChiefInTfConfig",
        {**CUSTOM, "useChiefInTfConfig": True},
        "useChiefInTfConfig is left out",
    ),
    ("TrainingInput.pythonVersion", {**PACKAGE, "pythonVersion": "3.7"}, "becomes 3.10"),
    (
        "Scheduling.maxWaitTime",
        {**CUSTOM, "scheduling": {"maxWaitTime": "1800s"}},
        "scheduling.maxWaitTime is left out",
    ),
    (
        "Scheduling.priority",
        {**CUSTOM, "scheduling": {"priority": 7}},
        "scheduling.priority is left out",
    ),
    (
        "TrainingInput.hyperparameters",
        {**CUSTOM, "hyperparameters": {"goal": "MAXIMIZE", "params": [PARAMETER]}},
        "HyperparameterTuningJob",
    ),
]
TUNING = {
    "goal": "MAXIMIZE",
    "params": [PARAMETER],
    "maxTrials": 4,
    "maxParallelTrials": 2,
    "maxFailedTrials": 1,
    "hyperparameterMetricTag": "acc",
    "resumePreviousJobId": "j",
    "enableTrialEarlyStopping": True,
    "algorithm": "GRID_SEARCH",
}
NOTED += [
    (f"HyperparameterSpec.{name}", {**CUSTOM, "hyperparameters": {name: value}}, f"{name} is ")
    for name, value in TUNING.items()
]
# What a parameter is made of goes into studySpec.parameters as one.
NOTED += [
    (
        f"ParameterSpec.{name}",
        {**CUSTOM, "hyperparameters": {"params": [{**PARAMETER, name: value}]}},
        "params is studySpec.parameters",
    )
    for name, value in {
        **PARAMETER,
        "categoricalValues": ["a"],
        "discreteValues": [1.5],
        "scaleType": "NONE",
    }.items()
]
# Of each field that is refused: a file that has it, and the message.
REFUSED = [
    (
        "ReplicaConfig.tpuTfVersion",
        {"trainingInput": {**CUSTOM, "masterConfig": {"imageUri": IMAGE, "tpuTfVersion": "2.1"}}},
        "TPU",
    ),
    ("Job.predictionInput", {"predictionInput": {}}, "batch prediction"),
]


@pytest.mark.parametrize(("field", "given", "path", "expected"), CONVERTED)
def test_a_field_is_converted(field, given, path, expected):
    spec = spec_of(convert(given))
    proto(spec)
    assert at(spec, path) == ("trainer.task" if expected is None else expected)


@pytest.mark.parametrize(("field", "file", "word"), IN_COMMAND)
def test_a_field_of_the_job_itself_is_in_the_command(field, file, word):
    text = ai_platform.convert(manifest(file)).main
    assert word in text.splitlines()[0].split()


def test_an_unspecified_accelerator_is_none():
    gpus = {"type": "ACCELERATOR_TYPE_UNSPECIFIED", "count": 1}
    config = {"imageUri": IMAGE, "acceleratorConfig": gpus}
    spec = spec_of(convert({**CUSTOM, "masterConfig": config}))
    assert at(spec, f"{POOL}.0.machineSpec") == {"machineType": "n1-standard-8"}


@pytest.mark.parametrize(("field", "given", "said"), NOTED)
def test_a_field_without_an_equivalent_is_named(field, given, said):
    notes = convert(given).notes
    assert any(said in note for note in notes), notes


@pytest.mark.parametrize(("field", "file", "message"), REFUSED)
def test_a_field_that_vertex_has_nothing_for_is_refused(field, file, message):
    with pytest.raises(ConfigError) as caught:
        ai_platform.convert(manifest(file))
    assert message in str(caught.value)


def test_no_field_of_the_discovery_document_is_forgotten():
    written = {
        f"{name.removeprefix(PREFIX)}.{field}"
        for name, schema in SCHEMA.items()
        for field in schema["properties"]
        if name.startswith(PREFIX)
    }
    outputs = ("HyperparameterOutput", "TrainingOutput", "BuiltInAlgorithmOutput", "Prediction")
    written = {each for each in written if not each.startswith(outputs)}
    written -= {f"Job.{name}" for name in ai_platform_spec.WRITTEN_BY_SERVICE}
    tested = {row[0] for rows in (CONVERTED, IN_COMMAND, NOTED, REFUSED) for row in rows}
    assert tested | {"Job.trainingInput"} == written


def test_what_the_service_wrote_is_left_out():
    described = {
        "jobId": "old_1",
        "createTime": "2023-01-01T00:00:00Z",
        "state": "SUCCEEDED",
        "etag": "x",
        "trainingInput": CUSTOM,
        "trainingOutput": {"consumedMLUnits": 0.5},
    }
    assert "--display-name=old_1" in ai_platform.convert(manifest(described)).main


@pytest.mark.parametrize("tier", ["BASIC", "BASIC_GPU", "STANDARD_1", "PREMIUM_1"])
def test_tiers(tier):
    spec = spec_of(convert({**PACKAGE, "scaleTier": tier}))
    proto(spec)
    found = [
        (pool["machineSpec"]["machineType"], pool["replicaCount"]) for pool in spec[POOL] if pool
    ]
    assert (
        found
        == {
            "BASIC": [("n1-standard-4", 1)],
            "BASIC_GPU": [("n1-standard-8", 1)],
            "STANDARD_1": [("n1-highcpu-8", 1), ("n1-highcpu-8", 4), ("n1-standard-4", 3)],
            "PREMIUM_1": [("n1-highcpu-16", 1), ("n1-highcpu-16", 19), ("n1-highmem-8", 11)],
        }[tier]
    )


# Training units by hour of types and tiers, as the service's price list had them, and those of
# Compute Engine's machines and GPUs in it.
UNITS = {
    "standard": 0.5661,
    "large_model": 1.4111,
    "complex_model_s": 0.845,
    "complex_model_m": 1.69,
    "complex_model_l": 3.38,
    "standard_gpu": 2.4731,
    "complex_model_m_gpu": 7.6278,
    "complex_model_l_gpu": 15.2555,
    "standard_p100": 5.4824,
    "complex_model_m_p100": 19.6653,
    "standard_v100": 8.5216,
    "large_model_v100": 8.8005,
    "complex_model_m_v100": 31.8220,
    "complex_model_l_v100": 63.6441,
}
MACHINE_UNITS = {"n1-standard-": 0.5661 / 4, "n1-highmem-": 1.4111 / 8, "n1-highcpu-": 0.845 / 8}
GPU_UNITS = {
    None: 0,
    "NVIDIA_TESLA_K80": 1.3409,
    "NVIDIA_TESLA_P100": 4.3502,
    "NVIDIA_TESLA_V100": 7.3894,
}


@pytest.mark.parametrize("name", ai_platform_spec.LEGACY)
def test_legacy_types_cost_what_their_machines_cost(name):
    machine, gpu, count = ai_platform_spec.LEGACY[name]
    family, _, cpus = machine.rpartition("-")
    units = MACHINE_UNITS[f"{family}-"] * int(cpus) + GPU_UNITS[gpu] * count
    assert units == pytest.approx(UNITS[name], abs=0.002)


@pytest.mark.parametrize(("tier", "units"), [("STANDARD_1", 5.9234), ("PREMIUM_1", 49.323)])
def test_tiers_cost_what_their_machines_cost(tier, units):
    found = sum(UNITS[name] * count for name, count in ai_platform_spec.TIERS[tier].values())
    assert found == pytest.approx(units, abs=0.002)


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("standard_gpu", ("n1-standard-8", "NVIDIA_TESLA_T4", 1)),
        ("complex_model_m_gpu", ("n1-standard-16", "NVIDIA_TESLA_T4", 4)),
        ("complex_model_l_gpu", ("n1-standard-32", "NVIDIA_TESLA_V100", 8)),
    ],
)
def test_k80_give_way_with_a_note(name, machine):
    rendered = convert({**CUSTOM, "masterType": name})
    found = at(spec_of(rendered), f"{POOL}.0.machineSpec")
    assert tuple(found.values()) == machine
    assert any("no NVIDIA_TESLA_K80" in note for note in rendered.notes)


@pytest.mark.parametrize(
    ("version", "gpu", "image"),
    [
        ("1.15", False, "us-docker.pkg.dev/vertex-ai/training/tf-cpu.1-15:latest"),
        ("2.1", True, "us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-1:latest"),
        ("2.8", False, "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-8.py310:latest"),
        ("2.11", True, "us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-11.py310:latest"),
    ],
)
def test_runtimes_have_their_image(version, gpu, image):
    tier = "BASIC_GPU" if gpu else "BASIC"
    given = {**PACKAGE, "region": "us-east1", "runtimeVersion": version, "scaleTier": tier}
    found = at(spec_of(convert(given)), f"{POOL}.0.pythonPackageSpec.executorImageUri")
    assert found == image


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**CUSTOM, "useChiefInTFConfig": True}, "did you mean useChiefInTfConfig?"),
        ({**CUSTOM, "masterconfig": {}}, "did you mean masterConfig?"),
        ({**CUSTOM, "masterConfig": {"imageURI": "x"}}, "did you mean imageUri?"),
        ({**CUSTOM, "scaleTier": "STANDARD"}, "scaleTier is 'STANDARD'"),
        ({**PACKAGE, "scaleTier": "BASIC_TPU"}, "TPUs"),
        ({**ALL_ROLES, "workerType": "cloud_tpu"}, "TPUs"),
        ({**PACKAGE, "workerCount": 2}, "only CUSTOM has it"),
        ({**PACKAGE, "masterType": "standard"}, "only CUSTOM has it"),
        ({**CUSTOM, "masterType": None}, "masterType"),
        ({key: value for key, value in CUSTOM.items() if key != "masterType"}, "masterType is mis"),
        ({**CUSTOM, "workerCount": "2"}, "workerType is missing"),
        ({**CUSTOM, "workerCount": "two"}, "workerCount is 'two'"),
        ({**ALL_ROLES, "workerType": "standard"}, "both families"),
        ({**CUSTOM, "masterType": "complex_model_x"}, "did you mean complex_model_"),
        (
            {
                **CUSTOM,
                "masterType": "standard",
                "masterConfig": {"imageUri": IMAGE, "acceleratorConfig": T4},
            },
            "can't be had with the legacy type",
        ),
        (
            {**CUSTOM, "masterConfig": {"imageUri": IMAGE, "acceleratorConfig": {"type": "T4"}}},
            "masterConfig.acceleratorConfig.type is 'T4'",
        ),
        ({**CUSTOM, "runtimeVersion": "2.1"}, "Expected either masterConfig.imageUri or runtime"),
        ({**CUSTOM, "masterConfig": {}}, "Expected either masterConfig.imageUri or runtimeV"),
        (
            {
                **CUSTOM,
                "args": ["-x"],
                "masterConfig": {"imageUri": IMAGE, "containerArgs": ["-y"]},
            },
            "args can't be had with",
        ),
        (
            {**PACKAGE, "masterConfig": {"containerCommand": ["python"]}},
            "need masterConfig.imageUri",
        ),
        ({**PACKAGE, "workerConfig": {"imageUri": IMAGE}}, "workerConfig.imageUri needs master"),
        ({**PACKAGE, "pythonModule": None}, "pythonModule"),
        ({**PACKAGE, "packageUris": []}, "gcloud took it from --package-path"),
        ({**PACKAGE, "packageUris": ["gs://b/x"] * 101}, "at most 100"),
        ({**PACKAGE, "runtimeVersion": "1.4"}, "no prebuilt image"),
        ({**CUSTOM, "jobDir": "/tmp/out"}, "expected gs://BUCKET/FOLDER"),
        ({**CUSTOM, "scheduling": {"priority": 1001}}, "expected 0 to 1000"),
        ({**CUSTOM, "scheduling": {"maxRunningTime": "2h"}}, 'such as "7200s"'),
        ({**CUSTOM, "network": "default"}, "projects/NUMBER/global/networks/NAME"),
    ],
)
def test_what_is_wrong_is_refused(given, message):
    with pytest.raises(ConfigError) as caught:
        convert(given)
    assert message in str(caught.value)


def test_labels_are_checked_as_vertex_does():
    with pytest.raises(ConfigError, match="small letters"):
        convert(CUSTOM, labels={"Team": "A"})


def test_a_missing_tier_is_taken_for_one_and_said():
    given = {key: value for key, value in CUSTOM.items() if key != "scaleTier"}
    rendered = convert(given)
    assert any("scaleTier is missing: taken for CUSTOM" in note for note in rendered.notes)


def test_a_skipped_pool_is_empty():
    given = {key: value for key, value in ALL_ROLES.items() if not key.startswith("worker")}
    spec = spec_of(convert(given))
    job = json.loads(convert(given, labels={"team": "a"}, jobId="old_1").files[vertex.JSON_FILE])
    assert job == {"displayName": "old_1", "jobSpec": spec, "labels": {"team": "a"}}
    assert spec[POOL][1] == {}
    assert len(spec[POOL]) == 4
    proto(spec)


def test_it_is_recognised_and_has_the_problem_that_nobody_runs_it():
    found = manifest({"trainingInput": CUSTOM})
    assert registry.recognise(found).name == "ai-platform"
    problems = ai_platform.problems(found)
    assert "shut down on 2025-01-31" in problems[0]
    assert "useChiefInTfConfig is not set" in problems[1]
    broken = ai_platform.problems(manifest({"trainingInput": {**CUSTOM, "workers": 1}}))
    assert broken == [
        "config.yaml:1: in trainingInput: 'workers' is unknown; did you mean workerType?"
    ]


COMMAND = {"containerCommand": ["python", "t.py"]}
TRAINS = {
    **ALL_ROLES,
    "masterConfig": {"imageUri": IMAGE, **COMMAND, "containerArgs": ["-x"]},
    "workerConfig": COMMAND,
    "parameterServerConfig": COMMAND,
    "evaluatorConfig": COMMAND,
    "jobDir": "gs://b/out",
}


def rehearsed(given):
    return ai_platform.rehearse(manifest({"trainingInput": given}), Places())


def test_each_replica_is_told_its_place_as_it_was():
    found = {each.name: each for each in rehearsed(TRAINS).processes}
    assert list(found) == ["master-0", "worker-0", "worker-1", "ps-0", "evaluator-0"]
    cluster = {
        "master": ["127.0.0.1:5001"],
        "worker": ["127.0.0.1:5002", "127.0.0.1:5003"],
        "ps": ["127.0.0.1:5004"],
    }
    for name, task in {
        "master-0": ("master", 0),
        "worker-1": ("worker", 1),
        "ps-0": ("ps", 0),
        "evaluator-0": ("evaluator", 0),
    }.items():
        env = found[name].env
        assert set(env) == {"TF_CONFIG", "CLUSTER_SPEC"}
        config = json.loads(env["TF_CONFIG"])
        assert set(config) == {"cluster", "task", "job", "environment"}
        assert config["cluster"] == cluster
        assert config["environment"] == "cloud"
        assert config["job"] == TRAINS
        assert (config["task"]["type"], config["task"]["index"]) == task
        spec = json.loads(env["CLUSTER_SPEC"])
        assert list(spec["cluster"]) == [f"workerpool{n}" for n in range(4)]
    assert found["master-0"].command == ("python", "t.py", "-x", "--job-dir", "gs://b/out")
    assert [each.is_main for each in found.values()] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (TRAINS, "master"),
        ({**TRAINS, "useChiefInTfConfig": True}, "chief"),
        ({**PACKAGE, "runtimeVersion": "1.15"}, "master"),
        ({**PACKAGE, "runtimeVersion": "1.15", "useChiefInTfConfig": True}, "master"),
        ({**PACKAGE, "runtimeVersion": "2.1"}, "chief"),
        ({**PACKAGE, "runtimeVersion": "2.11"}, "chief"),
    ],
)
def test_master_or_chief_by_the_runtime(given, name):
    first = rehearsed(given).processes[0]
    config = json.loads(first.env["TF_CONFIG"])
    assert config["task"]["type"] == name
    assert name in config["cluster"]
    cluster = ClusterSpec.from_env(first.env)
    assert cluster is not None
    assert str(cluster.task) == "chief 0"


def test_a_single_replica_had_tf_config_too():
    (process,) = rehearsed(PACKAGE).processes
    assert set(process.env) == {"TF_CONFIG"}
    assert json.loads(process.env["TF_CONFIG"])["cluster"] == {"chief": ["127.0.0.1:5001"]}
    assert process.command == ("python", "-m", "trainer.task")


def test_an_unknown_command_is_explained():
    with pytest.raises(ConfigError, match="ENTRYPOINT"):
        rehearsed(CUSTOM)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("null", "Was it unset"),
        ('{"cluster": {"master": ["a:1"], "chief": ["b:1"]}, "task": {"type": "master"}}', "chief"),
        ('{"cluster": {"master": ["a:1"]}, "task": {"type": "worker", "index": 0}}', "worker"),
        ('{"cluster": {"master": ["a:1"], "ps": []}, "task": {"type": "master"}}', "ps"),
        ('{"cluster": {"Master": ["a:1"]}, "task": {"type": "Master"}}', "unknown"),
        ('{"cluster": {"master": ["a"]}, "task": {"type": "master", "index": 0}}', "port"),
        ("{'cluster': {}}", "JSON"),
    ],
)
def test_broken_environments_are_explained(change, message):
    from drumbeat.cluster import launched_by

    if change == "null":  # of a ps whose TF_CONFIG was taken away
        env = dict(rehearsed(TRAINS).processes[3].env)
        del env["TF_CONFIG"]
        with pytest.raises(ConfigError, match=message):
            launched_by.find(env)
        return
    with pytest.raises(ConfigError, match=message):
        ClusterSpec.from_env({"TF_CONFIG": change})


def test_the_services_own_example_is_read():
    # As `gcloud ai-platform local train --distributed` wrote it, with parameter servers.
    env = {
        "TF_CONFIG": json.dumps(
            {
                "job": {"job_name": "trainer.task", "args": ["--epochs", "2"]},
                "task": {"type": "worker", "index": 1},
                "cluster": {
                    "chief": ["localhost:27182"],
                    "ps": ["localhost:27183", "localhost:27184"],
                    "worker": ["localhost:27185", "localhost:27186"],
                },
                "environment": "cloud",
            }
        )
    }
    cluster = ClusterSpec.from_env(env)
    assert cluster is not None
    assert cluster.rank_of(cluster.task) == 2
