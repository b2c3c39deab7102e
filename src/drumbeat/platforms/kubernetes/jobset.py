"""JobSet, jobset.x-k8s.io/v1alpha2: one Indexed Job, found through its headless service.

Source: kubernetes-sigs/jobset v0.12 (api/jobset/v1alpha2, pkg/webhooks).
"""

from __future__ import annotations

from typing import Any

from drumbeat.platforms import command
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.kubernetes import pods
from drumbeat.platforms.kubernetes.client import Target, connector
from drumbeat.platforms.kubernetes.manifests import jobs as manifests
from drumbeat.platforms.platform import Platform, Rendered
from drumbeat.platforms.yaml_text import dump

WORKER = "worker"


def render(job: Job) -> Rendered:
    """The JobSet of a job."""
    template = pods.template(
        job,
        container=WORKER,
        words=command.drumbeat_run(job),
        variables=place(job),
        port_name="drumbeat",
        restart="Never",
        agents=job.nodes,
    )
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "parallelism": job.nodes,
        "completions": job.nodes,
        "backoffLimit": pods.replaced_alone(job),
        "podFailurePolicy": pods.failure_policy(),
        "template": template,
    }
    if job.timeouts.total is not None:
        spec["activeDeadlineSeconds"] = int(job.timeouts.total)
    jobset: dict[str, Any] = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [WORKER]},
        "failurePolicy": pods.restart_all(job),
        "replicatedJobs": [{"name": WORKER, "replicas": 1, "template": {"spec": spec}}],
    }
    if job.kubernetes.keep is not None:
        jobset["ttlSecondsAfterFinished"] = int(job.kubernetes.keep)
    document = {
        "apiVersion": manifests.API,
        "kind": manifests.KIND,
        "metadata": pods.metadata(job),
        "spec": jobset,
    }
    notes = (pods.token_note(job),) if job.nodes > 1 else ()
    return Rendered(files={"jobset.yaml": dump([document])}, notes=notes)


def place(job: Job) -> dict[str, str]:
    """The variables by which a pod of a JobSet that is called as the job finds itself."""
    found = {"DRUMBEAT_NODES": str(job.nodes)}
    return found | ({"DRUMBEAT_SUBDOMAIN": job.name} if job.nodes > 1 else {})


PLATFORM = Platform(
    name="jobset",
    title="JobSet",
    render=render,
    recognises=manifests.recognises,
    problems=manifests.problems,
    rehearse=manifests.rehearse,
    connect=connector(
        Target(
            platform="jobset",
            api=manifests.API,
            kind=manifests.KIND,
            plural="jobsets",
            operator="JobSet, https://jobset.sigs.k8s.io/docs/installation/",
        )
    ),
)
