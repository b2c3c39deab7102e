"""AI Platform Training, shut down on 2025-01-31: its config.yaml becomes a CustomJob of Vertex AI.

Source: as `ai_platform_spec` says; Vertex AI, "Prebuilt containers for custom training".
"""

from __future__ import annotations

from typing import Any

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.ai_platform import spec as old
from drumbeat.platforms.ai_platform.spec import OldJob, ReplicaConfig, TrainingInput
from drumbeat.platforms.jobfile.documents import Document
from drumbeat.platforms.platform import (
    Advice,
    Manifest,
    Places,
    Platform,
    Rehearsal,
    Rendered,
)
from drumbeat.platforms.vertex import render as vertex
from drumbeat.platforms.vertex import rules as vertex_rules
from drumbeat.platforms.vertex import spec as vertex_spec
from drumbeat.platforms.yaml_text import Chosen, plain

_PY310 = ("2.8", "2.9", "2.11", "2.12", "2.13", "2.14", "2.15", "2.16", "2.17")
_PY37 = ("1.15", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7")
_NAME = "converted"
# Compute Engine has no K80 since May 2024.
_INSTEAD_OF_K80 = {1: ("NVIDIA_TESLA_T4", 1), 2: ("NVIDIA_TESLA_T4", 2), 4: ("NVIDIA_TESLA_T4", 4)}
_EIGHT_K80 = ("NVIDIA_TESLA_V100", 8)
STUDY = {
    "goal": "studySpec.metrics[].goal",
    "hyperparameterMetricTag": "studySpec.metrics[].metricId",
    "params": "studySpec.parameters",
    "algorithm": "studySpec.algorithm",
    "maxTrials": "maxTrialCount",
    "maxParallelTrials": "parallelTrialCount",
    "maxFailedTrials": "maxFailedTrialCount",
    "enableTrialEarlyStopping": "studySpec.medianAutomatedStoppingSpec",
    "resumePreviousJobId": "nothing: a study can't be resumed by another job",
}
"""Where a HyperparameterTuningJob has what `hyperparameters` said."""


def convert(manifest: Manifest) -> Rendered:
    """The CustomJobSpec of an old job, with notes on what has no equivalent in it.

    Raises:
        ConfigError: The file is no training job, contradicts itself, or asks for what Vertex AI
            has not: TPUs behind a master, runtimes without an image.
    """
    job = old.read(manifest)
    given = job.trainingInput
    if missing := old.missing(given):
        raise ConfigError("\n".join(f"{manifest.path.name}: {text}" for text in missing))
    spec = _spec(given)
    custom_job = vertex_spec.read(Document(value=plain(spec)), vertex.FILE)
    wrong = vertex_rules.errors(custom_job, is_whole=False)
    if wrong := [*wrong, *vertex_rules.label_problems(job.labels)]:
        raise ConfigError("\n".join(wrong))
    files = vertex.files_of(
        spec,
        job.jobId or _NAME,
        region=given.region,
        labels=job.labels,
        kms_key=given.encryptionConfig.kmsKeyName if given.encryptionConfig else None,
    )
    notes = [*_notes(job), *vertex_rules.advice(custom_job)]
    return Rendered(files=files, notes=tuple(notes))


def problems(manifest: Manifest) -> list[str]:
    """What is wrong in an old config, and that nobody runs it any more."""
    try:
        job = old.read(manifest)
    except ConfigError as error:
        return str(error).splitlines()
    found = [
        "AI Platform Training was shut down on 2025-01-31. `drumbeat render ai-platform -f "
        f"{manifest.path.name}` converts the file for Vertex AI."
    ]
    if old.chief_name(job.trainingInput) == "master" and old.has_image(job.trainingInput):
        found.append(
            Advice(
                "useChiefInTfConfig is not set: TF_CONFIG has the task `master`, which TensorFlow "
                "2 does not know (drumbeat takes it for the chief)."
            )
        )
    return [*found, *map(Advice, old.missing(job.trainingInput))]


def _spec(given: TrainingInput) -> dict[str, Any]:
    pools: list[Any] = []
    for role in old.ROLES:
        machine_type, count = old.machine_of(given, role)
        if not count or machine_type is None:
            pools.append(Chosen({}, f"no {_plural(role)}"))
        else:
            pools.append(_pool(given, role, machine_type, count))
    while isinstance(pools[-1], Chosen):
        pools.pop()
    spec: dict[str, Any] = {"workerPoolSpecs": pools}
    if given.scheduling.maxRunningTime is not None:
        spec["scheduling"] = {"timeout": given.scheduling.maxRunningTime}
    for key, value in (
        ("serviceAccount", given.serviceAccount),
        ("network", given.network),
        ("enableWebAccess", given.enableWebAccess),
    ):
        if value:
            spec[key] = value
    if given.jobDir is not None:
        spec["baseOutputDirectory"] = Chosen({"outputUriPrefix": given.jobDir}, "jobDir")
    return spec


def _plural(role: str) -> str:
    return {"parameterServer": "parameter servers"}.get(role, f"{role}s")


def _pool(given: TrainingInput, role: str, machine_type: str, count: int) -> dict[str, Any]:
    config = old.config_of(given, role)
    machine, has_gpus = _machine(role, machine_type, config)
    pool: dict[str, Any] = {"machineSpec": machine, "replicaCount": count}
    disk = config.diskConfig
    if disk is not None:
        pool["diskSpec"] = disk.model_dump(exclude_none=True)
    if old.has_image(given):
        task: dict[str, Any] = {"imageUri": config.imageUri}
        words = [*config.containerArgs, *_args(given)]
        for key, value in (("command", config.containerCommand), ("args", words)):
            if value:
                task[key] = list(value)
        pool["containerSpec"] = task
        return pool
    pool["pythonPackageSpec"] = {
        "executorImageUri": _executor(given, has_gpus),
        "packageUris": list(given.packageUris),
        "pythonModule": given.pythonModule,
        **({"args": words} if (words := _args(given)) else {}),
    }
    return pool


def _args(given: TrainingInput) -> list[str]:
    # The service gave the program its own option after the user's.
    return [*given.args, *(("--job-dir", given.jobDir) if given.jobDir is not None else ())]


def _machine(role: str, name: str, config: ReplicaConfig) -> tuple[dict[str, Any], bool]:
    given = config.acceleratorConfig
    kind, count = (given.type, given.count) if given else (None, 0)
    is_tpu = name == old.TPU or config.tpuTfVersion or (kind or "").startswith("TPU_")
    if is_tpu:
        raise ConfigError(
            f"The {role} has TPUs (cloud_tpu, BASIC_TPU, TPU_… or tpuTfVersion). Vertex AI has no "
            "TPU that a master reaches over the network: there the program runs on the TPU's own "
            "machine, one pool with machineType cloud-tpu or ct5lp-…. Nor does drumbeat train on "
            "TPUs. Expected CPUs or GPUs."
        )
    machine: dict[str, Any] = {"machineType": name}
    if name in old.LEGACY:
        machine_type, kind, count = old.LEGACY[name]
        machine = {"machineType": Chosen(machine_type, f"{name} of AI Platform")}
    if kind in (None, "ACCELERATOR_TYPE_UNSPECIFIED") or not count:
        return machine, False
    value: Any = kind
    if kind == "NVIDIA_TESLA_K80":
        value, count = _INSTEAD_OF_K80.get(count, _EIGHT_K80)
        value = Chosen(value, "NVIDIA_TESLA_K80 before, which Google Cloud has no more")
    return machine | {"acceleratorType": value, "acceleratorCount": count}, True


def _executor(given: TrainingInput, has_gpus: bool) -> Any:
    version = ".".join((given.runtimeVersion or "").split(".")[:2])
    if version not in (*_PY37, *_PY310):
        raise ConfigError(
            f"runtimeVersion is {shown(given.runtimeVersion)}, for which Vertex AI has no prebuilt "
            f"image; it has {listed((*_PY37, *_PY310), 20)}. Choose one of these, or build an "
            "image (`drumbeat render docker`) and name it in masterConfig.imageUri."
        )
    region = given.region or "us"
    where = next((each for each in ("europe", "asia") if region.startswith(each)), "us")
    kind = "gpu" if has_gpus else "cpu"
    suffix = ".py310" if version in _PY310 else ""
    image = f"{where}-docker.pkg.dev/vertex-ai/training/tf-{kind}.{version.replace('.', '-')}"
    return Chosen(f"{image}{suffix}:latest", f"runtimeVersion {given.runtimeVersion}")


def _notes(job: OldJob) -> list[str]:
    given = job.trainingInput
    notes = []
    if given.scaleTier is None:
        notes.append(f"scaleTier is missing: taken for {old.tier_of(given)}.")
    if job.jobId is None:
        notes.append(f"The job has no jobId: its display name is {_NAME}; change --display-name.")
    if given.region is None:
        notes.append("region is missing: give --region to gcloud.")
    notes += _on_tf_config(given)
    if given.runtimeVersion is not None:
        notes.append(
            "Google lists the prebuilt images of these versions as past their end of availability "
            "(2024-09 to 2026-07): where one can't be pulled, build an image and name it in "
            "masterConfig.imageUri."
        )
    if given.pythonVersion is not None:
        notes.append(_on_python(given))
    if given.scheduling.maxWaitTime is not None:
        notes.append(
            "scheduling.maxWaitTime is left out: Vertex AI limits the wait only of jobs with "
            "scheduling.strategy FLEX_START, by maxWaitDuration."
        )
    if given.scheduling.priority is not None:
        notes.append("scheduling.priority is left out: Vertex AI has no priorities of jobs.")
    if given.hyperparameters is not None:
        notes.append(_on_tuning(given.hyperparameters))
    if (given.packageUris or given.pythonModule) and old.has_image(given):
        notes.append("packageUris and pythonModule are left out: the image says what runs.")
    old_gpus = {
        kind
        for role in old.ROLES
        if old.machine_of(given, role)[1]
        for kind in [_old_gpu(given, role)]
    }
    if "NVIDIA_TESLA_K80" in old_gpus:
        notes.append(
            "Google Cloud has no NVIDIA_TESLA_K80 since May 2024: newer GPUs were chosen, see "
            "acceleratorType."
        )
    notes.append(
        "The program runs as it did. To train with drumbeat, use an image that has it, with "
        "`drumbeat run` before the script in the command, and DRUMBEAT_TOKEN_FILE in env "
        "(docs/platforms/vertex.md)."
    )
    return notes


def _on_tf_config(given: TrainingInput) -> list[str]:
    found = []
    if old.chief_name(given) == "master":
        found.append(
            "TF_CONFIG called the first task `master`, Vertex AI calls it `chief`: a script that "
            "looks for `master` must look for `chief`."
        )
    elif given.useChiefInTfConfig:
        found.append("useChiefInTfConfig is left out: on Vertex AI it is always `chief`.")
    if sum(old.machine_of(given, role)[1] for role in old.ROLES) == 1:
        found.append(
            "Vertex AI sets no TF_CONFIG for a single replica, as AI Platform did: a script must "
            "take its absence for one worker."
        )
    return found


def _old_gpu(given: TrainingInput, role: str) -> str | None:
    machine_type, _ = old.machine_of(given, role)
    if machine_type in old.LEGACY:
        return old.LEGACY[machine_type][1]
    config = old.config_of(given, role).acceleratorConfig
    return config.type if config else None


def _on_python(given: TrainingInput) -> str:
    if old.has_image(given):
        return "pythonVersion is left out: the image has its own."
    version = ".".join((given.runtimeVersion or "").split(".")[:2])
    has = "3.10" if version in _PY310 else "3.7"
    same = "is that of the image" if has == given.pythonVersion else f"becomes {has}, the image's"
    return f"pythonVersion {given.pythonVersion} {same}."


def _on_tuning(given: old.HyperparameterSpec) -> str:
    where = [f"{name} is {STUDY[name]}" for name in STUDY if getattr(given, name) not in (None, [])]
    return (
        "hyperparameters has no equivalent in a CustomJob: Vertex AI tunes with a "
        "HyperparameterTuningJob, whose trialJobSpec is this file"
        + (f"; in it, {listed(where, len(where))}." if where else ".")
    )


def recognises(manifest: Manifest) -> bool:
    """Whether one of its documents has trainingInput."""
    return old.document_of(manifest) is not None


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The replicas as processes of this machine, in the place of `local train --distributed`."""
    from drumbeat.platforms.ai_platform import rehearsal as ai_platform_rehearsal

    return ai_platform_rehearsal.rehearse(manifest, places)


PLATFORM = Platform(
    name="ai-platform",
    title="AI Platform Training",
    convert=convert,
    recognises=recognises,
    problems=problems,
    rehearse=rehearse,
)
