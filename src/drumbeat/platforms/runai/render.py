"""Run:ai: the command line of its CLI, v1 or v2, and the same workload for its REST interface.

Both make a Kubeflow TFJob of worker replicas alone: with `--no-master` no pod is `master`, a task
that TensorFlow 2 does not know.

Source: see `runai_flags`; runapy 1.224 (DistributedCreationRequest).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms import command
from drumbeat.platforms.jobfile.amounts import kubernetes_memory, plain_number
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.kubernetes.pods import TOKEN_KEY, token_secret
from drumbeat.platforms.needed import folder_of_nodes, needs
from drumbeat.platforms.platform import Client, Platform, Rendered
from drumbeat.platforms.runai import manifests as runai_manifests
from drumbeat.platforms.runai.client import RunaiClient
from drumbeat.platforms.yaml_text import Chosen, dump

SCRIPT, BODY = "runai.sh", "runai.yaml"
EXIT_S, KUBERNETES_GRACE_S = 5, 30
_ID = "PUT_THE_ID_HERE"


def render(job: Job) -> Rendered:
    """The script that submits the job, and the body of the same request."""
    words = submit_words(job)
    lines = [
        "#!/bin/bash",
        f"# {_token_note(job)}" if _has_token(job) else "",
        "set -e",
        _folded(words),
    ]
    text = "\n".join(line for line in lines if line) + "\n"
    header = ["POST /api/v1/workloads/distributed, as JSON, with the ids that Run:ai lists."]
    return Rendered(
        files={SCRIPT: text, BODY: dump([_body(job)], header)}, notes=tuple(_notes(job))
    )


def submit_words(job: Job) -> list[str]:
    """The command that submits the job.

    Raises:
        ConfigError: The job file asks for what this command line has not.
    """
    words = (
        ["runai", "submit-dist", "tf", "--name", job.name]
        if job.runai.cli == "v1"
        else ["runai", "training", "tensorflow", "submit", job.name]
    )
    if job.runai.project is not None:
        words += ["-p", job.runai.project]
    words += ["-i", needs(job.image, "image", "ghcr.io/team/train:1")]
    words += ["--workers", str(job.nodes), "--no-master"]
    words += _resources(job)
    words.append("--large-shm")
    for name, value in command.environment(job).items():
        words += ["-e", f"{name}={_value(name, value)}"]
    words += _secrets(job)
    words += [word for mount in job.mounts for word in _mount(job, mount)]
    for pool in job.runai.node_pools:
        words += ["--node-pools", pool]
    return [*words, "--command", "--", *_command(job)]


def connect(job: Job) -> Client:
    """The runai command."""
    return RunaiClient(job, submit_words(job))


def _command(job: Job) -> list[str]:
    return [command.in_pod(word) for word in command.drumbeat_run(job)]


def _value(name: str, value: str) -> str:
    if value.startswith("SECRET:"):
        raise ConfigError(
            f"environment has {name}={shown(value)}, which Run:ai would take from a Secret; "
            "expected secrets: with env: for that, and other text here."
        )
    return command.in_pod(value)


def _has_token(job: Job) -> bool:
    return job.nodes > 1


def _resources(job: Job) -> list[str]:
    is_v1 = job.runai.cli == "v1"
    words: list[str] = []
    portion = job.runai.gpu_portion
    if portion is not None and is_v1:
        words += ["-g", str(plain_number(portion))]
    elif portion is not None:
        words += ["-g", "1", "--gpu-request-type", "portion"]
        words += ["--gpu-portion-request", str(plain_number(portion))]
    elif job.devices.gpus:
        words += ["-g", str(job.devices.gpus)]
    if job.resources.cpu is not None:
        words += ["--cpu" if is_v1 else "--cpu-core-request", str(plain_number(job.resources.cpu))]
    if job.resources.memory is not None:
        flag = "--memory" if is_v1 else "--cpu-memory-request"
        words += [flag, kubernetes_memory(job.resources.memory)]
    return words


def _secrets(job: Job) -> list[str]:
    words: list[str] = []
    for secret in job.secrets:
        if secret.path is None:
            words += ["-e", f"{secret.env}=SECRET:{secret.name},{secret.entry}"]
            continue
        if job.runai.cli == "v1":
            raise ConfigError(
                f"The secret {secret.name} has a path, and Run:ai's CLI v1 mounts no secrets; "
                "expected env: alone, or runai: {cli: v2}."
            )
        words += ["--secret-volume", f"path={secret.path},name={secret.name}"]
        if secret.env is not None:
            words += ["-e", f"{secret.env}={command.in_pod(secret.file)}"]
    if _has_token(job):
        words += ["-e", f"{command.TOKEN}=SECRET:{token_secret(job)},{TOKEN_KEY}"]
    return words


def _mount(job: Job, mount: Any) -> list[str]:
    is_v1, read_only = job.runai.cli == "v1", mount.read_only
    if mount.source is None:
        flag = "--pvc-exists" if is_v1 else "--existing-pvc"
        return [flag, f"claimname={mount.name},path={mount.path}"]
    server, colon, export = mount.source.partition(":")
    if is_v1:
        mode = "ro" if read_only else ""
        parts = [export if colon else folder_of_nodes(mount), mount.path, mode]
        return ["-v", ":".join([*parts, server] if colon else parts).rstrip(":")]
    more = "" if read_only else ",readwrite"
    if colon:
        return ["--nfs", f"path={export},server={server},mountpath={mount.path}{more}"]
    return ["--host-path", f"path={folder_of_nodes(mount)},mount={mount.path}{more}"]


def _folded(words: Sequence[str]) -> str:
    """The command with a flag and its value in each line."""
    end = words.index("--command")
    lines: list[list[str]] = [[]]
    for index, word in enumerate(words[:end]):
        if index and word.startswith("-"):
            lines.append([])
        lines[-1].append(word)
    lines += [list(words[end : end + 2]), list(words[end + 2 :])]
    return " \\\n  ".join(shlex.join(line) for line in lines)


def _body(job: Job) -> dict[str, Any]:
    words = _command(job)
    spec: dict[str, Any] = {
        "distributedFramework": "TF",
        "numWorkers": job.nodes,
        "image": needs(job.image, "image", "ghcr.io/team/train:1"),
        "command": words[0],
        "args": shlex.join(words[1:]),
        "environmentVariables": _variables(job),
        "compute": _compute(job),
    }
    if storage := _storage(job):
        spec["storage"] = storage
    if job.runai.node_pools:
        spec["nodePools"] = list(job.runai.node_pools)
    if job.run.grace is not None:
        spec["terminationGracePeriodSeconds"] = int(job.run.grace) + EXIT_S
    return {
        "name": job.name,
        "projectId": Chosen(job.runai.project_id or _ID, "GET /api/v1/org-unit/projects lists it"),
        "clusterId": Chosen(job.runai.cluster_id or _ID, "GET /api/v1/clusters lists it"),
        "spec": spec,
    }


def _variables(job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "value": command.in_pod(value)}
        for name, value in command.environment(job).items()
    ]
    for secret in job.secrets:
        if secret.env is not None and secret.path is not None:
            found.append({"name": secret.env, "value": command.in_pod(secret.file)})
        elif secret.env is not None:
            entry = {"name": secret.name, "key": secret.entry}
            found.append({"name": secret.env, "secret": entry})
    if _has_token(job):
        entry = {"name": token_secret(job), "key": TOKEN_KEY}
        found.append({"name": command.TOKEN, "secret": entry})
    return found


def _compute(job: Job) -> dict[str, Any]:
    why = "containers have 64 MiB of /dev/shm; snapshots of the model lie there"
    found: dict[str, Any] = {"largeShmRequest": Chosen(True, why)}
    if job.runai.gpu_portion is not None:
        found |= {
            "gpuDevicesRequest": 1,
            "gpuRequestType": "portion",
            "gpuPortionRequest": job.runai.gpu_portion,
        }
    elif job.devices.gpus:
        found["gpuDevicesRequest"] = job.devices.gpus
    if job.resources.cpu is not None:
        found["cpuCoreRequest"] = plain_number(job.resources.cpu)
    if job.resources.memory is not None:
        found["cpuMemoryRequest"] = kubernetes_memory(job.resources.memory)
    return found


def _storage(job: Job) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {}
    for mount in job.mounts:
        read_only = mount.read_only
        server, colon, export = (mount.source or "").partition(":")
        if mount.source is None:
            claim = {"claimName": mount.name, "path": mount.path, "existingPvc": True}
            found.setdefault("pvc", []).append({**claim, "readOnly": read_only})
        elif colon:
            nfs = {"server": server, "path": export, "mountPath": mount.path}
            found.setdefault("nfs", []).append({**nfs, "readOnly": read_only})
        else:
            path = folder_of_nodes(mount)
            host = {"path": path, "mountPath": mount.path, "readOnly": read_only}
            found.setdefault("hostPath", []).append(host)
    for secret in job.secrets:
        if secret.path is not None:
            volume = {"secret": secret.name, "mountPath": secret.path}
            found.setdefault("secretVolume", []).append(volume)
    return found


def _token_note(job: Job) -> str:
    return (
        f"The agents' secret is made once: kubectl -n runai-{job.runai.project or 'PROJECT'} "
        f"create secret generic {token_secret(job)} "
        f"--from-literal={TOKEN_KEY}=$(openssl rand -hex 32)"
    )


def _notes(job: Job) -> Iterator[str]:
    if _has_token(job):
        yield _token_note(job) + "; drumbeat submit does it where there is kubectl."
    if job.runai.project is None:
        yield "runai.project is not set: the project is that of `runai config project`."
    if job.runai.project_id is None or job.runai.cluster_id is None:
        yield f"{BODY} needs the ids of project and cluster: runai.project_id, runai.cluster_id."
    if job.ps:
        yield "Run:ai has no pods for parameter servers: they run beside the first worker."
    if job.resources.shm is not None:
        yield "resources.shm has no equivalent: --large-shm is as large as Run:ai makes it."
    if job.timeouts.total is not None:
        yield "timeouts.total has no equivalent in Run:ai."
    for key, value in (
        ("devices.accelerator", job.devices.accelerator),
        ("machine_type", job.machine_type),
    ):
        if value is not None:
            yield f"{key} has no equivalent in Run:ai: choose machines by runai.node_pools."
    if (job.run.grace or 0) + EXIT_S > KUBERNETES_GRACE_S:
        yield (
            f"run.grace is {job.run.grace:g} s, and the command line leaves Kubernetes' 30 s as "
            f"they are; {BODY} has more."
        )
    read_only = [mount.name for mount in job.mounts if mount.read_only and mount.source is None]
    if read_only:
        yield f"The command line can't mount {', '.join(read_only)} read-only; {BODY} does."


PLATFORM = Platform(
    name="runai",
    title="Run:ai",
    render=render,
    recognises=runai_manifests.recognises,
    problems=runai_manifests.problems,
    rehearse=runai_manifests.rehearse,
    connect=connect,
)
