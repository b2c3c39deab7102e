"""A pod of a job, and the variables that its container has.

Source: Kubernetes' documentation, "Define Dependent Environment Variables"; third_party/forked/
golang/expansion; v1 EnvVar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drumbeat.platforms.kubernetes.manifests.reading import inside, mapping, sequence, text

INDEX_KEY = "batch.kubernetes.io/job-completion-index"
MAX_PODS = 4096
_UID = "00000000-0000-4000-8000-000000000000"
_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod that a controller would make.

    Attributes:
        name: As its job calls it: worker-1.
        pod_name: As Kubernetes does.
        hostname: What HOSTNAME is in it.
        namespace: Where it is.
        hosts: Names by which the others find it, without ".<namespace>.svc" and the like.
        spec: The template's spec.
        container: The one of its containers that trains.
        labels: Of the pod.
        annotations: Of the pod.
        appended: Variables that the controller puts behind those of the container.
        is_main: The job ends when these have ended.
        meets: An agent in it is one of those that find each other.
    """

    name: str
    pod_name: str
    hostname: str
    namespace: str
    hosts: tuple[str, ...]
    spec: Mapping[str, Any]
    container: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    appended: Mapping[str, str] = field(default_factory=dict)
    is_main: bool = True
    meets: bool = True


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The variables of a pod's container.

    Attributes:
        values: By name.
        literal: References that stay as they are, since nothing before them has that name: the
            variable that they stand in, and the name.
        absent: Variables whose value is elsewhere, by name, and where.
    """

    values: Mapping[str, str]
    literal: tuple[tuple[str, str], ...]
    absent: Mapping[str, str]


def variables(pod: Pod) -> Variables:
    """What the kubelet makes of a container's `env`, in its order, and of what is appended."""
    values: dict[str, str] = {"HOSTNAME": pod.hostname}
    literal: list[tuple[str, str]] = []
    absent: dict[str, str] = {}
    known = {text(mapping(entry).get("name")) for entry in sequence(pod.container.get("env"))}
    for entry in map(mapping, sequence(pod.container.get("env"))):
        name = text(entry.get("name"))
        if not name or set("=\0") & set(name):
            continue  # the API server refuses it
        if entry.get("valueFrom") is None:
            given = entry.get("value")
            written = "" if given is None else str(given)
            values[name] = expand(written, values, lambda of, n=name: literal.append((n, of)))
        elif (found := _field(pod, entry["valueFrom"])) is not None:
            values[name] = found
        else:
            absent[name] = _elsewhere(entry["valueFrom"])
    for name, value in pod.appended.items():
        # The Job controller leaves a variable of that name alone; others write another one.
        if name != "JOB_COMPLETION_INDEX" or name not in known:
            values[name] = expand(value, values)
            absent.pop(name, None)
    return Variables(values=values, literal=tuple(literal), absent=absent)


def expand(
    written: str, values: Mapping[str, str], missing: Callable[[str], object] = lambda name: None
) -> str:
    """`written` with $(NAME) replaced by the value of NAME, and $$ by a dollar.

    References to names without a value stay as they are.

    Args:
        written: As in the manifest.
        values: By name.
        missing: Called with each name that has no value.
    """
    parts: list[str] = []
    at = 0
    while (dollar := written.find("$", at)) >= 0:
        parts.append(written[at:dollar])
        after = written[dollar + 1 : dollar + 2]
        close = written.find(")", dollar) if after == "(" else -1
        if after == "$":
            parts.append("$")
            at = dollar + 2
        elif close >= 0:
            name = written[dollar + 2 : close]
            if name not in values:
                missing(name)
            parts.append(values.get(name, written[dollar : close + 1]))
            at = close + 1
        else:
            parts.append("$" + after)
            at = dollar + 1 + len(after)
    return "".join((*parts, written[at:]))


def _field(pod: Pod, source: object) -> str | None:
    """The value of a field of the pod; None where the source is another one."""
    path = text(inside(source, "fieldRef", "fieldPath"))
    if found := _FIELD.fullmatch(path):
        kept = pod.labels if found[1] == "labels" else pod.annotations
        return kept.get(found[2], "")
    return {
        "metadata.name": pod.pod_name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": _UID,
        "spec.nodeName": "localhost",
        "spec.serviceAccountName": text(pod.spec.get("serviceAccountName")) or "default",
        "status.hostIP": "127.0.0.1",
        "status.hostIPs": "127.0.0.1",
        "status.podIP": "127.0.0.1",
        "status.podIPs": "127.0.0.1",
    }.get(path)


def _elsewhere(source: object) -> str:
    for key, what in (("secretKeyRef", "the Secret"), ("configMapKeyRef", "the ConfigMap")):
        if (name := text(inside(source, key, "name"))) or inside(source, key) is not None:
            return f"{what} {name}".rstrip()
    if resource := text(inside(source, "resourceFieldRef", "resource")):
        return f"the container's {resource}"
    path = text(inside(source, "fieldRef", "fieldPath"))
    return f"the pod's field {path}" if path else "elsewhere"
