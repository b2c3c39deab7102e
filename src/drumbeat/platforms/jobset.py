"""JobSet, jobset.x-k8s.io/v1alpha2: one Indexed Job, found through its headless service.

Source: kubernetes-sigs/jobset v0.12 (api/jobset/v1alpha2, pkg/webhooks).
"""

from __future__ import annotations

from typing import Any

from drumbeat.platforms import command, pods
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Manifest, Platform, Rendered
from drumbeat.platforms.yaml_text import Chosen, dump

API = "jobset.x-k8s.io/v1alpha2"
WORKER = "worker"
_REPLACED_PODS = 6
_RESTARTS = 3


def render(job: Job) -> Rendered:
    """The JobSet of a job."""
    variables: dict[str, Any] = {}
    if job.nodes > 1:
        variables = {"DRUMBEAT_NODES": str(job.nodes), "DRUMBEAT_SUBDOMAIN": job.name}
    template = pods.template(
        job,
        container=WORKER,
        words=command.drumbeat_run(job),
        variables=variables,
        port_name="drumbeat",
        restart="Never",
    )
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "parallelism": job.nodes,
        "completions": job.nodes,
        "backoffLimit": Chosen(_REPLACED_PODS, "pods replaced alone; the others wait for them"),
        "template": template,
    }
    if job.timeouts.total is not None:
        spec["activeDeadlineSeconds"] = int(job.timeouts.total)
    jobset: dict[str, Any] = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [WORKER]},
        "failurePolicy": {"maxRestarts": Chosen(_RESTARTS, "of all pods, when node 0 was lost")},
        "replicatedJobs": [{"name": WORKER, "replicas": 1, "template": {"spec": spec}}],
    }
    if job.kubernetes.keep is not None:
        jobset["ttlSecondsAfterFinished"] = int(job.kubernetes.keep)
    document = {"apiVersion": API, "kind": "JobSet", "metadata": pods.metadata(job), "spec": jobset}
    notes = (pods.token_note(job),) if job.nodes > 1 else ()
    return Rendered(files={"jobset.yaml": dump([document])}, notes=notes)


def recognises(manifest: Manifest) -> bool:
    """Whether one of its documents is a JobSet."""
    return any(
        isinstance(each.value, dict) and each.value.get("kind") == "JobSet"
        for each in manifest.documents
    )


PLATFORM = Platform(name="jobset", title="JobSet", render=render, recognises=recognises)
