"""What Vertex AI refuses in a CustomJob that its types allow, and what it takes but may surprise.

Source: Vertex AI, "Distributed training", "Configure compute resources", "Use Spot VMs"; the
descriptions in the discovery document; checks of google-cloud-aiplatform 2.7 (worker_spec_utils).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from drumbeat.cluster.wording import listed, shown
from drumbeat.platforms.platform import Advice
from drumbeat.platforms.vertex.spec import (
    OLD_STRATEGIES,
    ContainerSpec,
    CustomJob,
    CustomJobSpec,
    MachineSpec,
    PythonPackageSpec,
    WorkerPoolSpec,
)

MOST_POOLS = 4
MOST_VARIABLES = MOST_PACKAGES = 100
LONGEST_NAME, LONGEST_LABEL = 128, 64
REDUCTION_SERVER = "/vertex-ai-restricted/training/reductionserver"
ROLES = ("the chief", "workers", "parameter servers or a Reduction Server", "evaluators")
# Which machines have an accelerator; no others can be given it.
_FAMILIES = {
    "NVIDIA_TESLA_K80": "n1-",
    "NVIDIA_TESLA_P100": "n1-",
    "NVIDIA_TESLA_V100": "n1-",
    "NVIDIA_TESLA_P4": "n1-",
    "NVIDIA_TESLA_T4": "n1-",
    "NVIDIA_TESLA_A100": "a2-highgpu-",
    "NVIDIA_A100_80GB": "a2-ultragpu-",
    "NVIDIA_L4": "g2-",
    "NVIDIA_H100_80GB": "a3-",
    "NVIDIA_H100_MEGA_80GB": "a3-megagpu-",
    "NVIDIA_H200_141GB": "a3-ultragpu-",
    "NVIDIA_B200": "a4-",
    "NVIDIA_GB200": "a4x-",
    "NVIDIA_RTX_PRO_6000": "g4-",
}
_NETWORK = re.compile(r"projects/(\d+)/global/networks/[a-z0-9-]+")
_LABEL = re.compile(r"[\w-]*")


def is_reduction_server(pool: WorkerPoolSpec) -> bool:
    """Whether its replicas run Google's Reduction Server, and are no parameter servers."""
    image = pool.containerSpec.imageUri if pool.containerSpec else None
    return image is not None and REDUCTION_SERVER in image


def errors(job: CustomJob, *, is_whole: bool) -> list[str]:
    """What is refused, a sentence each.

    Args:
        job: The job.
        is_whole: Whether a CustomJob was read, which has a name, and no CustomJobSpec.
    """
    found = list(_of_job(job)) if is_whole else []
    spec = job.jobSpec
    pools = spec.workerPoolSpecs
    if not pools or pools[0].is_empty:
        found.append("workerPoolSpecs has no first pool; expected one for the chief.")
    if len(pools) > MOST_POOLS:
        found.append(
            f"workerPoolSpecs has {len(pools)} pools; expected at most {MOST_POOLS}: "
            f"{listed(ROLES)}."
        )
    if pools and not pools[0].is_empty and pools[0].replicaCount != 1:
        found.append(
            f"workerPoolSpecs[0].replicaCount is {pools[0].replicaCount}, but the first pool is "
            "the chief alone: expected 1, and the other workers in the second pool."
        )
    for index, pool in enumerate(pools[:MOST_POOLS]):
        if not pool.is_empty:
            found += _of_pool(f"workerPoolSpecs[{index}]", pool, spec)
    return [*found, *_of_spec(spec)]


def advice(job: CustomJob) -> list[str]:
    """What is taken, but may not be what its author means; a sentence each."""
    spec = job.jobSpec
    found: list[str] = []
    said: set[str] = set()
    for index, pool in enumerate(spec.workerPoolSpecs[:MOST_POOLS]):
        where = f"workerPoolSpecs[{index}]"
        machine = pool.machineSpec or MachineSpec()
        if problem := pair_problem(machine.machineType, machine.acceleratorType):
            found.append(f"{where}.machineSpec: {problem}")
        problem = _registry_problem(pool)
        if problem is not None and problem not in said:  # pools mostly have one image
            found.append(f"{where}.containerSpec: {problem}")
            said.add(problem)
        names = {each.name for each in pool.task.env} if pool.task else set()
        for name in sorted(names & {"TF_CONFIG", "CLUSTER_SPEC"}):
            found.append(f"{where} sets {name}, which Vertex AI sets, for each replica another.")
    if spec.scheduling.strategy in OLD_STRATEGIES:
        found.append(
            Advice(
                f"scheduling.strategy is {spec.scheduling.strategy}, an old name of "
                f"{OLD_STRATEGIES[spec.scheduling.strategy]}."
            )
        )
    if len(spec.workerPoolSpecs) > 3 and spec.workerPoolSpecs[3].replicaCount > 1:
        found.append("workerPoolSpecs[3] has several evaluators; TensorFlow expects one.")
    return found + _of_reduction_server(spec)


def pair_problem(machine_type: str | None, accelerator: str | None) -> str | None:
    """Why machines of that type can't have that accelerator; None if they can, for all we know."""
    family = _FAMILIES.get(accelerator or "")
    if machine_type is None or family is None or machine_type.startswith(family):
        return None
    return f"{machine_type} can't have {accelerator}; expected a machine type {family}…"


def _registry_problem(pool: WorkerPoolSpec) -> str | None:
    image = pool.containerSpec.imageUri if pool.containerSpec else None
    host, slash, _ = (image or "").partition("/")
    is_other = bool(slash) and "." in host  # a name without a host is Docker Hub's
    if not is_other or host.endswith(("pkg.dev", "gcr.io", "docker.io")):
        return None
    return (
        f"the image is in {host}; Vertex AI pulls from Artifact Registry and Docker Hub, so copy "
        "it there."
    )


def _of_job(job: CustomJob) -> Iterator[str]:
    if not job.displayName:
        yield "displayName is missing; expected a name for the job."
    elif len(job.displayName) > LONGEST_NAME:
        yield (
            f"displayName has {len(job.displayName)} characters; expected at most {LONGEST_NAME}."
        )
    yield from label_problems(job.labels)


def label_problems(labels: dict[str, str]) -> Iterator[str]:
    """What is wrong with a job's labels, a sentence each."""
    for key, value in labels.items():
        for text in (key, value):
            wrong = not _LABEL.fullmatch(text) or text != text.lower()
            if wrong or len(text) > LONGEST_LABEL:
                yield (
                    f"The label {shown(key)}: {shown(value)} has {shown(text)}; expected small "
                    f"letters, digits, _ and -, at most {LONGEST_LABEL}."
                )


def _of_pool(where: str, pool: WorkerPoolSpec, spec: CustomJobSpec) -> Iterator[str]:
    if pool.replicaCount < 1:
        yield f"{where}.replicaCount is {pool.replicaCount}; expected at least 1, or {{}} for none."
    machine = pool.machineSpec or MachineSpec()
    if not machine.machineType and not spec.persistentResourceId:
        yield f"{where}.machineSpec.machineType is missing; expected one such as n1-standard-8."
    if machine.acceleratorCount and not machine.acceleratorType:
        yield f"{where}.machineSpec has an acceleratorCount and no acceleratorType."
    if machine.acceleratorType and not machine.acceleratorCount:
        yield f"{where}.machineSpec has an acceleratorType and no acceleratorCount."
    affinity = machine.reservationAffinity
    if affinity is not None:
        is_specific = affinity.reservationAffinityType == "SPECIFIC_RESERVATION"
        if is_specific != bool(affinity.key and affinity.values):
            yield (
                f"{where}.machineSpec.reservationAffinity: key and values belong to "
                "SPECIFIC_RESERVATION, and to nothing else."
            )
    if (pool.containerSpec is None) == (pool.pythonPackageSpec is None):
        yield f"{where}: expected either containerSpec or pythonPackageSpec."
    elif pool.task is not None:
        yield from _of_task(where, pool.task)
    for mount in pool.nfsMounts:
        if not mount.path.startswith("/"):
            yield f"{where}.nfsMounts: path is {shown(mount.path)}; expected an export, from /."
    if pool.nfsMounts and not (spec.network or spec.pscInterfaceConfig):
        yield f"{where}.nfsMounts needs the job's network, in which the file server is."


def _of_task(where: str, task: ContainerSpec | PythonPackageSpec) -> Iterator[str]:
    if isinstance(task, ContainerSpec):
        where = f"{where}.containerSpec"
        if not task.imageUri:
            yield f"{where}.imageUri is missing; expected an image of Artifact Registry."
    else:
        where = f"{where}.pythonPackageSpec"
        for key in ("executorImageUri", "pythonModule", "packageUris"):
            if not getattr(task, key):
                yield f"{where}.{key} is missing."
        if len(task.packageUris) > MOST_PACKAGES:
            yield f"{where}.packageUris has {len(task.packageUris)}; at most {MOST_PACKAGES}."
    if len(task.env) > MOST_VARIABLES:
        yield f"{where}.env has {len(task.env)} variables; expected at most {MOST_VARIABLES}."
    names = [each.name for each in task.env]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{where}.env has {name} {names.count(name)} times."
    for name in names:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            yield f"{where}.env: {shown(name)} is no name of a variable."


def _of_spec(spec: CustomJobSpec) -> Iterator[str]:
    if spec.network is not None and not _NETWORK.fullmatch(spec.network):
        yield (
            f"network is {shown(spec.network)}; expected projects/NUMBER/global/networks/NAME, "
            "with the project's number."
        )
    if spec.scheduling.maxWaitDuration and spec.scheduling.strategy != "FLEX_START":
        yield "scheduling.maxWaitDuration belongs to strategy FLEX_START."
    if spec.scheduling.strategy == "SPOT" and any(
        (pool.machineSpec or MachineSpec()).acceleratorType in ("TPU_V4_POD", "TPU_V5_LITEPOD")
        for pool in spec.workerPoolSpecs
    ):
        yield "scheduling.strategy is SPOT, which TPU Pods can't have."
    folder = spec.baseOutputDirectory
    if folder is not None and not re.match(r"gs://[^/]", folder.outputUriPrefix):
        yield (
            f"baseOutputDirectory is {shown(folder.outputUriPrefix)}; expected gs://BUCKET/FOLDER."
        )
    if spec.tensorboard and not (spec.serviceAccount and folder):
        yield "tensorboard needs serviceAccount and baseOutputDirectory as well."


def _of_reduction_server(spec: CustomJobSpec) -> list[str]:
    pools = spec.workerPoolSpecs
    found: list[str] = []
    for index, pool in enumerate(pools):
        if not is_reduction_server(pool):
            continue
        where = f"workerPoolSpecs[{index}]"
        if index != 2:
            found.append(f"{where} is a Reduction Server; it belongs to workerPoolSpecs[2].")
        if pool.machineSpec and pool.machineSpec.acceleratorType:
            found.append(f"{where} is a Reduction Server, which has no use for accelerators.")
        if not any((each.machineSpec or MachineSpec()).acceleratorType for each in pools[:2]):
            found.append(f"{where} is a Reduction Server, but no worker has GPUs, as it needs.")
    return found
