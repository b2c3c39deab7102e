"""A job's pods as processes of this machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drumbeat.cluster.launched_by.drumbeat import NODES, RENDEZVOUS
from drumbeat.cluster.wording import listed, shown
from drumbeat.platforms import command
from drumbeat.platforms.kubernetes.manifests.hosts import Hosts
from drumbeat.platforms.kubernetes.manifests.pod import Pod, expand, variables
from drumbeat.platforms.kubernetes.manifests.reading import mapping, sequence, text, whole
from drumbeat.platforms.platform import NoCommand, Places, Process, Rehearsal

_SHM = "/dev/shm"  # noqa: S108
_SERVICES = "The variables of the cluster's services (KUBERNETES_SERVICE_HOST, …) are not set."
_RESTARTS = "Nothing starts a pod again here; there its restartPolicy and the job's limits do."
_MEETING = (
    f"{RENDEZVOUS} is set, since names such as the first pod's are not known here; there nobody "
    "sets it."
)
_NETWORK = (
    "All pods are at 127.0.0.1; there they find each other by DNS, and policies of the network may "
    "keep them apart."
)


def rehearsal(
    platform: str, pods: Sequence[Pod], places: Places, notes: Iterable[str] = ()
) -> Rehearsal:
    """The pods as processes, with one secret for all of them.

    Args:
        platform: Its name.
        pods: All of the job, by rank.
        places: Where ports come from.
        notes: What else would be different there.

    Raises:
        ConfigError: What a pod runs isn't known here.
    """
    hosts, token = Hosts(pods, places), secrets.token_hex(16)
    processes: list[Process] = []
    absent: dict[str, str] = {}
    added: dict[str, None] = {}
    for pod in pods:
        found = variables(pod)
        env = {name: hosts.here(value) for name, value in found.values.items()}
        absent |= found.absent
        if command.TOKEN in found.absent:
            env[command.TOKEN] = token
        if env.get(NODES, "1") != "1" and RENDEZVOUS not in env:
            env[RENDEZVOUS] = hosts.address(pods[0], command.PORT)
            added[_MEETING] = None
        words = tuple(hosts.here(word) for word in _command(pod, found.values))
        processes.append(Process(name=pod.name, command=words, env=env, is_main=pod.is_main))
    differences = (*_differences(pods), *_absent(absent), *added, *notes)
    return Rehearsal(
        platform=platform, processes=tuple(processes), differences=tuple(dict.fromkeys(differences))
    )


def _command(pod: Pod, values: Mapping[str, str]) -> list[str]:
    program = [str(word) for word in sequence(pod.container.get("command"))]
    if not program:
        raise NoCommand(
            f"{pod.name}: its container has no command, and what its image "
            f"{shown(pod.container.get('image'))} runs isn't known here; expected a command, such "
            "as [drumbeat, run, train.py]."
        )
    words = [*program, *map(str, sequence(pod.container.get("args")))]
    return [expand(word, values) for word in words]


def _absent(absent: Mapping[str, str]) -> Iterator[str]:
    for name, where in absent.items():
        if name == command.TOKEN:
            yield f"{name} is made up; there it comes from {where}."
        else:
            yield f"{name} is not set; there it comes from {where}."


def _differences(pods: Sequence[Pod]) -> Iterator[str]:
    containers = [pod.container for pod in pods]
    images = dict.fromkeys(filter(None, (text(each.get("image")) for each in containers)))
    whose = f"there the image is {listed(images)}" if images else "there they are the image's"
    yield f"Python and its packages are those of this machine; {whose}."
    yield from dict.fromkeys(filter(None, map(_resources, containers)))
    yield _NETWORK
    for pod in pods:
        yield from _of_pod(pod)
    yield _RESTARTS
    yield _SERVICES


def _resources(container: Mapping[str, Any]) -> str:
    asked = mapping(container.get("resources"))
    amounts = {**mapping(asked.get("requests")), **mapping(asked.get("limits"))}
    if not amounts:
        return ""
    texts = listed(f"{name}: {amount}" for name, amount in amounts.items())
    return f"The processes share this machine; there each pod has its own, with {texts}."


def _of_pod(pod: Pod) -> Iterator[str]:
    volumes = {text(v.get("name")): v for v in map(mapping, sequence(pod.spec.get("volumes")))}
    for mount in map(mapping, sequence(pod.container.get("volumeMounts"))):
        path, name = text(mount.get("mountPath")), text(mount.get("name"))
        kinds = [key for key in volumes.get(name, {}) if key != "name"]
        if path.rstrip("/") != _SHM:
            yield f"{path} is not mounted; there it is the volume {name} ({listed(kinds) or '?'})."
    places = [
        f"{key} {_flat(pod.spec[key])}"
        for key in ("nodeSelector", "affinity", "tolerations", "priorityClassName")
        if pod.spec.get(key)
    ]
    if places:
        yield f"There the pods wait for nodes that fit: {listed(places)}."
    if account := text(pod.spec.get("serviceAccountName")):
        yield f"There the pods are the service account {account}; here you are yourself."
    if user := whole(mapping(pod.spec.get("securityContext")).get("runAsUser"), 0):
        yield f"There the pods run as the user {user}, who may write to fewer places than you."
    others = [
        text(each.get("name"))
        for key in ("initContainers", "containers")
        for each in map(mapping, sequence(pod.spec.get(key)))
        if each is not pod.container
    ]
    if others:
        yield f"The other containers of the pods don't run here: {listed(others)}."
    if folder := text(pod.container.get("workingDir")):
        yield f"There the folder is {folder}; here it is this one."
    sources = [
        text(mapping(each.get(key)).get("name"))
        for each in map(mapping, sequence(pod.container.get("envFrom")))
        for key in ("configMapRef", "secretRef")
        if each.get(key)
    ]
    if sources:
        yield f"No variables are taken from {listed(sources)} (envFrom), as there is no cluster."


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_flat(item)}" for key, item in value.items())
    return shown(value) if isinstance(value, list) else str(value)
