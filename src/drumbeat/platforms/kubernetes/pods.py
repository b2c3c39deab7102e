"""A job's pods: what TFJob, TrainJob and JobSet have in common.

Source: Kubernetes v1 PodTemplateSpec.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from drumbeat.errors import PREEMPTED_CODE, ConfigError
from drumbeat.platforms import command
from drumbeat.platforms.jobfile.amounts import kubernetes_memory, plain_number
from drumbeat.platforms.jobfile.model import Job, Mount
from drumbeat.platforms.jobfile.sections import USER
from drumbeat.platforms.needed import folder_of_nodes, needs
from drumbeat.platforms.yaml_text import Chosen

TOKEN_KEY = "token"  # noqa: S105  (the name of an entry)
GPU = "nvidia.com/gpu"
EXIT_GRACE_S = 30
_REPLACED_PODS = 6
_RESTARTS = 3


def token_secret(job: Job) -> str:
    """The name of the Secret that the agents of the job have in common."""
    return f"{job.name}-drumbeat"


def token_note(job: Job) -> str:
    """How to make it, for those who apply a manifest themselves."""
    namespace = f" -n {job.kubernetes.namespace}" if job.kubernetes.namespace else ""
    return (
        f"The agents' secret is made once: kubectl{namespace} create secret generic "
        f"{token_secret(job)} --from-literal={TOKEN_KEY}=$(openssl rand -hex 32); drumbeat submit "
        "does it itself."
    )


def metadata(job: Job) -> dict[str, Any]:
    """Of the job's object: name, namespace, labels and annotations."""
    cluster = job.kubernetes
    labels = dict(cluster.labels)
    if cluster.queue is not None:
        labels["kueue.x-k8s.io/queue-name"] = cluster.queue
    found: dict[str, Any] = {"name": job.name}
    if cluster.namespace is not None:
        found["namespace"] = cluster.namespace
    if labels:
        found["labels"] = labels
    if cluster.annotations:
        found["annotations"] = dict(cluster.annotations)
    return found


def template(
    job: Job,
    *,
    container: str,
    words: Sequence[str],
    variables: Mapping[str, Any],
    port_name: str,
    restart: str | None,
    agents: int,
    gpus: bool = True,
) -> dict[str, Any]:
    """A PodTemplateSpec.

    Args:
        job: The job.
        container: The name that the container must have.
        words: Its command.
        variables: Those of the platform, by name: text, or a `valueFrom`.
        port_name: Of the port that agents meet at.
        restart: The pod's restartPolicy; None where the platform has its own.
        agents: How many pods of the job have one; several share a secret.
        gpus: Whether the pod has the job's GPUs.
    """
    made = {
        "name": container,
        "image": image(job),
        "command": [command.in_pod(word) for word in words],
        "env": env(job, variables, agents),
        "ports": [{"name": port_name, "containerPort": command.PORT}],
        "resources": resources(job, gpus=gpus),
        "securityContext": rights(job),
        "volumeMounts": mounts(job),
    }
    spec: dict[str, Any] = {} if restart is None else {"restartPolicy": restart}
    spec |= scheduling(job)
    # Pods of a job run arbitrary training code, which has no business with the cluster's API.
    spec["automountServiceAccountToken"] = job.kubernetes.service_account is not None
    spec["containers"] = [made]
    spec["volumes"] = volumes(job)
    return {"metadata": {"annotations": no_sidecar()}, "spec": spec}


def scheduling(job: Job) -> dict[str, Any]:
    """Of a pod's spec: as who and where it runs, and how long it has to end."""
    cluster = job.kubernetes
    spec: dict[str, Any] = {}
    if job.run.grace is not None and job.run.grace + 5 > EXIT_GRACE_S:
        spec["terminationGracePeriodSeconds"] = Chosen(
            math.ceil(job.run.grace) + 5, "run.grace, and 5 s to end"
        )
    spec["securityContext"] = _user(job)
    for key, value in (
        ("serviceAccountName", cluster.service_account),
        ("priorityClassName", cluster.priority_class),
        ("nodeSelector", _node_selector(job)),
        ("tolerations", [dict(each) for each in cluster.tolerations]),
        ("imagePullSecrets", [{"name": name} for name in cluster.image_pull_secrets]),
    ):
        if value:
            spec[key] = value
    return spec


def _user(job: Job) -> dict[str, Any]:
    """A pod's securityContext: as who it runs, whose its volumes are.

    With `rights` it is what Pod Security Standards call restricted, unless the user is the image's.
    """
    found: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    user = job.kubernetes.user
    if user == "image":
        return found
    number: Any = user
    if user == USER:
        number = Chosen(user, "as in the image of `render docker`; kubernetes.user names another")
    return {
        "runAsNonRoot": True,
        "runAsUser": number,
        "runAsGroup": user,
        "fsGroup": Chosen(user, "may write to the volumes"),
        "fsGroupChangePolicy": Chosen("OnRootMismatch", "once, not file by file at each start"),
        **found,
    }


def rights(job: Job) -> dict[str, Any]:
    """A container's securityContext; an image that runs as root may need what root can do."""
    found: dict[str, Any] = {"allowPrivilegeEscalation": False}
    if job.kubernetes.user != "image":
        found["capabilities"] = {"drop": ["ALL"]}
    return found


def no_sidecar() -> dict[str, Any]:
    """Annotations that keep Istio out of the pods."""
    return {"sidecar.istio.io/inject": Chosen("false", "a sidecar would keep pods from ending")}


def failure_policy() -> dict[str, Any]:
    """A Job's podFailurePolicy: what is no failure of the training, and what no pod can mend."""
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    saved = {"operator": "In", "values": Chosen([PREEMPTED_CODE], "the state is saved, go on")}
    wrong = {"operator": "In", "values": Chosen([ConfigError.exit_code], "a wrong setting")}
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [disrupted]},
            {"action": "Ignore", "onExitCodes": saved},
            {"action": "FailJob", "onExitCodes": wrong},
        ]
    }


def restart_all(job: Job) -> dict[str, Any]:
    """A JobSet's failurePolicy."""
    if job.restarts == 0:
        return {"maxRestarts": 0}
    rule = {
        "name": "final",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
    }
    return {
        "maxRestarts": Chosen(_RESTARTS, "of all pods, when node 0 was lost"),
        "rules": Chosen([rule], "a wrong setting stays one, and the time stays over"),
    }


def replaced_alone(job: Job) -> Any:
    """A Job's backoffLimit."""
    return Chosen(
        0 if job.restarts == 0 else _REPLACED_PODS, "pods replaced alone; the others wait for them"
    )


def image(job: Job) -> str:
    """The job's image.

    Raises:
        ConfigError: It has none.
    """
    return needs(job.image, "image", "ghcr.io/team/train:1")


def env(job: Job, variables: Mapping[str, Any], agents: int) -> list[dict[str, Any]]:
    """A container's variables: the job's, then `variables`, then secrets by reference."""
    found: list[dict[str, Any]] = []
    for name, value in command.environment(job).items():
        found.append({"name": name, "value": command.in_pod(value)})
    for name, value in variables.items():
        where = {"valueFrom": value} if isinstance(value, dict) else {"value": value}
        found.append({"name": name, **where})
    for secret in job.secrets:
        if secret.env is None:
            continue
        if secret.path is not None:
            found.append({"name": secret.env, "value": command.in_pod(secret.file)})
        else:
            found.append({"name": secret.env, "valueFrom": _entry(secret.name, secret.entry)})
    if agents > 1:
        found.append({"name": command.TOKEN, "valueFrom": _entry(token_secret(job), TOKEN_KEY)})
    return found


def _entry(name: str, key: str) -> dict[str, Any]:
    return {"secretKeyRef": {"name": name, "key": key}}


def resources(job: Job, *, gpus: bool = True) -> dict[str, Any]:
    """Requests and limits of a container."""
    asked: dict[str, Any] = {}
    if job.resources.cpu is not None:
        asked["cpu"] = str(plain_number(job.resources.cpu))
    if job.resources.memory is not None:
        asked["memory"] = kubernetes_memory(job.resources.memory)
    limits = dict(asked)
    limits.pop("cpu", None)  # a CPU limit throttles a worker that the others wait for
    if gpus and job.devices.gpus:
        limits[_gpu_resource(job)] = job.devices.gpus
    found: dict[str, Any] = {}
    if asked:
        found["requests"] = asked
    if limits:
        found["limits"] = limits
    return found


def _gpu_resource(job: Job) -> str:
    name = job.devices.accelerator
    return name if name is not None and "/" in name else GPU


def _node_selector(job: Job) -> dict[str, Any]:
    selector: dict[str, Any] = dict(job.kubernetes.node_selector)
    if job.machine_type is not None:
        selector.setdefault("node.kubernetes.io/instance-type", job.machine_type)
    return selector


def mounts(job: Job) -> list[dict[str, Any]]:
    """A container's volumeMounts."""
    found: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    for mount in job.mounts:
        read_only = {"readOnly": True} if mount.read_only else {}
        found.append({"name": mount.name, "mountPath": mount.path, **read_only})
    for secret in job.secrets:
        if secret.path is not None:
            found.append({"name": secret.name, "mountPath": secret.path, "readOnly": True})
    return found


def volumes(job: Job) -> list[dict[str, Any]]:
    """A pod's volumes."""
    size: dict[str, Any] = {"medium": "Memory"}
    if job.resources.shm is not None:
        size["sizeLimit"] = kubernetes_memory(job.resources.shm)
    shm = Chosen(size, "64 MiB by default: too little for NCCL and data loaders")
    found: list[dict[str, Any]] = [{"name": "shm", "emptyDir": shm}]
    for mount in job.mounts:
        found.append({"name": mount.name, **_source(mount)})
    for secret in job.secrets:
        if secret.path is not None:
            found.append({"name": secret.name, "secret": {"secretName": secret.name}})
    return found


def _source(mount: Mount) -> dict[str, Any]:
    if mount.source is None:
        claim: dict[str, Any] = {"claimName": mount.name}
        return {"persistentVolumeClaim": claim | ({"readOnly": True} if mount.read_only else {})}
    server, colon, export = mount.source.partition(":")
    if colon:
        return {"nfs": {"server": server, "path": export}}
    return {"hostPath": {"path": folder_of_nodes(mount)}}
