"""Vertex AI's CustomJobSpec: its fields, and the rules that neither gcloud nor its types check.

Source: discovery document aiplatform v1, revision 20261106 (GoogleCloudAiplatformV1CustomJob and
what is in it); Vertex AI, "Distributed training".
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from drumbeat.platforms.jobfile import problems
from drumbeat.platforms.jobfile.documents import Document, KeyPath
from drumbeat.platforms.platform import Manifest

ACCELERATORS = (
    "NVIDIA_TESLA_K80",
    "NVIDIA_TESLA_P100",
    "NVIDIA_TESLA_V100",
    "NVIDIA_TESLA_P4",
    "NVIDIA_TESLA_T4",
    "NVIDIA_TESLA_A100",
    "NVIDIA_A100_80GB",
    "NVIDIA_L4",
    "NVIDIA_H100_80GB",
    "NVIDIA_H100_MEGA_80GB",
    "NVIDIA_H200_141GB",
    "NVIDIA_B200",
    "NVIDIA_GB200",
    "NVIDIA_RTX_PRO_6000",
    "TPU_V2",
    "TPU_V3",
    "TPU_V4_POD",
    "TPU_V5_LITEPOD",
)
STRATEGIES = ("STANDARD", "SPOT", "FLEX_START")
OLD_STRATEGIES = {"ON_DEMAND": "STANDARD", "LOW_COST": "SPOT", "STRATEGY_UNSPECIFIED": "STANDARD"}
_DURATION = re.compile(r"\d{1,9}(\.\d{1,9})?s", re.ASCII)


def _check_duration(value: str) -> str:
    if not _DURATION.fullmatch(value):
        raise ValueError('expected seconds with an s, such as "7200s"')
    return value


def _check_accelerator(value: str) -> str:
    if value not in (*ACCELERATORS, "ACCELERATOR_TYPE_UNSPECIFIED"):
        raise ValueError(meant_accelerator(value))
    return value


def meant_accelerator(value: str) -> str:
    """Which one `value` stands for: T4, nvidia-tesla-t4 and NVIDIA_T4 are all NVIDIA_TESLA_T4."""
    model = value.upper().replace("-", "_").rpartition("_")[2]
    named = [name for name in ACCELERATORS if model in name.split("_")]
    if model == "80GB":  # of several models
        named = []
    return f"did you mean {named[0]}?" if named else problems.meant(value, ACCELERATORS)


def _check_strategy(value: str) -> str:
    if value not in (*STRATEGIES, *OLD_STRATEGIES):
        raise ValueError(problems.meant(value, STRATEGIES))
    return value


Duration = Annotated[str, AfterValidator(_check_duration)]
Count = Annotated[int, Field(ge=0)]


class Message(BaseModel):
    """A message of Google's JSON, where int64 are text or numbers; refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ReservationAffinity(Message):
    """Which reservation the machines come from."""

    reservationAffinityType: Literal[
        "TYPE_UNSPECIFIED", "NO_RESERVATION", "ANY_RESERVATION", "SPECIFIC_RESERVATION"
    ]
    key: str | None = None
    values: list[str] = []


class MachineSpec(Message):
    """A pool's machines."""

    machineType: str | None = None
    acceleratorType: Annotated[str, AfterValidator(_check_accelerator)] | None = None
    acceleratorCount: Count = 0
    tpuTopology: str | None = None
    gpuPartitionSize: str | None = None
    reservationAffinity: ReservationAffinity | None = None


class DiskSpec(Message):
    """The boot disk of each."""

    bootDiskType: str | None = None
    bootDiskSizeGb: Count | None = None


class NfsMount(Message):
    """A folder of a file server, which replicas find under /mnt/nfs/."""

    server: str
    path: str
    mountPoint: str


class LustreMount(Message):
    """A Lustre file system, which replicas find under /mnt/lustre/."""

    instanceIp: str
    volumeHandle: str
    filesystem: str
    mountPoint: str


class EnvVar(Message):
    """A variable."""

    name: str
    value: str = ""


class ContainerSpec(Message):
    """An image of one's own."""

    imageUri: str | None = None
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []


class PythonPackageSpec(Message):
    """A Python package that one of Google's images installs and runs."""

    executorImageUri: str | None = None
    packageUris: list[str] = []
    pythonModule: str | None = None
    args: list[str] = []
    env: list[EnvVar] = []


class WorkerPoolSpec(Message):
    """Replicas that are alike; an empty one stands for a pool that is left out."""

    machineSpec: MachineSpec | None = None
    replicaCount: Count = 0
    diskSpec: DiskSpec | None = None
    nfsMounts: list[NfsMount] = []
    lustreMounts: list[LustreMount] = []
    containerSpec: ContainerSpec | None = None
    pythonPackageSpec: PythonPackageSpec | None = None

    @property
    def task(self) -> ContainerSpec | PythonPackageSpec | None:
        """What its replicas run."""
        return self.containerSpec or self.pythonPackageSpec

    @property
    def is_empty(self) -> bool:
        """Whether the pool is left out."""
        return not self.model_fields_set


class Scheduling(Message):
    """When, for how long, and on which kind of machines."""

    timeout: Duration | None = None
    restartJobOnWorkerRestart: bool = False
    disableRetries: bool = False
    strategy: Annotated[str, AfterValidator(_check_strategy)] = "STANDARD"
    maxWaitDuration: Duration | None = None


class GcsDestination(Message):
    """A folder of Cloud Storage."""

    outputUriPrefix: str


class DnsPeeringConfig(Message):
    """A zone whose names the replicas may resolve."""

    domain: str
    targetProject: str
    targetNetwork: str


class PscInterfaceConfig(Message):
    """Private Service Connect."""

    networkAttachment: str | None = None
    dnsPeeringConfigs: list[DnsPeeringConfig] = []


def _to_list(value: object) -> object:
    """Gcloud's own example has one pool without a list, and gcloud makes one of it."""
    return [value] if isinstance(value, dict) else value


class CustomJobSpec(Message):
    """What `gcloud ai custom-jobs create --config` reads."""

    workerPoolSpecs: Annotated[list[WorkerPoolSpec], BeforeValidator(_to_list)] = []
    scheduling: Scheduling = Scheduling()
    serviceAccount: str | None = None
    network: str | None = None
    reservedIpRanges: list[str] = []
    pscInterfaceConfig: PscInterfaceConfig | None = None
    baseOutputDirectory: GcsDestination | None = None
    protectedArtifactLocationId: str | None = None
    tensorboard: str | None = None
    enableWebAccess: bool = False
    enableDashboardAccess: bool = False
    experiment: str | None = None
    experimentRun: str | None = None
    persistentResourceId: str | None = None
    models: list[str] = []


class EncryptionSpec(Message):
    """A key of one's own."""

    kmsKeyName: str


class CustomJob(Message):
    """What the service's API reads, without what only the service writes."""

    displayName: str | None = None
    jobSpec: CustomJobSpec
    labels: dict[str, str] = {}
    encryptionSpec: EncryptionSpec | None = None


WRITTEN_BY_SERVICE = (
    "name",
    "state",
    "createTime",
    "startTime",
    "endTime",
    "updateTime",
    "error",
    "webAccessUris",
    "satisfiesPzs",
    "satisfiesPzi",
)
"""Keys of a CustomJob that `gcloud ai custom-jobs describe` shows and nobody writes."""


def document_of(manifest: Manifest) -> Document | None:
    """The manifest's CustomJob or CustomJobSpec, keys in camelCase; None where there is none."""
    for each in manifest.documents:
        document = camel(each)
        if isinstance(document.value, dict) and {"workerPoolSpecs", "jobSpec"} & set(
            document.value
        ):
            return document
    return None


def read(document: Document, name: str) -> CustomJob:
    """The document as a CustomJob; one that is a CustomJobSpec has no display name.

    Args:
        document: As `document_of` found it.
        name: As messages call its file.

    Raises:
        ConfigError: It is none; a line for each problem.
    """
    if "jobSpec" not in document.value:
        return CustomJob(jobSpec=problems.check(CustomJobSpec, document, name))
    value = {key: item for key, item in document.value.items() if key not in WRITTEN_BY_SERVICE}
    return problems.check(CustomJob, Document(value=value, lines=document.lines), name)


def camel(document: Document) -> Document:
    """The document with keys as the API's JSON has them: the service takes snake_case, too."""
    lines: dict[KeyPath, int] = {
        tuple(_camel(each) if isinstance(each, str) else each for each in path): line
        for path, line in document.lines.items()
    }
    return Document(value=_camel_keys(document.value), lines=lines)


def _camel_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            _camel(key): item if key == "labels" else _camel_keys(item)
            for key, item in value.items()
        }
    return [_camel_keys(item) for item in value] if isinstance(value, list) else value


def _camel(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])_([a-z])", lambda found: found[1].upper(), key)
