"""The body with which Run:ai's REST interface is asked for a distributed workload.

Source: runapy 1.224 (DistributedCreationRequest and its models), POST
/api/v1/workloads/distributed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile.problems import unknown
from drumbeat.platforms.platform import Advice, Manifest, NoCommand

FRAMEWORKS = ("MPI", "PyTorch", "TF", "XGBoost", "JAX")
_TOP = """name useGivenNameAsPrefix projectId clusterId templateId spec masterSpec
    masterSpecSameAsWorker""".split()  # noqa: SIM905
_SPEC = """annotations args autoDeletionTimeAfterCompletionSeconds backoffLimit category
    cleanPodPolicy command compute createHomeDir distributedFramework environmentVariables
    exposedUrls image imagePullPolicy imagePullSecrets labels maxReplicas minReplicas
    mpiLauncherCreationPolicy nodeAffinityRequired nodePools nodeType numWorkers podAffinity ports
    preemptibility priorityClass probes relatedUrls restartPolicy security slotsPerWorker
    sshAuthMountPath storage terminateAfterPreemption terminationGracePeriodSeconds tolerations tty
    stdin workingDir""".split()  # noqa: SIM905
_COMPUTE = """cpuCoreLimit cpuCoreRequest cpuMemoryLimit cpuMemoryRequest extendedResources
    gpuDevicesRequest gpuMemoryLimit gpuMemoryRequest gpuPortionLimit gpuPortionRequest
    gpuRequestType largeShmRequest""".split()  # noqa: SIM905
_STORAGE = (
    "configMapVolume dataVolume emptyDirVolume git hostPath nfs pvc s3 secretVolume".split()  # noqa: SIM905
)
_VARIABLE = (
    "name value secret configMap podFieldRef userCredential exclude description".split()  # noqa: SIM905
)
_ENUMS = {
    "distributedFramework": FRAMEWORKS,
    "cleanPodPolicy": ("None", "All", "Running"),
    "restartPolicy": ("Always", "Never", "OnFailure"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
}
_SOURCES = ("value", "secret", "configMap", "podFieldRef", "userCredential")
_PLACEHOLDERS = ("PUT_THE_ID_HERE",)


def recognises(manifest: Manifest) -> bool:
    """Whether its spec names a distributed framework, or it is for a project of Run:ai's."""
    value = manifest.documents[0].value if len(manifest.documents) == 1 else None
    if not isinstance(value, dict) or not isinstance(value.get("spec"), dict):
        return False
    return "distributedFramework" in value["spec"] or (
        "projectId" in value and "numWorkers" in value["spec"]
    )


def read(manifest: Manifest) -> dict[str, Any]:
    """What `runai_manifests.Workload` is made of.

    Raises:
        ConfigError: It is no such body.
    """
    value = manifest.documents[0].value
    spec = value.get("spec") if isinstance(value, dict) else None
    if not isinstance(spec, dict):
        raise ConfigError(f"{manifest.path.name} has no spec; expected a workload of Run:ai's.")
    framework = spec.get("distributedFramework", "TF")
    if framework != "TF":
        raise ConfigError(f"distributedFramework is {shown(framework)}; expected TF.")
    workers = spec.get("numWorkers", 1)
    if isinstance(workers, bool) or not isinstance(workers, int) or not 0 < workers <= 4096:
        raise ConfigError(f"numWorkers is {shown(workers)}; expected a whole number from 1.")
    master = value.get("masterSpec")
    compute = spec.get("compute")
    words = _words(spec)
    if not words:
        raise NoCommand(
            "spec.command is missing: what the image itself starts is not known here. Write "
            "command: drumbeat, and args: run …"
        )
    gpus = compute.get("gpuDevicesRequest", 0) if isinstance(compute, dict) else 0
    return {
        "name": str(value.get("name") or "job"),
        "project": str(value.get("projectId") or "default"),
        "workers": workers,
        "has_master": isinstance(master, dict) or value.get("masterSpecSameAsWorker") is True,
        "words": words,
        "master_words": _words(master) if isinstance(master, dict) else (),
        "env": [_entry(each) for each in _list(spec, "environmentVariables")],
        "gpus": str(gpus),
    }


def problems(manifest: Manifest) -> Iterator[str]:
    """What the interface would refuse, or leave out without a word."""
    value = manifest.documents[0].value
    spec = value.get("spec")
    yield from _unknown(value, _TOP, "")
    for key in ("name", "projectId", "clusterId"):
        given = value.get(key)
        if not given or given in _PLACEHOLDERS:
            yield f"{key} is missing."
        elif not isinstance(given, str):
            yield f"{key} is {shown(given)}; expected text: write it in quotes."
    if value.get("masterSpecSameAsWorker") is True and "masterSpec" in value:
        yield "masterSpec and masterSpecSameAsWorker can't be had together."
    if not isinstance(spec, dict):
        return
    yield from _unknown(spec, _SPEC, "in spec: ")
    if not spec.get("image"):
        yield "spec.image is missing."
    for key, allowed in _ENUMS.items():
        if key in spec and spec[key] not in allowed:
            yield f"spec.{key} is {shown(spec[key])}; expected one of {', '.join(allowed)}."
    compute = spec.get("compute")
    if isinstance(compute, dict):
        yield from _unknown(compute, _COMPUTE, "in spec.compute: ")
    if not isinstance(compute, dict) or compute.get("largeShmRequest") is not True:
        yield Advice(
            "spec.compute.largeShmRequest is not true: /dev/shm is 64 MiB then, where workers "
            "keep snapshots of their state."
        )
    if isinstance(spec.get("storage"), dict):
        yield from _unknown(spec["storage"], _STORAGE, "in spec.storage: ")
    for each in spec.get("environmentVariables") or ():
        if not isinstance(each, dict):
            continue
        yield from _unknown(each, _VARIABLE, "in spec.environmentVariables: ")
        sources = [key for key in _SOURCES if key in each]
        if len(sources) != 1:
            yield (
                f"The variable {shown(each.get('name'))} has {len(sources)} sources; expected one "
                f"of {', '.join(_SOURCES)}."
            )


def _unknown(given: Mapping[str, Any], known: Sequence[str], where: str) -> Iterator[str]:
    for key in given:
        if key not in known:
            yield unknown(key, known, where)


def _words(spec: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key in ("command", "args"):
        given = spec.get(key)
        if given is None:
            continue
        if not isinstance(given, str):
            raise ConfigError(f"{key} is {shown(given)}; expected text.")
        try:
            words += shlex.split(given)
        except ValueError as error:
            raise ConfigError(f"{key} is {shown(given)}: {error}.") from None
        if key == "command" and not words:
            return []
    return words if spec.get("command") else []


def _list(spec: Mapping[str, Any], key: str) -> list[Any]:
    given = spec.get(key) or []
    if not isinstance(given, list):
        raise ConfigError(f"spec.{key} is {shown(given)}; expected a list.")
    return given


def _entry(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or not given["name"]:
        raise ConfigError(
            f"spec.environmentVariables has {shown(given)}; expected {{name: …, value: …}}."
        )
    name = given["name"]
    if "=" in name:
        raise ConfigError(f"{shown(name)} can't be the name of a variable.")
    if "value" in given:
        if not isinstance(given["value"], str):
            raise ConfigError(
                f"The variable {name} is {shown(given['value'])}; expected text: write it in "
                "quotes."
            )
        return {"name": name, "value": given["value"]}
    secret = given.get("secret")
    reference = secret if isinstance(secret, dict) else {}
    return {"name": name, "valueFrom": {"secretKeyRef": dict(reference)}}
