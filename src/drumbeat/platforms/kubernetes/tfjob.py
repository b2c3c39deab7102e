"""Kubeflow's TFJob, kubeflow.org/v1: replicas that find each other through TF_CONFIG.

Source: kubeflow/training-operator v1.9 (pkg/apis/kubeflow.org/v1, pkg/controller.v1).
"""

from __future__ import annotations

from typing import Any

from drumbeat.platforms import command
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.kubernetes import pods
from drumbeat.platforms.kubernetes.client import Target, connector
from drumbeat.platforms.kubernetes.manifests import tfjob as manifests
from drumbeat.platforms.platform import Platform, Rendered
from drumbeat.platforms.yaml_text import Chosen, dump

_RESTARTS = 6


def replicas(job: Job) -> dict[str, int]:
    """How many replicas of each type the job has."""
    if job.ps:
        return {"Chief": 1, "Worker": job.nodes, "PS": job.ps}
    if job.tfjob.chief:
        return {"Chief": 1} | ({"Worker": job.nodes - 1} if job.nodes > 1 else {})
    return {"Worker": job.nodes}


def render(job: Job) -> Rendered:
    """The TFJob of a job."""
    counts = replicas(job)
    total = sum(counts.values())
    specs = {
        kind: {
            "replicas": count,
            "restartPolicy": _restart(job),
            "template": pods.template(
                job,
                container=manifests.CONTAINER,
                words=command.drumbeat_run(job, ps=0),
                variables={},
                port_name=manifests.PORT_NAME,
                restart=None,
                agents=total,
                # Of a cluster with ps, the chief coordinates, and ps hold variables.
                gpus=kind == "Worker" or not job.ps,
            ),
        }
        for kind, count in counts.items()
    }
    spec: dict[str, Any] = {"runPolicy": _run_policy(job, total)}
    if "Chief" not in counts and job.min_workers is None:
        spec["successPolicy"] = Chosen("AllWorkers", "by default worker 0 alone decides")
    spec["tfReplicaSpecs"] = specs
    document = {
        "apiVersion": manifests.API,
        "kind": manifests.KIND,
        "metadata": pods.metadata(job),
        "spec": spec,
    }
    notes = (pods.token_note(job),) if total > 1 else ()
    return Rendered(
        files={"tfjob.yaml": dump([document])},
        notes=(command.CHIEF_OF_PS, *notes) if job.ps else notes,
    )


def _restart(job: Job) -> Any:
    if job.restarts == 0:
        return "Never"
    return Chosen("OnFailure", "ExitCode would take 75, saved and to go on, for the end")


def _run_policy(job: Job, total: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cleanPodPolicy": Chosen("Running", "finished pods keep their logs"),
        "backoffLimit": Chosen(
            0 if job.restarts == 0 else _RESTARTS * total, "restarts of all pods together"
        ),
    }
    if job.timeouts.total is not None:
        found["activeDeadlineSeconds"] = int(job.timeouts.total)
    if job.kubernetes.keep is not None:
        found["ttlSecondsAfterFinished"] = int(job.kubernetes.keep)
    return found


PLATFORM = Platform(
    name="tfjob",
    title="Kubeflow TFJob",
    render=render,
    recognises=manifests.recognises,
    problems=manifests.problems,
    rehearse=manifests.rehearse,
    connect=connector(
        Target(
            platform="tfjob",
            api=manifests.API,
            kind=manifests.KIND,
            plural="tfjobs",
            operator="the training operator, https://www.kubeflow.org/docs/components/trainer/"
            "legacy-v1/installation/",
        )
    ),
)
