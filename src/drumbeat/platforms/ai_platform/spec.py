"""The config.yaml of AI Platform Training, which is no more: its fields, tiers and machine types.

Source: discovery document ml v1, revision 20251213 (GoogleCloudMlV1__Job and what is in it). The
machines that tiers and legacy types stood for: the service's page "Specifying machine types"; its
page "Pricing" counts the same training units for each type and for its Compute Engine machine with
GPUs, and for the tiers' sums (STANDARD_1 5.92, PREMIUM_1 49.32).
"""

from __future__ import annotations

from typing import Any, Literal

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile import problems
from drumbeat.platforms.jobfile.documents import Document
from drumbeat.platforms.platform import Manifest
from drumbeat.platforms.vertex.spec import Count, Duration, Message

ROLES = ("master", "worker", "parameterServer", "evaluator")
"""In the order of Vertex AI's pools."""
TPU = "cloud_tpu"
LEGACY: dict[str, tuple[str, str | None, int]] = {
    "standard": ("n1-standard-4", None, 0),
    "large_model": ("n1-highmem-8", None, 0),
    "complex_model_s": ("n1-highcpu-8", None, 0),
    "complex_model_m": ("n1-highcpu-16", None, 0),
    "complex_model_l": ("n1-highcpu-32", None, 0),
    "standard_gpu": ("n1-standard-8", "NVIDIA_TESLA_K80", 1),
    "complex_model_m_gpu": ("n1-standard-16", "NVIDIA_TESLA_K80", 4),
    "complex_model_l_gpu": ("n1-standard-32", "NVIDIA_TESLA_K80", 8),
    "standard_p100": ("n1-standard-8", "NVIDIA_TESLA_P100", 1),
    "complex_model_m_p100": ("n1-standard-16", "NVIDIA_TESLA_P100", 4),
    "standard_v100": ("n1-standard-8", "NVIDIA_TESLA_V100", 1),
    "large_model_v100": ("n1-highmem-8", "NVIDIA_TESLA_V100", 1),
    "complex_model_m_v100": ("n1-standard-16", "NVIDIA_TESLA_V100", 4),
    "complex_model_l_v100": ("n1-standard-32", "NVIDIA_TESLA_V100", 8),
}
"""Compute Engine's machine, GPU and how many, by legacy type."""
TIERS: dict[str, dict[str, tuple[str, int]]] = {
    "BASIC": {"master": ("standard", 1)},
    "BASIC_GPU": {"master": ("standard_gpu", 1)},
    "BASIC_TPU": {"master": ("standard", 1), "worker": (TPU, 1)},
    "STANDARD_1": {
        "master": ("complex_model_s", 1),
        "worker": ("complex_model_s", 4),
        "parameterServer": ("standard", 3),
    },
    "PREMIUM_1": {
        "master": ("complex_model_m", 1),
        "worker": ("complex_model_m", 19),
        "parameterServer": ("large_model", 11),
    },
}
"""Type and count by role."""
WRITTEN_BY_SERVICE = (
    "createTime",
    "startTime",
    "endTime",
    "state",
    "errorMessage",
    "trainingOutput",
    "predictionOutput",
    "etag",
    "jobPosition",
)
"""Keys of a job that `gcloud ai-platform jobs describe` showed and nobody wrote."""


class AcceleratorConfig(Message):
    """GPUs of a replica."""

    count: Count = 0
    type: Literal[
        "ACCELERATOR_TYPE_UNSPECIFIED",
        "NVIDIA_TESLA_K80",
        "NVIDIA_TESLA_P100",
        "NVIDIA_TESLA_V100",
        "NVIDIA_TESLA_P4",
        "NVIDIA_TESLA_T4",
        "NVIDIA_TESLA_A100",
        "TPU_V2",
        "TPU_V3",
        "TPU_V2_POD",
        "TPU_V3_POD",
        "TPU_V4_POD",
    ]


class DiskConfig(Message):
    """Its boot disk."""

    bootDiskType: str | None = None
    bootDiskSizeGb: Count | None = None


class ReplicaConfig(Message):
    """What the replicas of a role run, and on what."""

    acceleratorConfig: AcceleratorConfig | None = None
    imageUri: str | None = None
    tpuTfVersion: str | None = None
    diskConfig: DiskConfig | None = None
    containerCommand: list[str] = []
    containerArgs: list[str] = []


class Scheduling(Message):
    """For how long, and who is first."""

    maxRunningTime: Duration | None = None
    maxWaitTime: Duration | None = None
    priority: int | None = None


class EncryptionConfig(Message):
    """A key of one's own."""

    kmsKeyName: str


class ParameterSpec(Message):
    """A hyperparameter to tune."""

    parameterName: str
    type: str
    minValue: float | None = None
    maxValue: float | None = None
    categoricalValues: list[str] = []
    discreteValues: list[float] = []
    scaleType: str | None = None


class HyperparameterSpec(Message):
    """How they are tuned."""

    goal: str | None = None
    params: list[ParameterSpec] = []
    maxTrials: Count | None = None
    maxParallelTrials: Count | None = None
    maxFailedTrials: Count | None = None
    hyperparameterMetricTag: str | None = None
    resumePreviousJobId: str | None = None
    enableTrialEarlyStopping: bool | None = None
    algorithm: str | None = None


class TrainingInput(Message):
    """The job."""

    scaleTier: (
        Literal["BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU", "CUSTOM"] | None
    ) = None
    region: str | None = None
    masterType: str | None = None
    masterConfig: ReplicaConfig = ReplicaConfig()
    workerType: str | None = None
    workerCount: Count = 0
    workerConfig: ReplicaConfig = ReplicaConfig()
    parameterServerType: str | None = None
    parameterServerCount: Count = 0
    parameterServerConfig: ReplicaConfig = ReplicaConfig()
    evaluatorType: str | None = None
    evaluatorCount: Count = 0
    evaluatorConfig: ReplicaConfig = ReplicaConfig()
    packageUris: list[str] = []
    pythonModule: str | None = None
    args: list[str] = []
    hyperparameters: HyperparameterSpec | None = None
    jobDir: str | None = None
    runtimeVersion: str | None = None
    pythonVersion: str | None = None
    encryptionConfig: EncryptionConfig | None = None
    scheduling: Scheduling = Scheduling()
    network: str | None = None
    serviceAccount: str | None = None
    useChiefInTfConfig: bool = False
    enableWebAccess: bool = False


class OldJob(Message):
    """A file of AI Platform Training: its job, or the job's trainingInput alone."""

    trainingInput: TrainingInput
    jobId: str | None = None
    labels: dict[str, str] = {}


def document_of(manifest: Manifest) -> Document | None:
    """The document that is a job of AI Platform Training; None where there is none."""
    for each in manifest.documents:
        if isinstance(each.value, dict) and {"trainingInput", "predictionInput"} & set(each.value):
            return each
    return None


def read(manifest: Manifest) -> OldJob:
    """The file's job, checked.

    Raises:
        ConfigError: It is none, or contradicts itself; a line for each problem.
    """
    document, name = document_of(manifest), manifest.path.name
    if document is None:
        raise ConfigError(
            f"{name} is no job of AI Platform Training; expected the key trainingInput."
        )
    if "predictionInput" in document.value:
        raise ConfigError(f"{name} is a batch prediction; only training jobs are converted.")
    value = {key: item for key, item in document.value.items() if key not in WRITTEN_BY_SERVICE}
    job: OldJob = problems.check(OldJob, Document(value=value, lines=document.lines), name)
    if wrong := _errors(job.trainingInput):
        raise ConfigError("\n".join(f"{name}: {text}" for text in wrong))
    return job


def missing(given: TrainingInput) -> list[str]:
    """What the job can't do without and gcloud also took from its own flags, a sentence each."""
    if has_image(given):
        return []
    if given.runtimeVersion is None:
        return [
            "Expected either masterConfig.imageUri or runtimeVersion; gcloud took them from "
            "--master-image-uri and --runtime-version, too."
        ]
    return [
        f"{key} is missing; gcloud took it from {flag}."
        for key, flag in (("pythonModule", "--module-name"), ("packageUris", "--package-path"))
        if not getattr(given, key)
    ]


def described(manifest: Manifest) -> Any:
    """TrainingInput as it stands in the file, which TF_CONFIG repeats."""
    document = document_of(manifest)
    return document.value.get("trainingInput") if document is not None else None


def tier_of(given: TrainingInput) -> str:
    """The scale tier: where none is said, CUSTOM if there are machine types."""
    if given.scaleTier is not None:
        return given.scaleTier
    return "CUSTOM" if given.masterType else "BASIC"


def machine_of(given: TrainingInput, role: str) -> tuple[str | None, int]:
    """Type and number of a role's replicas; 0 where it has none."""
    tier = tier_of(given)
    if tier != "CUSTOM":
        return TIERS[tier].get(role, (None, 0))
    count = 1 if role == "master" else getattr(given, f"{role}Count")
    return getattr(given, f"{role}Type"), count


def config_of(given: TrainingInput, role: str) -> ReplicaConfig:
    """A role's configuration; its image is the master's where it has none of its own."""
    config: ReplicaConfig = getattr(given, f"{role}Config")
    if config.imageUri is None and given.masterConfig.imageUri is not None:
        return config.model_copy(update={"imageUri": given.masterConfig.imageUri})
    return config


def has_image(given: TrainingInput) -> bool:
    """Whether it is a job of a container of one's own."""
    return given.masterConfig.imageUri is not None


def chief_name(given: TrainingInput) -> str:
    """What TF_CONFIG called the master: by the runtime's version, or by useChiefInTfConfig."""
    if has_image(given):
        return "chief" if given.useChiefInTfConfig else "master"
    major = (given.runtimeVersion or "1").partition(".")[0]
    return "chief" if major.isdigit() and int(major) >= 2 else "master"


def _errors(given: TrainingInput) -> list[str]:
    tier, found = tier_of(given), []
    for role in ROLES:
        found += _of_role(given, role, tier)
    types = {name for role in ROLES if (name := machine_of(given, role)[0]) is not None}
    legacy = {name for name in types if name in LEGACY}
    if legacy and types - legacy - {TPU}:
        found.append(
            f"Types are of both families: {listed(sorted(legacy))} and "
            f"{listed(sorted(types - legacy))}; expected one."
        )
    if has_image(given) and given.runtimeVersion is not None:
        found.append("Expected either masterConfig.imageUri or runtimeVersion, not both.")
    commands = any(
        config_of(given, role).containerCommand or config_of(given, role).containerArgs
        for role in ROLES
    )
    if given.args and commands:
        found.append("args can't be had with containerCommand or containerArgs.")
    if commands and not has_image(given):
        found.append("containerCommand and containerArgs need masterConfig.imageUri.")
    others = [role for role in ROLES[1:] if getattr(given, f"{role}Config").imageUri]
    if others and not has_image(given):
        found.append(f"{others[0]}Config.imageUri needs masterConfig.imageUri as well.")
    if len(given.packageUris) > 100:
        found.append(f"packageUris has {len(given.packageUris)}; expected at most 100.")
    if given.jobDir is not None and not given.jobDir.startswith("gs://"):
        found.append(f"jobDir is {shown(given.jobDir)}; expected gs://BUCKET/FOLDER.")
    priority = given.scheduling.priority
    if priority is not None and not 0 <= priority <= 1000:
        found.append(f"scheduling.priority is {priority}; expected 0 to 1000.")
    return found


def _of_role(given: TrainingInput, role: str, tier: str) -> list[str]:
    type_key, count_key = f"{role}Type", f"{role}Count"
    said = getattr(given, type_key)
    count = getattr(given, count_key, 0)
    if tier != "CUSTOM":
        return [
            f"{key} is {shown(value)}, but scaleTier is {tier}; only CUSTOM has it."
            for key, value in ((type_key, said), (count_key, count))
            if value
        ]
    found = []
    if said is None and (role == "master" or count):
        found.append(f"{type_key} is missing, which scaleTier CUSTOM needs.")
    accelerators = config_of(given, role).acceleratorConfig
    if said in LEGACY and accelerators is not None:
        found.append(f"{role}Config.acceleratorConfig can't be had with the legacy type {said}.")
    if said and said not in LEGACY and said != TPU and "-" not in said:
        found.append(
            f"{type_key} is {shown(said)}; {problems.meant(said, [*LEGACY, 'n1-standard-8'])}"
        )
    return found
