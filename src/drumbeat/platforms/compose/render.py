"""Docker Compose: one service for each task, with a TF_CONFIG of its own.

What is rendered is read by Compose v2 and by docker-compose 1.28 and later; therefore it has no
top-level `name` and no `gpus`, which the latter refuses.

Source: the Compose specification (compose-spec/compose-spec, 2026-06); tried with docker-compose
1.29 and docker 20.10.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from drumbeat.errors import ConfigError
from drumbeat.platforms import command
from drumbeat.platforms.compose import problems as compose_problems
from drumbeat.platforms.compose import reading as compose_reading
from drumbeat.platforms.compose.client import ComposeClient
from drumbeat.platforms.jobfile.amounts import mebibytes
from drumbeat.platforms.jobfile.model import Job, Mount, Secret
from drumbeat.platforms.needed import needs
from drumbeat.platforms.platform import Client, Platform, Rendered
from drumbeat.platforms.yaml_text import Chosen, dump, plain

FILE = "compose.yaml"
GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS"
_GOOGLE_KEY_PATH = "/secrets/google/key.json"
_SHM_BYTES = 2 * 1024**3
_GRACE_S = 25.0
_EXIT_S = 5.0
_RESTARTS = 3
_MOST = 128
_TOKEN = f"${{{command.TOKEN}:?one secret for all containers, made with openssl rand -hex 32}}"


@dataclass(frozen=True)
class Task:
    """One container.

    Attributes:
        type: "chief", "worker" or "ps".
        index: Among those of its type.
        number: Among all of them.
    """

    type: str
    index: int
    number: int

    @property
    def name(self) -> str:
        """Of the service, and so of the host."""
        return self.type if self.type == "chief" else f"{self.type}-{self.index}"


def render(job: Job) -> Rendered:
    """The Compose file of a job.

    Raises:
        ConfigError: The job has more containers than one machine is taken to have room for.
    """
    tasks = tasks_of(job)
    if len(tasks) > _MOST:
        raise ConfigError(
            f"The job has {len(tasks)} containers, which Compose would run all on one machine; "
            f"expected at most {_MOST}. Give fewer workers (-n), or a platform of many machines."
        )
    services: dict[str, Any] = {}
    for task in tasks:
        service = _service(job, task, tasks)
        # What was chosen is explained once.
        services[task.name] = service if task.number == 0 else plain(service)
    document: dict[str, Any] = {"services": services}
    volumes = {
        mount.name: _volume(mount)
        for mount in job.mounts
        if mount.source is None or _is_nfs(mount.source)
    }
    if volumes:
        document["volumes"] = volumes
    return Rendered(files={FILE: dump([document], _header(job, tasks))}, notes=_notes(job))


def tasks_of(job: Job) -> list[Task]:
    """The containers: a chief and workers; with ps the chief only coordinates them."""
    workers = job.nodes if job.ps else job.nodes - 1
    kinds = ["chief", *["worker"] * workers, *["ps"] * job.ps]
    return [Task(kind, number - kinds.index(kind), number) for number, kind in enumerate(kinds)]


def connect(job: Job) -> Client:
    """The docker and docker compose commands."""
    return ComposeClient(job)


def _header(job: Job, tasks: Sequence[Task]) -> list[str]:
    token = f"{command.TOKEN}=$(openssl rand -hex 32) " if len(tasks) > 1 else ""
    return [f"drumbeat submit compose starts it, or: {token}docker compose -p {job.name} up"]


def _service(job: Job, task: Task, tasks: Sequence[Task]) -> dict[str, Any]:
    service: dict[str, Any] = {"image": _literal(needs(job.image, "image", "team/train:1"))}
    if job.compose.build:
        service["build"] = "."
    service["hostname"] = task.name
    words = command.drumbeat_run(job, ps=0 if len(tasks) > 1 else None)
    service["command"] = [_literal(word) for word in words]
    if variables := _environment(job, task, tasks):
        service["environment"] = variables
    service["init"] = Chosen(True, "ends what a script leaves behind")
    service["restart"] = Chosen(
        f"on-failure:{_RESTARTS}", "a lost container joins the others again, which wait for it"
    )
    # Not the capabilities: where an image runs as root, root writes to its user's folders by them.
    service["security_opt"] = Chosen(["no-new-privileges:true"], "no program gains rights")
    grace_s = (job.run.grace or _GRACE_S) + _EXIT_S
    service["stop_grace_period"] = Chosen(f"{grace_s:.0f}s", "to save the state, and 5 s to end")
    service["shm_size"] = _shm(job)
    if job.resources.memory is not None:
        service["mem_limit"] = f"{mebibytes(job.resources.memory)}m"
    if len(tasks) > 1:
        service["healthcheck"] = _healthcheck(tasks[0])
    if volumes := _volumes(job):
        service["volumes"] = volumes
    if job.devices.gpus or job.compose.gpus:
        service["deploy"] = _gpus(job, task)
    return service


def _environment(job: Job, task: Task, tasks: Sequence[Task]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: _literal(value) for name, value in command.environment(job).items()
    }
    for secret in job.secrets:
        if secret.env is not None and secret.path is not None:
            found[secret.env] = _literal(secret.file)
        elif secret.env is not None:
            found[secret.env] = f"${{{secret.env}:?the secret {secret.name}}}"
    if _wants_google_key(job):
        found[GOOGLE_KEY] = _GOOGLE_KEY_PATH
    if len(tasks) > 1:
        found[command.TOKEN] = Chosen(_TOKEN, "never in this file")
        found["TF_CONFIG"] = _literal(json.dumps(tf_config(task, tasks)))
    return found


def tf_config(task: Task, tasks: Sequence[Task]) -> dict[str, Any]:
    """TF_CONFIG of one of the tasks."""
    cluster: dict[str, list[str]] = {}
    for each in tasks:
        cluster.setdefault(each.type, []).append(f"{each.name}:{command.PORT}")
    return {"cluster": cluster, "task": {"type": task.type, "index": task.index}}


def _literal(text: str) -> str:
    """`text` as Compose gives it on: a $ would begin a variable."""
    return text.replace("$", "$$")


def _shm(job: Job) -> Any:
    if job.resources.shm is not None:
        return f"{mebibytes(job.resources.shm)}m"
    why = "64 MiB by default: too little for NCCL and data loaders"
    return Chosen(f"{mebibytes(_SHM_BYTES)}m", why)


def _healthcheck(first: Task) -> Any:
    """Whether agents can meet. Nothing waits for it: all containers have to start together."""
    code = f"import socket; socket.create_connection(('{first.name}', {command.PORT}), 3).close()"
    check = {
        "test": ["CMD", "python", "-c", code],
        "interval": "30s",
        "timeout": "5s",
        "retries": 3,
        "start_period": "120s",
    }
    return Chosen(check, f"healthy: reaches {first.name}, where the agents meet")


def _gpus(job: Job, task: Task) -> dict[str, Any]:
    device: dict[str, Any] = {"driver": "nvidia"}
    if job.compose.gpus:
        device["count"] = "all"
    else:
        first = task.number * job.devices.count
        ids = [str(number) for number in range(first, first + job.devices.count)]
        device["device_ids"] = Chosen(ids, "each container has GPUs of its own")
    device["capabilities"] = ["gpu"]
    return {"resources": {"reservations": {"devices": [device]}}}


def _volumes(job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for mount in job.mounts:
        is_volume = mount.source is None or _is_nfs(mount.source)
        source = mount.name if is_volume else _literal(str(mount.source))
        kind = "volume" if is_volume else "bind"
        found.append(_mounted(kind, source, mount.path, mount.read_only))
    for secret in job.secrets:
        if secret.path is not None:
            found.append(_secret(secret))
    if _wants_google_key(job):
        found.append(_mounted("bind", _required_file(GOOGLE_KEY), _GOOGLE_KEY_PATH, True))
    return found


def _secret(secret: Secret) -> dict[str, Any]:
    if secret.env is not None:
        return _mounted("bind", _required_file(secret.env), secret.file, True)
    return _mounted("bind", f"./secrets/{secret.name}", str(secret.path), True)


def _required_file(variable: str) -> str:
    return f"${{{variable}:?the path of a file of this machine, which is mounted}}"


def _mounted(kind: str, source: str, target: str, read_only: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"type": kind, "source": source, "target": _literal(target)}
    return found | ({"read_only": True} if read_only else {})


def _is_nfs(source: str) -> bool:
    return ":" in source and not source.startswith(("/", "."))


def _volume(mount: Mount) -> dict[str, Any]:
    if mount.source is None:
        return {}
    server, _, export = mount.source.partition(":")
    options = {"type": "nfs", "o": f"addr={server},rw", "device": f":{export}"}
    return {"driver": "local", "driver_opts": options}


def _places(job: Job) -> list[str]:
    return [place for place in (job.data, job.output, job.run.backup_dir) if place]


def _wants_google_key(job: Job) -> bool:
    """Whether a bucket of Google's is used, and nobody says with what key."""
    named = GOOGLE_KEY in job.environment or any(each.env == GOOGLE_KEY for each in job.secrets)
    return not named and any(place.startswith("gs://") for place in _places(job))


def _notes(job: Job) -> tuple[str, ...]:
    found: list[str] = []
    for what, value in (
        ("machine_type", job.machine_type),
        ("timeouts.total", job.timeouts.total),
        ("resources.cpu", job.resources.cpu),
    ):
        if value is not None:
            found.append(f"{what} has no equivalent in Compose: the containers share this machine.")
    mounted = [PurePosixPath(mount.path) for mount in job.mounts]
    for key, place in (("data", job.data), ("output", job.output)):
        if place is None or "://" in place:
            continue
        path = PurePosixPath("/") / place
        if not any(path == each or each in path.parents for each in mounted):
            found.append(
                f"{key} is {place}, which is in no mount: each container has a {place} of its own."
            )
    names: Mapping[str, str] = {each.env: each.name for each in job.secrets if each.env}
    if any(place.startswith("s3://") for place in _places(job)) and not any(
        name.startswith("AWS_") for name in (*names, *job.environment)
    ):
        found.append(
            "Nothing says with what key s3:// is read: add secrets such as {name: aws-id, env: "
            "AWS_ACCESS_KEY_ID} and {name: aws-key, env: AWS_SECRET_ACCESS_KEY}."
        )
    return tuple(found)


PLATFORM = Platform(
    name="compose",
    title="Docker Compose",
    render=render,
    recognises=compose_reading.recognises,
    problems=compose_problems.problems,
    rehearse=compose_reading.rehearse,
    connect=connect,
)
