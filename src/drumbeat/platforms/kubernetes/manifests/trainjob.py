"""Kubeflow Trainer's TrainJob with its TrainingRuntime: the pods, and what is refused.

Source: kubeflow/trainer v2.3 (pkg/apis/trainer/v1alpha1, pkg/runtime/framework/plugins).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drumbeat.cluster.wording import listed, shown
from drumbeat.platforms.kubernetes.manifests import checking, jobs
from drumbeat.platforms.kubernetes.manifests.names import no_mappings, unknown_keys
from drumbeat.platforms.kubernetes.manifests.pod import Pod
from drumbeat.platforms.kubernetes.manifests.reading import (
    inside,
    mapping,
    objects,
    only_object,
    sequence,
    text,
    whole,
)
from drumbeat.platforms.kubernetes.manifests.rehearsing import rehearsal
from drumbeat.platforms.platform import Advice, Manifest, Places, Rehearsal

API, KIND = "trainer.kubeflow.org/v1alpha1", "TrainJob"
RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
NODE = "node"
STEP, TRAINER = "trainer.kubeflow.org/trainjob-ancestor-step", "trainer"
_POLICIES = ("torch", "mpi", "jax", "xgboost", "flux")
_SPEC = (
    "runtimeRef",
    "trainer",
    "initializer",
    "runtimePatches",
    "suspend",
    "activeDeadlineSeconds",
    "managedBy",
)
_TRAINER = (
    "image",
    "command",
    "args",
    "env",
    "numNodes",
    "resourcesPerNode",
    "numProcPerNode",
)
_OLD = {
    "podSpecOverrides": "runtimePatches, since Trainer 2.2",
    "podTemplateOverrides": "runtimePatches, since Trainer 2.2",
    "labels": "metadata.labels, since Trainer 2.2",
    "annotations": "metadata.annotations, since Trainer 2.2",
}


def recognises(manifest: Manifest) -> bool:
    """Whether one of its objects is a TrainJob."""
    return bool(objects(manifest, KIND))


def problems(manifest: Manifest) -> list[str]:
    """What would be refused in its TrainJobs and runtimes, or done otherwise than meant."""
    return checking.collected(_problems, manifest)


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The pods of its TrainJob as processes, with the variables that they would have.

    Raises:
        ConfigError: There are several TrainJobs, or what a pod runs isn't known here.
    """
    found = only_object(manifest, KIND)
    runtime = _runtime(manifest, found)
    notes = [*_notes(found, runtime)]
    return rehearsal("trainjob", pods_of(found, runtime), places, notes)


def pods_of(job: Mapping[str, Any], runtime: Mapping[str, Any] | None) -> list[Pod]:
    """The pods that train, by their index.

    Args:
        job: The TrainJob.
        runtime: Its runtime, or None where only the cluster has it.

    Raises:
        ConfigError: There are none, or too many.
    """
    replicated = _trainer_job(runtime)
    spec = mapping(inside(replicated, "template", "spec"))
    template = mapping(spec.get("template"))
    pods = mapping(template.get("spec"))
    containers = [mapping(each) for each in sequence(pods.get("containers"))] or [{"name": NODE}]
    merged = [_merged(each, job) if each.get("name") == NODE else each for each in containers]
    # The container that the TrainJob is about comes first, where the pods' own is looked for.
    merged.sort(key=lambda each: each.get("name") != NODE)
    nodes = _nodes(job, runtime)
    made = {
        **spec,
        "completionMode": "Indexed",
        "parallelism": nodes,
        "completions": nodes,
        "template": {**template, "spec": {**pods, "containers": merged}},
    }
    jobset = {
        "metadata": job.get("metadata"),
        "spec": {
            "network": inside(runtime, "spec", "template", "spec", "network"),
            "replicatedJobs": [
                {"name": replicated.get("name"), "replicas": 1, "template": {"spec": made}}
            ],
        },
    }
    return jobs.pods_of_set(jobset)


def _merged(container: Mapping[str, Any], job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The runtime's container with what the TrainJob says: its variables keep their places."""
    trainer = mapping(inside(job, "spec", "trainer"))
    found = dict(container)
    for key in ("image", "command", "args"):
        if trainer.get(key):
            found[key] = trainer[key]
    if trainer.get("resourcesPerNode"):
        found["resources"] = trainer["resourcesPerNode"]
    entries = {
        text(mapping(entry).get("name")): entry
        for entry in (*sequence(container.get("env")), *sequence(trainer.get("env")))
    }
    if entries:
        found["env"] = list(entries.values())
    return found


def _nodes(job: Mapping[str, Any], runtime: Mapping[str, Any] | None) -> int:
    usual = whole(inside(runtime, "spec", "mlPolicy", "numNodes"), 1)
    return whole(inside(job, "spec", "trainer", "numNodes"), usual)


def _runtime(manifest: Manifest, job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    name = inside(job, "spec", "runtimeRef", "name")
    kind = inside(job, "spec", "runtimeRef", "kind") or RUNTIMES[1]
    found = objects(manifest, kind) if kind in RUNTIMES else []
    return next((each for each in found if inside(each, "metadata", "name") == name), None)


def _trainer_job(runtime: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The replicated job of a runtime that trains."""
    every = [mapping(each) for each in _replicated(runtime)]
    for each in every:
        if inside(each, "template", "metadata", "labels", STEP) == TRAINER:
            return each
    return next((each for each in every if each.get("name") == NODE), {"name": NODE})


def _replicated(runtime: Mapping[str, Any] | None) -> Sequence[Any]:
    return sequence(inside(runtime, "spec", "template", "spec", "replicatedJobs"))


def _policies(runtime: Mapping[str, Any] | None) -> list[str]:
    policy = mapping(inside(runtime, "spec", "mlPolicy"))
    return [key for key in _POLICIES if policy.get(key) is not None]


def _notes(job: Mapping[str, Any], runtime: Mapping[str, Any] | None) -> Iterator[str]:
    if runtime is None:
        name = inside(job, "spec", "runtimeRef", "name")
        yield (
            f"What the runtime {name} adds isn't known here, as it is not in the file: "
            "kubectl get trainingruntime,clustertrainingruntime shows it."
        )
    for policy in _policies(runtime):
        yield f"The variables that the policy {policy} sets are not set here."
    others = [
        text(mapping(each).get("name"))
        for each in _replicated(runtime)
        if each is not _trainer_job(runtime)
    ]
    if others:
        yield f"The runtime's other jobs don't run here: {listed(others)}."
    if sequence(inside(job, "spec", "runtimePatches")):
        yield "runtimePatches are not applied here."
    if inside(job, "spec", "initializer"):
        yield "The initializer does not run here."


def _problems(manifest: Manifest) -> Iterator[str]:
    for kind in RUNTIMES:
        for runtime in objects(manifest, kind):
            yield from _runtime_problems(kind, runtime)
    for job in objects(manifest, KIND):
        yield from _job_problems(job)
        runtime = _runtime(manifest, job)
        yield from _container_problems(job, runtime)
        yield from checking.identity_problems(pods_of(job, runtime))


def _job_problems(job: Mapping[str, Any]) -> Iterator[str]:
    where = f"TrainJob {text(inside(job, 'metadata', 'name'))}".rstrip()
    spec = mapping(job.get("spec"))
    yield from checking.api_problems(where, job, API)
    yield from checking.metadata_problems(where, job)
    yield from checking.name_problems(where, job)
    for key, now in _OLD.items():
        if key in spec:
            yield Advice(f"{where}: {key} is now {now}.")
    yield from unknown_keys(where, {k: v for k, v in spec.items() if k not in _OLD}, _SPEC)
    yield from no_mappings(where, spec, "trainer", "runtimeRef", "initializer")
    yield from unknown_keys(f"{where}, trainer", mapping(spec.get("trainer")), _TRAINER)
    reference = mapping(spec.get("runtimeRef"))
    if not text(reference.get("name")):
        yield f"{where} has no runtimeRef.name; expected the name of a TrainingRuntime."
    if reference.get("kind") not in (None, *RUNTIMES):
        yield (
            f"{where}: runtimeRef.kind is {shown(reference.get('kind'))}; expected one of "
            f"{listed(RUNTIMES)}."
        )
    nodes = inside(spec, "trainer", "numNodes")
    if nodes is not None and whole(nodes, 0) < 1:
        yield f"{where}: trainer.numNodes is {shown(nodes)}; expected a number from 1."


def _runtime_problems(kind: str, runtime: Mapping[str, Any]) -> Iterator[str]:
    where = f"{kind} {text(inside(runtime, 'metadata', 'name'))}".rstrip()
    yield from checking.api_problems(where, runtime, API)
    yield from checking.metadata_problems(where, runtime)
    yield from checking.name_problems(where, runtime)
    if len(policies := _policies(runtime)) > 1:
        yield f"{where}: mlPolicy has {listed(policies)}; expected one of them at most."
    every = [mapping(each) for each in _replicated(runtime)]
    labelled = [
        each for each in every if inside(each, "template", "metadata", "labels", STEP) == TRAINER
    ]
    if not labelled:
        yield (
            f"{where}: none of its jobs has the label {STEP}: {TRAINER}, by which the pods that "
            "train are known."
        )
    for each in labelled:
        containers = sequence(inside(each, "template", "spec", "template", "spec", "containers"))
        if NODE not in [mapping(container).get("name") for container in containers]:
            yield f"{where}: the job that trains has no container called {NODE}."


def _container_problems(job: Mapping[str, Any], runtime: Mapping[str, Any] | None) -> Iterator[str]:
    """Of the pods as they come out of both."""
    if runtime is None:
        return
    name = text(inside(job, "metadata", "name"))
    pods = pods_of(job, runtime)
    replicated = _trainer_job(runtime)
    spec = mapping(inside(replicated, "template", "spec"))
    made = {
        **spec,
        "completionMode": "Indexed",
        "parallelism": len(pods),
        "completions": len(pods),
        "template": {"spec": pods[0].spec},
    }
    yield from jobs.replicated_problems(
        f"TrainJob {name}", name, {**replicated, "template": {"spec": made}}
    )
