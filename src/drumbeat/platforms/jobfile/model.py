"""What a job file says, checked."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from drumbeat.platforms import secret_names
from drumbeat.platforms.jobfile.amounts import Memory, Seconds
from drumbeat.platforms.jobfile.run_options import RunOptions
from drumbeat.platforms.jobfile.sections import (
    Compose,
    Docker,
    Kubernetes,
    Name,
    Ray,
    RunAI,
    SageMaker,
    Section,
    Slurm,
    Text,
    TFJob,
    TrainJob,
    Vertex,
)

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
# The reference of an image, as OCI's distribution spec and Docker have it.
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9-]+(?:(?:\.[A-Za-z0-9-]+)+(?::[0-9]+)?|:[0-9]+)/)?"
    rf"{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
    r"(?:@[A-Za-z][A-Za-z0-9+._-]*:[0-9a-fA-F]+)?"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OWN_VARIABLES = "DRUMBEAT_"
"""Names that begin so are drumbeat's to set, and so is TF_CONFIG."""


def _of_form(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})


def _check_variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("expected the name of a variable: letters, digits and _")
    return value


def _check_path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("expected an absolute path in the container, such as /data")
    return value


def _check_program(value: str) -> str:
    if value.startswith("-"):
        raise ValueError("expected a name that does not begin with -, like an option")
    return value


def _check_image(value: str) -> str:
    if value.strip() and not _IMAGE.fullmatch(value):
        raise ValueError(
            "expected an image's name: small letters, digits, . _ and - between slashes, then :TAG "
            "or @DIGEST, such as ghcr.io/team/digits:1"
        )
    return value


Image = Annotated[str, AfterValidator(_check_image), _of_form(f"^{_IMAGE.pattern}$")]
Program = Annotated[str, AfterValidator(_check_program), _of_form(r"^(?!-)\s*\S")]
Variable = Annotated[str, AfterValidator(_check_variable), _of_form(f"^{_VARIABLE.pattern}$")]
Path = Annotated[str, AfterValidator(_check_path), _of_form("^/")]
_VARIABLES = WithJsonSchema(
    {
        "type": "object",
        "propertyNames": {
            "pattern": f"^{_VARIABLE.pattern}$",
            "not": {
                "anyOf": [
                    {"pattern": f"^(TF_CONFIG$|{OWN_VARIABLES})"},
                    secret_names.SCHEMA,
                ]
            },
        },
        "additionalProperties": {"type": ["string", "number"]},
    }
)


class Devices(Section):
    """What each node computes on; every device has one worker."""

    type: Literal["cpu", "gpu"] = Field(default="cpu", description="gpu: NVIDIA's, by CUDA.")
    count: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1, description="Devices, and so workers, of each node."
    )
    accelerator: str | None = Field(
        default=None,
        description="As the platform calls it.",
        examples=["NVIDIA_L4", "a100", "nvidia.com/gpu"],
    )

    @property
    def gpus(self) -> int:
        """GPUs of each node."""
        return self.count if self.type == "gpu" else 0


class Resources(Section):
    """What each node needs."""

    cpu: Annotated[float, Field(gt=0, le=4096)] | None = Field(
        default=None, description="Cores; parts of one, too.", examples=[4, 0.5]
    )
    memory: Memory | None = Field(default=None, description="Of each node.")
    shm: Memory | None = Field(
        default=None, description="Of /dev/shm, where MPI, NCCL and data loaders meet."
    )


class Mount(Section):
    """A volume."""

    name: Name = Field(description="Kubernetes: of the claim; Compose: of the volume.")
    path: Path = Field(description="Where it is in the container.", examples=["/data"])
    source: str | None = Field(
        default=None,
        description="A folder of the host, or SERVER:/EXPORT of NFS.",
        examples=["/mnt/data", "nas:/exports/data"],
    )
    read_only: bool = Field(default=False, description="Nothing can be written to it.")


class Secret(Section):
    """A secret by its name; what is in it is never in the job file.

    With `env` alone the variable holds its value, with `path` its files lie in that folder, and
    with both the variable holds the name of the file `path`/`key`.
    """

    name: Name = Field(description="Of the secret, as the platform knows it.")
    key: str | None = Field(default=None, description="Which entry; by default the secret's name.")
    env: Variable | None = Field(
        default=None,
        description="The variable that holds it; with path, the name of its file.",
        examples=["GOOGLE_APPLICATION_CREDENTIALS"],
    )
    path: Path | None = Field(
        default=None, description="The folder of its files.", examples=["/secrets/gcp"]
    )

    @model_validator(mode="after")
    def _has_a_place(self) -> Secret:
        if self.env is None and self.path is None:
            raise ValueError("expected env: (a variable), path: (a folder), or both")
        return self

    @property
    def entry(self) -> str:
        """Which entry of the secret."""
        return self.key or self.name

    @property
    def file(self) -> str:
        """The file that the entry is in, under `path`."""
        return str(PurePosixPath(self.path or "/") / self.entry)


class Timeouts(Section):
    """Deadlines: seconds, or 90m, 24h."""

    start: Seconds | None = Field(default=None, description="Everything before the script starts.")
    collective: Seconds | None = Field(default=None, description="Workers wait for each other.")
    total: Seconds | None = Field(default=None, description="The platform ends the job after it.")


class Job(Section):
    """One training job, for every platform.

    Attributes are the keys of `drumbeat.yaml`.
    """

    name: Name = Field(
        description="Of the job: small letters, digits and -, at most 40.", examples=["digits"]
    )
    script: Program | None = Field(
        default=None, description="The script, in the image's folder.", examples=["train.py"]
    )
    module: Program | None = Field(
        default=None, description="Or a module, in place of a script.", examples=["package.train"]
    )
    args: list[Text] = Field(
        default=[],
        description="The script's own; {data}, {output} and {name} stand for these.",
        examples=[["--epochs", 3, "--data", "{data}"]],
    )
    image: Image | None = Field(
        default=None,
        description="The container's, with a tag or digest.",
        examples=["ghcr.io/team/digits:1"],
    )
    workers: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=2, description="Training processes, one for each device, the chief among them."
    )
    min_workers: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Go on without lost nodes while so many workers are left."
    )
    ps: Annotated[int, Field(ge=0, le=1024)] = Field(default=0, description="Parameter servers.")
    evaluator: bool = Field(default=False, description="One more process, which evaluates.")
    devices: Devices = Devices()
    machine_type: str | None = Field(
        default=None, description="Of each node.", examples=["n1-standard-8", "ml.g5.xlarge"]
    )
    resources: Resources = Resources()
    environment: Annotated[dict[Variable, Text], _VARIABLES] = Field(
        default={},
        description="Variables of the script; secrets are in `secrets`.",
        examples=[{"TF_CPP_MIN_LOG_LEVEL": "1"}],
    )
    mounts: list[Mount] = Field(default=[], description="Volumes in the container.")
    secrets: list[Secret] = Field(
        default=[], description="By name; what is in them is never in the job file."
    )
    data: str | None = Field(
        default=None,
        description="Path or URL; DRUMBEAT_DATA in the script.",
        examples=["/data/digits", "gs://bucket/digits"],
    )
    output: str | None = Field(
        default=None,
        description="Path or URL; DRUMBEAT_OUTPUT in the script, and for backups.",
        examples=["gs://bucket/runs/digits"],
    )
    restarts: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="In a row without progress."
    )
    timeouts: Timeouts = Timeouts()
    run: RunOptions = Field(default=RunOptions(), description="Other options of `drumbeat run`.")

    compose: Compose = Compose()
    docker: Docker = Docker()
    kubernetes: Kubernetes = Kubernetes()
    tfjob: TFJob = TFJob()
    trainjob: TrainJob = TrainJob()
    vertex: Vertex = Vertex()
    runai: RunAI = RunAI()
    slurm: Slurm = Slurm()
    ray: Ray = Ray()
    sagemaker: SageMaker = SageMaker()

    @field_validator("environment", mode="before")
    @classmethod
    def _leaves_ours_and_secrets_alone(cls, value: Any) -> Any:
        for name in value if isinstance(value, dict) else ():
            if name == "TF_CONFIG" or str(name).startswith(OWN_VARIABLES):
                raise ValueError(f"{name} is set by drumbeat or the platform; leave it out")
        # Before any other message could show its value.
        secret_names.refuse(value)
        return value

    @field_validator("args", mode="before")
    @classmethod
    def _has_no_secrets(cls, value: Any) -> Any:
        for index, word in enumerate(value if isinstance(value, list) else ()):
            secret_names.refuse_text(f"word {index}", word)
        return value

    @field_validator("data", "output", mode="before")
    @classmethod
    def _are_no_secrets(cls, value: Any) -> Any:
        secret_names.refuse_text("it", value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Job:
        if (self.script is None) == (self.module is None):
            raise ValueError("expected either script: (a file) or module: (a module's name)")
        for name, value in (("data", self.data), ("output", self.output)):
            if value is None and any(f"{{{name}}}" in word for word in self.args):
                raise ValueError(f"args has {{{name}}}, but there is no {name}: in the job file")
        if self.workers % self.devices.count:
            raise ValueError(
                f"workers is {self.workers}, and each node has {self.devices.count} devices with a "
                f"worker each; expected a number of workers that {self.devices.count} divides"
            )
        if self.min_workers is not None and self.min_workers > self.workers:
            raise ValueError(
                f"min_workers is {self.min_workers}, but workers is {self.workers}; expected at "
                "most as many"
            )
        if self.min_workers is not None and self.ps:
            raise ValueError("min_workers can't be had with ps, whose state no snapshot has")
        return self

    @property
    def nodes(self) -> int:
        """How many machines, pods or tasks have workers."""
        return self.workers // self.devices.count
