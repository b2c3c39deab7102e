"""Indexed Jobs and JobSets: their pods, and what Kubernetes and JobSet's webhook refuse.

Source: Kubernetes 1.34 (pkg/controller/job, batch/v1); kubernetes-sigs/jobset v0.12 (pkg/webhooks,
pkg/util/placement).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.kubernetes.manifests import checking
from drumbeat.platforms.kubernetes.manifests.names import (
    JOB_SPEC,
    MAX_LABEL,
    label_problem,
    no_mappings,
    unknown_keys,
)
from drumbeat.platforms.kubernetes.manifests.pod import INDEX_KEY, MAX_PODS, Pod
from drumbeat.platforms.kubernetes.manifests.reading import (
    inside,
    mapping,
    objects,
    sequence,
    text,
    texts,
    whole,
)
from drumbeat.platforms.kubernetes.manifests.rehearsing import rehearsal
from drumbeat.platforms.platform import Advice, Manifest, Places, Rehearsal

JOB_API, JOB = "batch/v1", "Job"
API, KIND = "jobset.x-k8s.io/v1alpha2", "JobSet"
INDEX = "JOB_COMPLETION_INDEX"
_SUFFIX = "-abcde"
"""Kubernetes puts five letters behind a pod's name."""
_SPEC = (
    "replicatedJobs",
    "network",
    "successPolicy",
    "failurePolicy",
    "startupPolicy",
    "suspend",
    "coordinator",
    "managedBy",
    "ttlSecondsAfterFinished",
    "volumeClaimPolicies",
)
_REPLICATED = ("name", "groupName", "replicas", "template", "dependsOn")
_ORDER = "Here all pods start at once; there dependsOn and startupPolicy put them into an order."


def recognises(manifest: Manifest) -> bool:
    """Whether one of its objects is a JobSet or a Job."""
    return bool(objects(manifest, KIND) or objects(manifest, JOB))


def problems(manifest: Manifest) -> list[str]:
    """What would be refused in its JobSets and Jobs, or done otherwise than meant."""
    return checking.collected(_problems, manifest)


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The pods of its JobSet or Job as processes, with the variables that they would have.

    Raises:
        ConfigError: There are several of them, or what a pod runs isn't known here.
    """
    sets, alone = objects(manifest, KIND), objects(manifest, JOB)
    if len(sets) + len(alone) != 1:
        raise ConfigError(
            f"{manifest.path.name} has {len(sets)} JobSets and {len(alone)} Jobs; expected one."
        )
    if alone:
        return rehearsal("jobset", pods_of_job(alone[0]), places)
    spec = mapping(sets[0].get("spec"))
    has_order = spec.get("startupPolicy") or any(
        mapping(each).get("dependsOn") for each in sequence(spec.get("replicatedJobs"))
    )
    return rehearsal("jobset", pods_of_set(sets[0]), places, [_ORDER] if has_order else [])


def pods_of_job(job: Mapping[str, Any]) -> list[Pod]:
    """The pods of a Job, by their index.

    Raises:
        ConfigError: It has none, or too many, or no container.
    """
    name = text(inside(job, "metadata", "name")) or "job"
    namespace = text(inside(job, "metadata", "namespace")) or "default"
    subdomain = text(inside(job, "spec", "template", "spec", "subdomain"))
    return _pods(name, namespace, subdomain, {"completionMode": None, **mapping(job.get("spec"))})


def pods_of_set(jobset: Mapping[str, Any]) -> list[Pod]:
    """The pods of a JobSet: of one replicated job after the other, by their index.

    Raises:
        ConfigError: As `pods_of_job`.
    """
    name = text(inside(jobset, "metadata", "name")) or "jobset"
    namespace = text(inside(jobset, "metadata", "namespace")) or "default"
    spec = mapping(jobset.get("spec"))
    targets = sequence(inside(spec, "successPolicy", "targetReplicatedJobs"))
    found: list[Pod] = []
    for each in map(mapping, sequence(spec.get("replicatedJobs"))):
        kind, replicas = text(each.get("name")), whole(each.get("replicas"), 1)
        job = mapping(inside(each, "template", "spec"))
        for number in range(min(replicas, MAX_PODS)):
            pods = _pods(f"{name}-{kind}-{number}", namespace, _subdomain(jobset), job)
            names = f"{kind}-{number}" if replicas > 1 else kind
            labels = {"jobset-name": name, "replicatedjob-name": kind, "job-index": str(number)}
            found += [
                replace(
                    pod,
                    name=f"{names}-{index}",
                    is_main=not targets or kind in targets,
                    labels={
                        **pod.labels,
                        **{f"jobset.sigs.k8s.io/{key}": item for key, item in labels.items()},
                    },
                )
                for index, pod in enumerate(pods)
            ]
            if len(found) > MAX_PODS:
                break
    if not 0 < len(found) <= MAX_PODS:
        raise ConfigError(f"The JobSet {name} has {len(found)} pods; expected 1 to {MAX_PODS}.")
    return found


def _pods(name: str, namespace: str, subdomain: str, job: Mapping[str, Any]) -> list[Pod]:
    parallel = whole(job.get("parallelism"), 1)
    count = whole(job.get("completions"), parallel)
    if not 0 < count <= MAX_PODS:
        raise ConfigError(f"The Job {name} has {count} pods; expected 1 to {MAX_PODS}.")
    # JobSet's webhook makes its Jobs indexed where they don't say.
    indexed = job.get("completionMode", "Indexed") == "Indexed"
    template = mapping(job.get("template"))
    spec = mapping(template.get("spec"))
    container = _trainer(name, spec)
    labels = texts(inside(template, "metadata", "labels"))
    annotations = texts(inside(template, "metadata", "annotations"))
    found: list[Pod] = []
    for index in range(count):
        hostname = f"{name}-{index}" if indexed else f"{name}{_SUFFIX}"
        own = {INDEX_KEY: str(index)} if indexed else {}
        jobs = {"batch.kubernetes.io/job-name": name, "job-name": name}
        found.append(
            Pod(
                name=f"{name}-{index}",
                pod_name=f"{name}-{index}{_SUFFIX}",
                hostname=hostname,
                namespace=namespace,
                hosts=(f"{hostname}.{subdomain}",) if indexed and subdomain else (),
                spec=spec,
                container=container,
                labels={**labels, **jobs, **own},
                annotations={**annotations, **own},
                appended={INDEX: str(index)} if indexed else {},
            )
        )
    return found


def _trainer(name: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = [mapping(each) for each in sequence(spec.get("containers"))]
    if not containers:
        raise ConfigError(f"The Job {name} has no containers; expected one that trains.")
    return next(filter(checking.runs_drumbeat, containers), containers[0])


def _subdomain(jobset: Mapping[str, Any]) -> str:
    network = mapping(inside(jobset, "spec", "network"))
    if network.get("enableDNSHostnames") is False:
        return ""
    return text(network.get("subdomain")) or text(inside(jobset, "metadata", "name"))


def _problems(manifest: Manifest) -> Iterator[str]:
    services = objects(manifest, "Service")
    for jobset in objects(manifest, KIND):
        yield from _set_problems(jobset)
        if len(sequence(inside(jobset, "spec", "replicatedJobs"))) == 1:
            yield from checking.identity_problems(pods_of_set(jobset))
    for job in objects(manifest, JOB):
        name = text(inside(job, "metadata", "name"))
        where = f"Job {name}".rstrip()
        yield from checking.api_problems(where, job, JOB_API)
        yield from checking.metadata_problems(where, job)
        yield from checking.name_problems(where, job)
        yield from job_problems(where, job.get("spec"))
        yield from _service_problems(where, job, services)
        yield from checking.identity_problems(pods_of_job(job))


def job_problems(where: str, job: object, *, in_set: bool = False) -> Iterator[str]:
    """What is wrong in a JobSpec.

    Args:
        where: As messages call it.
        job: What stands there.
        in_set: JobSet fills in some of what is missing.
    """
    spec = mapping(job)
    yield from unknown_keys(f"{where}, spec", spec, JOB_SPEC)
    pods = mapping(inside(spec, "template", "spec"))
    if not in_set or pods.get("restartPolicy") is not None:
        yield from checking.restart_problems(where, pods)
    yield from checking.failure_policy_problems(where, spec)
    yield from checking.template_problems(where, spec.get("template"), None)
    parallel, count = spec.get("parallelism", 1), spec.get("completions")
    # Pods with neither may work through a queue, each alone.
    container = mapping(next(iter(sequence(pods.get("containers"))), None))
    said, why = (str, "as") if checking.trains_together(container) else (Advice, "if")
    if count is not None and count != parallel:
        yield said(
            f"{where}: completions is {shown(count)} and parallelism {shown(parallel)}; expected "
            f"the same, {why} all pods train together."
        )
    mode = spec.get("completionMode")
    if mode != "Indexed" and not (in_set and mode is None) and whole(parallel, 1) > 1:
        yield said(
            f"{where}: completionMode is {shown(mode or 'NonIndexed')}; expected Indexed, without "
            "which no pod knows which one it is."
        )


def _set_problems(jobset: Mapping[str, Any]) -> Iterator[str]:
    name = text(inside(jobset, "metadata", "name"))
    where = f"JobSet {name}".rstrip()
    yield from checking.api_problems(where, jobset, API)
    yield from checking.metadata_problems(where, jobset)
    yield from checking.name_problems(where, jobset)
    spec = mapping(jobset.get("spec"))
    yield from unknown_keys(f"{where}, spec", spec, _SPEC)
    yield from no_mappings(where, spec, "network", "successPolicy", "failurePolicy")
    if (given := inside(jobset, "spec", "network", "subdomain")) is not None and (
        problem := label_problem(f"{where}: network.subdomain", given)
    ):
        yield problem
    jobs = [mapping(each) for each in sequence(inside(jobset, "spec", "replicatedJobs"))]
    if not jobs:
        yield f"{where} has no replicatedJobs; expected one."
    names = [text(each.get("name")) for each in jobs]
    for target in sequence(inside(jobset, "spec", "successPolicy", "targetReplicatedJobs")):
        if target not in names:
            yield (
                f"{where}: successPolicy names the replicated job {shown(target)}; expected one of "
                f"{listed(names)}."
            )
    for each in jobs:
        yield from replicated_problems(where, name, each)


def replicated_problems(where: str, name: str, each: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong in one replicated job of a JobSet called `name`."""
    kind = text(each.get("name"))
    inner = f"{where}, replicated job {kind or '?'}"
    if problem := label_problem(f"{where}: a replicated job's name", each.get("name")):
        yield problem
    yield from unknown_keys(inner, each, _REPLICATED)
    job = mapping(inside(each, "template", "spec"))
    pods = whole(job.get("completions"), whole(job.get("parallelism"), 1))
    last = f"{name}-{kind}-{max(whole(each.get('replicas'), 1) - 1, 0)}-{max(pods - 1, 0)}"
    if len(last + _SUFFIX) > MAX_LABEL:
        yield (
            f"The pod {last} and five letters would have {len(last + _SUFFIX)} characters in its "
            f"name; expected at most {MAX_LABEL}. Give the JobSet a shorter name."
        )
    yield from job_problems(inner, job, in_set=True)


def _service_problems(
    where: str, job: Mapping[str, Any], services: list[Mapping[str, Any]]
) -> Iterator[str]:
    """A Job's pods are found through a headless Service that its author makes."""
    subdomain = text(inside(job, "spec", "template", "spec", "subdomain"))
    if not subdomain:
        return
    service = next((s for s in services if inside(s, "metadata", "name") == subdomain), None)
    if service is None:
        yield Advice(
            f"{where}: its pods are found through the Service {subdomain}, which is not in the "
            "file; expected a headless one (clusterIP: None), here or in the cluster."
        )
        return
    if inside(service, "spec", "clusterIP") != "None":
        yield f"Service {subdomain}: expected clusterIP: None, so that each pod has a name."
    if inside(service, "spec", "publishNotReadyAddresses") is not True:
        yield Advice(
            f"Service {subdomain}: expected publishNotReadyAddresses: true, as the pods wait for "
            "each other before they are ready."
        )
    selector = texts(inside(service, "spec", "selector"))
    labels = texts(inside(job, "spec", "template", "metadata", "labels"))
    name = text(inside(job, "metadata", "name"))
    labels |= {"job-name": name, "batch.kubernetes.io/job-name": name}
    if any(labels.get(key) != value for key, value in selector.items()) or not selector:
        yield f"Service {subdomain}: its selector {shown(selector)} does not find the Job's pods."
