"""Kubeflow Trainer's TrainJob, trainer.kubeflow.org/v1alpha1, with a TrainingRuntime of its own.

The trainer has no policy for TensorFlow; its plain one sets nothing, so drumbeat's variables do.

Source: kubeflow/trainer v2.3 (pkg/apis/trainer/v1alpha1, pkg/runtime/framework/plugins).
"""

from __future__ import annotations

from typing import Any

from drumbeat.platforms import command
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.kubernetes import pods
from drumbeat.platforms.kubernetes.client import OWN_LABELS, Target, connector
from drumbeat.platforms.kubernetes.jobset import place
from drumbeat.platforms.kubernetes.manifests import trainjob as manifests
from drumbeat.platforms.platform import Platform, Rendered
from drumbeat.platforms.yaml_text import dump

_MANAGER = "drumbeat"
_KEEP = "A TrainJob has no time after which it is deleted: kubernetes.keep is left out."
_RUNTIME = (
    "The runtime {name} has to have a job called node with a container called node, and an "
    "mlPolicy without torch, mpi or jax. How often pods are restarted, their ports and their "
    "priority are the runtime's."
)


def render(job: Job) -> Rendered:
    """The TrainJob of a job and the runtime that it refers to, or the TrainJob alone."""
    own = job.trainjob.runtime is None
    spec: dict[str, Any] = {
        "runtimeRef": {
            "name": job.trainjob.runtime or job.name,
            "kind": manifests.RUNTIMES[0],
            "apiGroup": manifests.API.partition("/")[0],
        },
        "trainer": {
            "image": pods.image(job),
            "command": [command.in_pod(word) for word in command.drumbeat_run(job)],
            "env": pods.env(job, place(job), job.nodes),
            "numNodes": job.nodes,
            "resourcesPerNode": pods.resources(job),
        },
    }
    if not own:
        spec["runtimePatches"] = [_patch(job)]
    if job.timeouts.total is not None:
        spec["activeDeadlineSeconds"] = int(job.timeouts.total)
    document = {
        "apiVersion": manifests.API,
        "kind": manifests.KIND,
        "metadata": pods.metadata(job),
        "spec": spec,
    }
    notes = [_RUNTIME.format(name=job.trainjob.runtime)] if not own else []
    notes += [_KEEP] if job.kubernetes.keep is not None else []
    notes += [pods.token_note(job)] if job.nodes > 1 else []
    documents = [_runtime(job), document] if own else [document]
    return Rendered(files={"trainjob.yaml": dump(documents)}, notes=tuple(notes))


def _runtime(job: Job) -> dict[str, Any]:
    pod = {
        "restartPolicy": "Never",
        **pods.scheduling(job),
        "automountServiceAccountToken": job.kubernetes.service_account is not None,
        "containers": [
            {
                "name": manifests.NODE,
                "image": pods.image(job),
                "ports": [{"name": "drumbeat", "containerPort": command.PORT}],
                "securityContext": pods.rights(job),
                "volumeMounts": pods.mounts(job),
            }
        ],
        "volumes": pods.volumes(job),
    }
    spec = {
        "backoffLimit": pods.replaced_alone(job),
        "podFailurePolicy": pods.failure_policy(),
        "template": {"metadata": {"annotations": pods.no_sidecar()}, "spec": pod},
    }
    node = {
        "name": manifests.NODE,
        "template": {"metadata": {"labels": {manifests.STEP: manifests.TRAINER}}, "spec": spec},
    }
    jobset = {
        "network": {"publishNotReadyAddresses": True},
        "failurePolicy": pods.restart_all(job),
        "replicatedJobs": [node],
    }
    space = {} if job.kubernetes.namespace is None else {"namespace": job.kubernetes.namespace}
    return {
        "apiVersion": manifests.API,
        "kind": manifests.RUNTIMES[0],
        "metadata": {"name": job.name, **space, "labels": dict(OWN_LABELS)},
        "spec": {"mlPolicy": {"numNodes": job.nodes}, "template": {"spec": jobset}},
    }


def _patch(job: Job) -> dict[str, Any]:
    """What the job says of its pods, for a runtime that is there."""
    pod = {
        **{k: v for k, v in pods.scheduling(job).items() if k != "priorityClassName"},
        "volumes": pods.volumes(job),
        "containers": [
            {
                "name": manifests.NODE,
                "securityContext": pods.rights(job),
                "volumeMounts": pods.mounts(job),
            }
        ],
    }
    template = {"metadata": {"annotations": pods.no_sidecar()}, "spec": pod}
    node = {"name": manifests.NODE, "template": {"spec": {"template": template}}}
    return {
        "manager": _MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}},
    }


PLATFORM = Platform(
    name="trainjob",
    title="Kubeflow Trainer",
    render=render,
    recognises=manifests.recognises,
    problems=manifests.problems,
    rehearse=manifests.rehearse,
    connect=connector(
        Target(
            platform="trainjob",
            api=manifests.API,
            kind=manifests.KIND,
            plural="trainjobs",
            operator="Kubeflow Trainer 2.3, https://www.kubeflow.org/docs/components/trainer/"
            "operator-guides/installation/",
        )
    ),
)
