"""What Compose would refuse in somebody's file, or would do otherwise than its author means.

Source: the Compose specification; `compose_reading` has the rest of its rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drumbeat.cluster.spec import ClusterSpec
from drumbeat.cluster.wording import listed
from drumbeat.errors import ConfigError
from drumbeat.platforms.compose.interpolation import Interpolation
from drumbeat.platforms.compose.reading import Service, read, variables_of
from drumbeat.platforms.platform import Advice, Manifest
from drumbeat.platforms.secret_names import is_secret, names_secret

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"


def problems(manifest: Manifest) -> list[str]:
    """A sentence for each; see `Platform.problems`."""
    interpolation = Interpolation({})
    try:
        interpolation.variables = variables_of(manifest.path.parent, os.environ)
        services = read(manifest, interpolation)
    except ConfigError as error:
        return [str(error)]
    training = [each for each in services if each.trains]
    found: list[str] = []
    for service in training:
        found += _of_service(service, {each.name for each in training})
    found += _shm(training)
    found += _together(training, {host for each in services for host in each.hosts})
    found += _written_secrets(manifest, training)
    unset = sorted(interpolation.unset)
    if unset:
        found.append(
            Advice(
                f"{listed(unset)} of the file is not set here, and Compose puts nothing in: set "
                "it, or write $$ where a dollar sign is meant."
            )
        )
    return found


def _of_service(service: Service, training: set[str]) -> Iterator[str]:
    where = f"service {service.name}"
    given = service.given
    if not given.get("image") and not given.get("build"):
        yield f"{where} has neither image nor build."
    try:
        ClusterSpec.from_env(service.env)
    except ConfigError as error:
        yield f"{where}: {error}"
    for key, count in _copies(given):
        if "TF_CONFIG" in service.env and count != 1:
            yield (
                f"{where} has {key}: {count}, but all of its containers would have the same "
                "TF_CONFIG; write a service for each task."
            )
        elif str(count) not in ("0", "1"):
            yield (
                f"{where} has {key}: {count}, but nothing tells its containers which of them they "
                "are: each would train alone. Write a service for each task, with a TF_CONFIG of "
                "its own; drumbeat render compose does."
            )
    ports = [_published(each) for each in given.get("ports") or () if _published(each)]
    for port in sorted({each for each in ports if ports.count(each) > 1}):
        yield f"{where} publishes the port {port} twice."
    waits = given.get("depends_on")
    for name, how in waits.items() if isinstance(waits, dict) else ():
        condition = how.get("condition") if isinstance(how, dict) else None
        if name in training and condition not in (None, "service_started"):
            yield (
                f"{where} waits until {name} is {str(condition).removeprefix('service_')}, but "
                "tasks of a job wait for each other: all must start together."
            )
    if given.get("network_mode") == "none" and len(training) > 1:
        yield f"{where} has network_mode: none, and can't reach the others."
    key_file = service.env.get(_KEY_FILE)
    if key_file and not _is_mounted(key_file, given):
        yield Advice(
            f"{where} has {_KEY_FILE}={key_file}, and no volume or secret that would put it "
            "there; mount it, read-only."
        )


def _shm(training: Sequence[Service]) -> Iterator[str]:
    small = [
        f"service {each.name}"
        for each in training
        if each.given.get("shm_size") is None and each.given.get("ipc") is None
    ]
    if small and len(training) > 1:
        has = "has" if len(small) == 1 else "have"
        yield Advice(
            f"{listed(small)} {has} no shm_size: /dev/shm is 64 MiB then, too little for NCCL "
            "between GPUs and for data loaders in processes; write shm_size: 2g."
        )


def _copies(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    deploy = given.get("deploy")
    if given.get("scale") is not None:
        yield "scale", given["scale"]
    if isinstance(deploy, dict) and deploy.get("replicas") is not None:
        yield "deploy.replicas", deploy["replicas"]


def _published(port: Any) -> str:
    """The port of this machine in an entry of `ports`, "" where Docker chooses one."""
    if isinstance(port, dict):
        return str(port.get("published") or "")
    parts = str(port).partition("/")[0].rsplit(":", 2)
    return parts[-2] if len(parts) > 1 else ""


def _is_mounted(path: str, given: Mapping[str, Any]) -> bool:
    targets = ["/run/secrets"] if given.get("secrets") else []
    for volume in given.get("volumes") or ():
        if isinstance(volume, dict):
            targets.append(str(volume.get("target", "")))
        else:
            parts = str(volume).split(":")
            targets.append(parts[1] if len(parts) > 1 else parts[0])
    return any(each and (path + "/").startswith(each.rstrip("/") + "/") for each in targets)


def _together(training: Sequence[Service], hosts: set[str]) -> Iterator[str]:
    clusters: dict[str, ClusterSpec] = {}
    for service in training:
        try:
            cluster = ClusterSpec.from_env(service.env)
        except ConfigError:
            continue  # said already
        if cluster is not None and cluster.task is not None:
            clusters[service.name] = cluster
    owners: dict[str, str] = {}
    for name, cluster in clusters.items():
        task = str(cluster.task)
        if task in owners:
            yield f"services {owners[task]} and {name} are both {task} in their TF_CONFIG."
        owners.setdefault(task, name)
    views = {str(sorted(map(str, each.addresses))) for each in clusters.values()}
    if len(views) > 1:
        yield (
            f"services {listed(clusters)} have different clusters in their TF_CONFIG; expected "
            "the same in all of them."
        )
    first = next(iter(clusters.values()), None)
    if first is None:
        return
    missing = [task for task in first.tasks if str(task) not in owners]
    if missing and len(views) == 1:
        # At an address or with a full name, it may be on another machine.
        said = Advice if all("." in first.address(task) for task in missing) else str
        names = listed(map(str, missing))
        yield said(f"no service is {names} of TF_CONFIG: the others would wait for it.")
    yield from _names(first, training, hosts)


def _names(cluster: ClusterSpec, training: Sequence[Service], hosts: set[str]) -> Iterator[str]:
    is_host = any(each.given.get("network_mode") == "host" for each in training)
    for task in cluster.tasks:
        host = cluster.address(task).rpartition(":")[0].strip("[]")
        if host in _LOOPBACK and len(cluster.tasks) > 1 and not is_host:
            yield (
                f"TF_CONFIG has {cluster.address(task)} for {task}: in each container that is the "
                "container itself; expected the name of a service."
            )
        elif host not in hosts and not re.search(r"[.:]", host):  # no address, no full name
            yield f"TF_CONFIG has {host} for {task}, which is no service of this file."


def _written_secrets(manifest: Manifest, training: Sequence[Service]) -> Iterator[str]:
    """Secrets that stand in the file itself."""
    services = manifest.documents[0].value["services"]
    for service in training:
        given = services[service.name].get("environment")
        pairs = (
            [str(each).partition("=")[::2] for each in given]
            if isinstance(given, list)
            else list((given or {}).items())
        )
        for name, value in pairs:
            is_written = value not in (None, "") and "$" not in str(value)
            if is_written and (names_secret(str(name)) or is_secret(str(value))):
                yield (
                    f"service {service.name} has the value of {name} in the file; expected "
                    f"${{{name}:?}}, with the value in the environment."
                )
