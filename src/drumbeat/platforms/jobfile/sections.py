"""The parts of a job file that only one platform has. Defaults are what most jobs need."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
)

from drumbeat.platforms import secret_names
from drumbeat.platforms.jobfile.amounts import Memory, Seconds


def _for_editors(schema: dict[str, Any]) -> None:
    """What the JSON schema of a section says besides: as `_says_something`, text is not blank."""
    for found in schema.get("properties", {}).values():
        for each in (found, *found.get("anyOf", ())):
            if each.get("type") == "string" and not {"pattern", "enum", "const"} & set(each):
                each["pattern"] = r"\S"


class Section(BaseModel):
    """Refuses keys that it does not know."""

    # Strict: true is no number, and "4" none either; editors' JSON schema says the same.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, json_schema_extra=_for_editors
    )

    @field_validator("*")
    @classmethod
    def _says_something(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.strip():
            raise ValueError("expected text; leave the key out where there is none")
        return value


def _to_text(value: object) -> object:
    """Numbers as YAML reads them are words to a program; true and null are not so clear."""
    if isinstance(value, bool) or value is None:
        word = "null" if value is None else str(value).lower()
        raise ValueError(f'expected text; write "{word}" in quotes if it is meant')
    written = getattr(value, "written", None)
    return written or (str(value) if isinstance(value, (int, float)) else value)


Text = Annotated[str, BeforeValidator(_to_text, json_schema_input_type=str | float)]
"""Text; a number is taken as it is written."""
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")


def _check_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            "expected small letters, digits and -, from a letter on, at most 40 of them"
        )
    return value


Name = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"}),
]
"""Small letters, digits and -, from a letter; 40 at most, since platforms add to it."""


class Compose(Section):
    """Docker Compose."""

    build: bool = Field(default=False, description="Build the image from the folder's Dockerfile.")
    gpus: bool = Field(default=False, description="Give each container all GPUs.")


ALPINE = "Alpine has no glibc, and TensorFlow has no wheels without; expected Debian's or Ubuntu's"
_ALPINE = "(^|/)alpine([:@]|$)|[:-]alpine[0-9.]*(@|$)"


def is_alpine(image: str) -> bool:
    """Whether an image is of Alpine Linux, as far as its name tells."""
    return re.search(_ALPINE, image) is not None


def _check_base(value: str) -> str:
    if is_alpine(value):
        raise ValueError(f"{ALPINE}, such as python:3.12-slim")
    return value


class Docker(Section):
    """The Dockerfile."""

    base: (
        Annotated[
            str,
            AfterValidator(_check_base),
            WithJsonSchema({"type": "string", "pattern": r"\S", "not": {"pattern": _ALPINE}}),
        ]
        | None
    ) = Field(default=None, description="Image to start from; by default python:<version>-slim.")
    packages: list[Text] = Field(default=[], description="Debian packages to install.")
    requirements: str | None = Field(
        default=None,
        description="Of Python; requirements.txt where there is one.",
    )
    drumbeat: str | None = Field(
        default=None,
        description="What pip installs: a requirement, a URL or a wheel; this version by default.",
    )


USER = 1000
"""Of the image that `drumbeat render docker` describes."""


def _check_user(value: object) -> object:
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
    if value != "image" and not is_number:
        raise ValueError("expected a user's number, at least 1, or `image` for the image's own")
    return value


User = Annotated[
    int | Literal["image"],
    BeforeValidator(_check_user),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 2**31 - 1}, {"const": "image"}]}
    ),
]


class Kubernetes(Section):
    """What TFJob, TrainJob and JobSet have in common."""

    namespace: Name | None = Field(
        default=None, description="Of the cluster; by default that of kubectl's context."
    )
    context: str | None = Field(default=None, description="Of kubectl's configuration.")
    service_account: str | None = Field(
        default=None, description="As which pods log in at the cloud and the cluster's API."
    )
    user: User = Field(
        default=USER,
        description="Number of the user that pods run as, and of the group that volumes are given "
        "to; `image`: the image's own, which may be root, and on OpenShift the one it chooses.",
    )
    image_pull_secrets: list[Name] = Field(
        default=[], description="Secrets with a login to the image's registry.", examples=[["ghcr"]]
    )
    node_selector: dict[str, Text] = Field(
        default={}, description="Labels that nodes must have.", examples=[{"pool": "spot"}]
    )
    tolerations: list[dict[str, Any]] = Field(
        default=[],
        description="Taints of nodes that pods put up with, as Kubernetes writes them.",
        examples=[[{"key": "nvidia.com/gpu", "operator": "Exists"}]],
    )
    priority_class: str | None = Field(
        default=None, description="Name of a PriorityClass; higher ones preempt lower ones."
    )
    queue: str | None = Field(default=None, description="Kueue's local queue.")
    labels: dict[str, Text] = Field(default={}, description="Of the job's object.")
    annotations: dict[str, Text] = Field(default={}, description="Of the job's object.")
    keep: Seconds | None = Field(
        default=None, description="How long a finished job stays before it is deleted."
    )


class TFJob(Section):
    """Kubeflow's TFJob."""

    chief: bool = Field(
        default=False, description="Rank 0 is a Chief beside the Workers, not Worker 0."
    )


class TrainJob(Section):
    """Kubeflow Trainer v2."""

    runtime: Name | None = Field(
        default=None,
        description="A TrainingRuntime that is there; by default one is rendered with the job.",
    )


class Vertex(Section):
    """Vertex AI."""

    project: str | None = Field(
        default=None, description="Of Google Cloud; by default that of your login."
    )
    region: str | None = Field(
        default=None, description="Where the machines are.", examples=["us-central1"]
    )
    service_account: str | None = Field(
        default=None,
        description="As which the job reads and writes buckets.",
        examples=["train@team.iam.gserviceaccount.com"],
    )
    network: str | None = Field(
        default=None, description="projects/NUMBER/global/networks/NAME, for a private one."
    )
    spot: bool = Field(default=False, description="Spot VMs: cheaper, and taken away at any time.")
    boot_disk: Memory = Field(
        default=100 * 1024**3, description="Of each machine; 100Gi by default."
    )
    ps_machine_type: str | None = Field(
        default=None, description="Of parameter servers and their chief; by default machine_type."
    )
    tensorboard: str | None = Field(
        default=None, description="projects/PROJECT/locations/REGION/tensorboards/ID."
    )
    labels: dict[str, Text] = Field(default={}, description="Of the job, for its costs.")


class RunAI(Section):
    """Run:ai."""

    project: str | None = Field(default=None, description="Its name, for the command line.")
    project_id: str | None = Field(default=None, description="For the REST interface.")
    cluster_id: str | None = Field(default=None, description="For the REST interface.")
    cli: Literal["v1", "v2"] = Field(
        default="v2", description="The command line's version: v1 is runai submit-dist."
    )
    node_pools: list[Text] = Field(
        default=[], description="Pools to take nodes from, the best first."
    )
    gpu_portion: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Part of a GPU for each node, in place of whole ones."
    )


class Slurm(Section):
    """Slurm."""

    partition: str | None = Field(default=None, description="sbatch --partition.")
    account: str | None = Field(default=None, description="sbatch --account, who pays.")
    qos: str | None = Field(default=None, description="sbatch --qos, the quality of service.")
    constraint: str | None = Field(
        default=None, description="sbatch --constraint, what nodes must have.", examples=["a100"]
    )
    setup: list[Text] = Field(
        default=[],
        description="Lines of shell before the job, such as module load cuda.",
    )
    container: str | None = Field(default=None, description="Image for srun --container-image.")
    extra: list[Text] = Field(
        default=[], description="More options of sbatch, such as --reservation=name."
    )


class Ray(Section):
    """Ray."""

    address: str | None = Field(
        default=None, description="Of the jobs' server: http://head:8265; RAY_ADDRESS by default."
    )
    runtime_env: dict[str, Any] = Field(default={}, description="Ray's runtime environment.")
    placement: Literal["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"] = Field(
        default="SPREAD", description="How nodes lie on Ray's: on different ones where it can be."
    )

    @field_validator("runtime_env", mode="before")
    @classmethod
    def _leaves_secrets_alone(cls, value: Any) -> Any:
        if isinstance(value, dict):
            secret_names.refuse(value.get("env_vars"))
        return value


class SageMaker(Section):
    """Amazon SageMaker."""

    role: str | None = Field(default=None, description="ARN of the role that the job has.")
    region: str | None = Field(
        default=None,
        description="Where the machines are; by default that of your login.",
        examples=["eu-west-1"],
    )
    volume: Memory = Field(
        default=50 * 1024**3, description="Disk of each machine; 50Gi by default."
    )
    spot: bool = Field(
        default=False, description="Spot instances: cheaper, and taken away at any time."
    )
    subnets: list[Text] = Field(
        default=[], description="Of a VPC; with security_groups.", examples=[["subnet-0a1b2c3d"]]
    )
    security_groups: list[Text] = Field(
        default=[], description="Of a VPC; with subnets.", examples=[["sg-0a1b2c3d"]]
    )
