"""How a job on Kubernetes is, by its object's conditions and its pods.

Source: the condition types of kubeflow.org/v1, trainer.kubeflow.org/v1alpha1 and
jobset.x-k8s.io/v1alpha2; v1 PodStatus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SELECTORS = {
    "TFJob": "training.kubeflow.org/job-name={name}",
    "JobSet": "jobset.sigs.k8s.io/jobset-name={name}",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name={name}",
}
"""Labels of a job's pods."""
_ENDS = {
    "Succeeded": "succeeded",
    "Completed": "succeeded",
    "Complete": "succeeded",
    "Failed": "failed",
}
_TFJOB = "training.kubeflow.org/"
_JOBSET = "jobset.sigs.k8s.io/"
_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, kw_only=True)
class Task:
    """The newest pod of a task.

    Attributes:
        pod: Its name.
        uid: Its identity.
        container: The one that trains.
        restarts: How often that has been restarted.
        started: Whether it has run, and so may have printed something.
        running: Whether it runs.
        state: In Kubernetes' words.
    """

    pod: str
    uid: str
    container: str
    restarts: int
    started: bool
    running: bool
    state: str


def state_of(item: Mapping[str, Any], tasks: Iterable[Task]) -> tuple[str, str]:
    """A job's state, as `Status` has it, and the reason in the operator's words."""
    if item.get("metadata", {}).get("deletionTimestamp"):
        return "stopped", "being deleted"
    conditions = [
        each
        for each in item.get("status", {}).get("conditions") or []
        if each.get("status") == "True"
    ]
    for each in conditions:
        if each.get("type") in _ENDS:
            return _ENDS[each["type"]], _detail(each)
    last = _detail(conditions[-1]) if conditions else ""
    if any(each.get("type") == "Suspended" for each in conditions):
        return "pending", last
    runs = any(each.get("type") == "Running" for each in conditions)
    return ("running" if runs or any(task.running for task in tasks) else "pending"), last


def newest(pods: Iterable[Any]) -> dict[str, Task]:
    """The newest pod of each task, by the tasks' names: workers 2 before 10."""
    latest: dict[str, Any] = {}
    for pod in pods:
        name = task_name(pod.metadata.labels or {}, pod.metadata.annotations or {})
        name = name or pod.metadata.name
        known = latest.get(name)
        if known is None or _born(pod) >= _born(known):
            latest[name] = pod
    return {name: _task(latest[name]) for name in sorted(latest, key=_natural)}


def task_name(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """As a rehearsal names it, too: worker-1; None for other pods."""
    if (kind := labels.get(_TFJOB + "replica-type")) is not None:
        return f"{kind}-{labels.get(_TFJOB + 'replica-index', '?')}"
    if (kind := labels.get(_JOBSET + "replicatedjob-name")) is None:
        return None
    index = annotations.get(_INDEX, labels.get(_INDEX, "?"))
    if labels.get(_JOBSET + "replicatedjob-replicas", "1") != "1":
        return f"{kind}-{labels.get(_JOBSET + 'job-index', '?')}-{index}"
    return f"{kind}-{index}"


def _task(pod: Any) -> Task:
    containers = [each.name for each in pod.spec.containers]
    name = next((each for each in ("tensorflow", "node") if each in containers), containers[0])
    status = next((each for each in pod.status.container_statuses or [] if each.name == name), None)
    restarts = status.restart_count if status is not None else 0
    current = status.state if status is not None else None
    running = current is not None and current.running is not None
    ended = current is not None and current.terminated is not None
    return Task(
        pod=pod.metadata.name,
        uid=pod.metadata.uid or pod.metadata.name,
        container=name,
        restarts=restarts,
        started=running or ended or restarts > 0,
        running=running or (status is None and pod.status.phase == "Running"),
        state=_pod_state(pod, current, restarts),
    )


def _pod_state(pod: Any, current: Any, restarts: int) -> str:
    """Kubernetes' own word for a pod, the reason, and its exit code."""
    words = [pod.status.phase or "Unknown"]
    if current is not None and current.waiting is not None and current.waiting.reason:
        words.append(current.waiting.reason)
    elif current is not None and current.terminated is not None:
        words.append(f"exit code {current.terminated.exit_code}")
    elif current is None and (reason := _unschedulable(pod)):
        words.append(reason)
    if pod.status.reason:
        words.append(pod.status.reason)
    if restarts:
        words.append(f"{restarts} restarts" if restarts > 1 else "1 restart")
    return ", ".join(words)


def _unschedulable(pod: Any) -> str:
    for each in pod.status.conditions or []:
        if each.type == "PodScheduled" and each.status == "False":
            return f"{each.reason}: {each.message}" if each.message else each.reason or ""
    return ""


def _detail(condition: Mapping[str, Any]) -> str:
    words = [condition.get(key) for key in ("type", "reason", "message")]
    return ": ".join(" ".join(str(each).split()) for each in words if each)


def _born(pod: Any) -> str:
    return str(pod.metadata.creation_timestamp or "")


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
