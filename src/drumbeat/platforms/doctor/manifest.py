"""What is wrong with a platform's own file, as far as it shows before it runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from drumbeat.cluster import ClusterSpec, launched_by
from drumbeat.cluster.wording import shown
from drumbeat.control.doctor import places
from drumbeat.control.doctor.result import Result, error, ok, warning
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms.doctor import stores
from drumbeat.platforms.platform import Manifest, Platform, Process

_TOKENS = ("DRUMBEAT_TOKEN", "DRUMBEAT_TOKEN_FILE")
_FIRST_PORT = 20_000
_MAX_PROCESSES = 64


class _Ports:
    """Stands for free ports where nothing is going to listen."""

    def __init__(self) -> None:
        self._numbers = itertools.count(_FIRST_PORT)

    def port(self) -> int:
        return next(self._numbers)


def check(manifest: Manifest, platform: Platform) -> list[Result]:
    """All that is to be said about a platform's file."""
    name = manifest.path.name
    found = [ok("manifest", f"{name} is for {platform.title}.")]
    problems = platform.problems(manifest) if platform.problems is not None else []
    found += [error("manifest", f"{name}: {text}") for text in problems]
    found += _written_tf_config(manifest)
    if not any("shm" in text for text in problems):
        found += _shm(manifest)
    if platform.rehearse is None:
        return found
    try:
        rehearsal = platform.rehearse(manifest, _Ports())
    except DrumbeatError as problem:
        return [*found, error("manifest", str(problem))]
    found += stores.check(manifest, platform.name, rehearsal.processes)
    return found + check_processes(rehearsal.processes, _says_token(manifest))


def check_processes(processes: tuple[Process, ...], says_token: bool) -> list[Result]:
    """What the platform would tell each process of the others.

    Args:
        processes: As the platform would start them.
        says_token: The file gives them a secret, wherever it comes from.
    """
    found: list[Result] = []
    clusters: dict[str, ClusterSpec] = {}
    for process in processes[:_MAX_PROCESSES]:
        try:
            cluster = ClusterSpec.from_env(process.env)
            if cluster is None:
                launched_by.find(process.env)
        except ConfigError as problem:
            found.append(error("TF_CONFIG", f"{process.name}: {problem}"))
            continue
        if cluster is not None and cluster.task is not None:
            clusters[process.name] = cluster
    names = [process.name for process in processes]
    if len(processes) <= _MAX_PROCESSES and not found:
        found += places.check_same_cluster(clusters, names)
    is_ours = any("drumbeat" in word for process in processes for word in process.command[:3])
    has_token = says_token or all(
        any(process.env.get(name) for name in _TOKENS) for process in processes
    )
    if len(processes) > 1 and is_ours and not has_token:
        found.append(
            error(
                "token",
                f"Its {len(processes)} processes are given no DRUMBEAT_TOKEN, by which the agents "
                "know each other. Give all of them one secret in that variable, or its file in "
                "DRUMBEAT_TOKEN_FILE.",
            )
        )
    if not found:
        found.append(ok("processes", f"{len(processes)} processes, each with a place of its own."))
    return found


def _says_token(manifest: Manifest) -> bool:
    return any(name in manifest.text for name in _TOKENS)


def _written_tf_config(manifest: Manifest) -> list[Result]:
    """TF_CONFIG as it stands in the file, with the hosts' names."""
    found: list[Result] = []
    texts = dict.fromkeys(
        text for document in manifest.documents for text in _tf_configs(document.value)
    )
    for text in texts:
        if "$" in text:
            continue  # the platform fills something in
        try:
            cluster = ClusterSpec.from_tf_config(text)
        except ConfigError as problem:
            found.append(error("TF_CONFIG", str(problem)))
            continue
        if cluster is not None:
            several = f"the file starts {len(cluster.tasks)} containers or machines"
            found += places.check_loopback(cluster, several=several)
    return found


def _tf_configs(value: Any) -> Iterator[str]:
    """The values of variables of that name, in the forms that platforms have for them."""
    for each in _mappings(value):
        if each.get("name") == "TF_CONFIG" and isinstance(each.get("value"), str):
            yield each["value"]
        elif isinstance(each.get("TF_CONFIG"), str):
            yield each["TF_CONFIG"]


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _mappings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _mappings(item)


def _shm(manifest: Manifest) -> list[Result]:
    """Containers that keep the 64 MiB of /dev/shm that they have by default."""
    small: list[str] = []
    for document in manifest.documents:
        for each in _mappings(document.value):
            containers = each.get("containers")
            if isinstance(containers, list):
                small += [str(c.get("name")) for c in containers if _is_small(c)]
            services = each.get("services")
            if isinstance(services, dict):
                small += [name for name, s in services.items() if _is_small_service(s)]
    if not small:
        return []
    return [
        warning(
            "shm",
            f"{shown(small[0])} keeps the 64 MiB of /dev/shm that containers have: too little for "
            "NCCL between several GPUs, and for data loaders in processes of their own. Mount an "
            "emptyDir of medium Memory at /dev/shm (Kubernetes), or set shm_size (Compose).",
        )
    ]


def _is_small(container: Any) -> bool:
    if not isinstance(container, dict):
        return False
    mounts = container.get("volumeMounts")
    mounted = mounts if isinstance(mounts, list) else []
    return not any(isinstance(m, dict) and m.get("mountPath") == "/dev/shm" for m in mounted)  # noqa: S108


def _is_small_service(service: Any) -> bool:
    return isinstance(service, dict) and "shm_size" not in service and service.get("ipc") != "host"
