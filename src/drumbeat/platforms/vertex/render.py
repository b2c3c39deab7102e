"""Vertex AI: a CustomJob of pools: the chief, the workers, and parameter servers.

Source: discovery document aiplatform v1; Vertex AI, "Distributed training"; gcloud 528
(`ai custom-jobs create --config`, which reads a CustomJobSpec).
"""

from __future__ import annotations

import json
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms import command, token_file
from drumbeat.platforms.jobfile.documents import Document
from drumbeat.platforms.jobfile.model import Job, Secret
from drumbeat.platforms.needed import needs, needs_all
from drumbeat.platforms.platform import (
    Client,
    Manifest,
    Places,
    Platform,
    Rehearsal,
    Rendered,
)
from drumbeat.platforms.vertex import rules as vertex_rules
from drumbeat.platforms.vertex import spec as vertex_spec
from drumbeat.platforms.yaml_text import Chosen, dump, plain

FILE, JSON_FILE = "custom-job.yaml", "custom-job.json"
NFS = "/mnt/nfs/"
FUSE = "/gcs/"
"""Where Vertex AI mounts all buckets."""
NEEDS = {
    "image": "us-docker.pkg.dev/project/team/digits:1",
    "machine_type": "n1-standard-8",
    "output": "gs://bucket/runs/digits",
    "devices.accelerator": "NVIDIA_L4",
}
"""An example of each key that no job, or not every job, can do without."""
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"


def render(job: Job) -> Rendered:
    """The CustomJobSpec of a job, and the command that starts it."""
    may_lack = {
        "output": not token_file.is_needed(job),
        "devices.accelerator": not job.devices.gpus,
    }
    needs_all(job, {key: text for key, text in NEEDS.items() if not may_lack.get(key)})
    notes = _check(job)
    spec = _spec(job)
    document = Document(value=plain(spec))
    custom_job = vertex_spec.read(document, FILE)
    wrong = vertex_rules.errors(custom_job, is_whole=False)
    wrong += vertex_rules.label_problems(job.vertex.labels)
    if wrong:
        raise ConfigError("\n".join(wrong))
    section = job.vertex
    files = files_of(
        spec, job.name, region=section.region, project=section.project, labels=section.labels
    )
    return Rendered(files=files, notes=(*notes, *vertex_rules.advice(custom_job)))


def files_of(
    spec: dict[str, Any],
    name: str,
    *,
    region: str | None,
    project: str | None = None,
    labels: dict[str, str] | None = None,
    kms_key: str | None = None,
) -> dict[str, str]:
    """The job's file, which begins with the command that submits it.

    gcloud 528 refuses a file in which a pool is left out, and the service does not: of such a job
    there is a second file, which curl sends.

    Args:
        spec: The CustomJobSpec, with comments.
        name: The display name.
        region: Where it runs; None where nobody says.
        project: Whose job it is; the same.
        labels: The job's.
        kms_key: By which its resources are encrypted.
    """
    where = region or "REGION"
    if {} not in plain(spec)["workerPoolSpecs"]:
        words = ["gcloud", "ai", "custom-jobs", "create", f"--region={where}"]
        words.append(f"--display-name={name}")
        if labels:
            words.append("--labels=" + ",".join(f"{key}={value}" for key, value in labels.items()))
        if kms_key is not None:
            words.append(f"--kms-key={kms_key}")
        return {FILE: dump([spec], [command.shell([*words, f"--config={FILE}"])])}
    job: dict[str, Any] = {"displayName": name, "jobSpec": plain(spec)}
    if labels:
        job["labels"] = dict(labels)
    if kms_key is not None:
        job["encryptionSpec"] = {"kmsKeyName": kms_key}
    url = f"https://{where}-aiplatform.googleapis.com/v1/projects/{project or 'PROJECT'}"
    header = (
        f"gcloud refuses a file that leaves a pool out ({{}}); {JSON_FILE} is the same job, for",
        'curl -H "Authorization: Bearer $(gcloud auth print-access-token)" '
        f'-H "Content-Type: application/json" -d @{JSON_FILE} {url}/locations/{where}/customJobs',
    )
    return {FILE: dump([spec], header), JSON_FILE: json.dumps(job, indent=2) + "\n"}


def recognises(manifest: Manifest) -> bool:
    """Whether one of its documents is a CustomJob or a CustomJobSpec."""
    return vertex_spec.document_of(manifest) is not None


def problems(manifest: Manifest) -> list[str]:
    """What Vertex AI would refuse in the manifest, or do otherwise than its author means."""
    document = vertex_spec.document_of(manifest)
    if document is None:
        return []
    try:
        job = vertex_spec.read(document, manifest.path.name)
    except ConfigError as error:
        return str(error).splitlines()
    is_whole = "jobSpec" in document.value
    found = vertex_rules.errors(job, is_whole=is_whole)
    if not is_whole and any(pool.is_empty for pool in job.jobSpec.workerPoolSpecs[1:]):
        found.append(
            "A pool is left out ({}), which Vertex AI takes and gcloud's --config refuses: send "
            "the job through the API."
        )
    return found + vertex_rules.advice(job)


def _check(job: Job) -> list[str]:
    """Refuses what Vertex AI has nothing for, and says what it leaves out."""
    notes = [command.CHIEF_OF_PS] if job.ps else []
    for secret in job.secrets:
        notes.append(_without(secret))
    for mount in job.mounts:
        server, colon, _ = (mount.source or "").partition(":")
        if not (server and colon):
            raise ConfigError(
                f"The mount {mount.name} is not one of NFS; Vertex AI mounts only that. Expected "
                f"source: SERVER:/EXPORT, or data on gs://, which is found under {FUSE}BUCKET, too."
            )
        if not mount.path.startswith(NFS) or "/" in mount.path[len(NFS) :].rstrip("/"):
            raise ConfigError(
                f"The mount {mount.name} has the path {shown(mount.path)}, but Vertex AI mounts "
                f"under {NFS} alone; expected path: {NFS}{mount.name}."
            )
    if job.resources.cpu is not None or job.resources.memory is not None:
        notes.append("resources is left out: on Vertex AI machine_type says how much there is.")
    if token_file.is_needed(job):
        notes.append(_token_note(job))
    return notes


def _without(secret: Secret) -> str:
    if secret.env != KEY_FILE:
        raise ConfigError(
            f"The secret {secret.name} can't be had on Vertex AI, which shows a job's variables to "
            "everyone who sees the job. Have the script read it from Secret Manager, as the "
            "service account in vertex.service_account may, and leave it out here: --set secrets=[]"
        )
    return (
        f"The secret {secret.name} ({KEY_FILE}) is left out: on Vertex AI the job is the service "
        "account in vertex.service_account, without a key."
    )


def _output(job: Job) -> str:
    """The job's output as an URL that `submit` can write to from here."""
    output = needs(job.output, "output", NEEDS["output"])
    if output.startswith(FUSE):
        output = f"gs://{output[len(FUSE) :]}"
    if not output.startswith("gs://"):
        raise ConfigError(
            f"output is {shown(output)}; expected gs://BUCKET/FOLDER, where the nodes of a job on "
            "Vertex AI find their common secret."
        )
    return output


def token_place(job: Job) -> str | None:
    """Where `submit` writes the agents' secret; None where there is one agent."""
    return token_file.url(_output(job)) if token_file.is_needed(job) else None


def _token_note(job: Job) -> str:
    return (
        f"The agents' secret is made once: openssl rand -hex 32 | gcloud storage cp - "
        f"{token_place(job)}; drumbeat submit does it itself."
    )


def _spec(job: Job) -> dict[str, Any]:
    section = job.vertex
    if job.ps:
        pools = [_without_gpus(job, 1), _pool(job, job.nodes), _without_gpus(job, job.ps)]
    else:
        pools = [_pool(job, 1), *([_pool(job, job.nodes - 1)] if job.nodes > 1 else [])]
    scheduling: dict[str, Any] = {}
    if job.timeouts.total is not None:
        scheduling["timeout"] = f"{int(job.timeouts.total)}s"
    if section.spot:
        scheduling["strategy"] = "SPOT"
    scheduling["restartJobOnWorkerRestart"] = Chosen(
        False, "a machine that is replaced joins the others again, which wait for it"
    )
    spec: dict[str, Any] = {"workerPoolSpecs": pools, "scheduling": scheduling}
    for key, value in (
        ("serviceAccount", section.service_account),
        ("network", section.network),
        ("tensorboard", section.tensorboard),
    ):
        if value is not None:
            spec[key] = value
    if job.output is not None and job.output.startswith("gs://"):
        spec["baseOutputDirectory"] = {"outputUriPrefix": job.output}
    return spec


def _pool(job: Job, count: int) -> dict[str, Any]:
    machine: dict[str, Any] = {
        "machineType": needs(job.machine_type, "machine_type", NEEDS["machine_type"])
    }
    if job.devices.gpus:
        accelerator = _accelerator(job)
        if problem := vertex_rules.pair_problem(job.machine_type, accelerator):
            raise ConfigError(f"machine_type: {problem}")
        machine["acceleratorType"] = accelerator
        machine["acceleratorCount"] = job.devices.gpus
    pool: dict[str, Any] = {"machineSpec": machine, "replicaCount": count}
    pool["diskSpec"] = {"bootDiskSizeGb": -(-job.vertex.boot_disk // 1024**3)}
    if job.mounts:
        pool["nfsMounts"] = [_nfs(mount.source or "", mount.path) for mount in job.mounts]
    pool["containerSpec"] = {
        "imageUri": needs(job.image, "image", NEEDS["image"]),
        "command": command.drumbeat_run(job, ps=0),
        "env": [
            {"name": name, "value": command.in_pod(value)}
            for name, value in token_file.environment(job, token_place(job)).items()
        ],
    }
    return pool


def _without_gpus(job: Job, count: int) -> dict[str, Any]:
    """A pool of parameter servers, or of the chief that coordinates the workers beside them."""
    machine_type = job.vertex.ps_machine_type or job.machine_type
    if job.devices.gpus and machine_type and not machine_type.startswith(("n1-", "n2-", "e2-")):
        raise ConfigError(
            f"Parameter servers and their chief have no GPUs, but {machine_type} comes with them; "
            "expected vertex.ps_machine_type, such as n1-highmem-8."
        )
    pool = _pool(job, count)
    return pool | {"machineSpec": {"machineType": machine_type}}


def _accelerator(job: Job) -> str:
    key = "devices.accelerator"
    name = needs(job.devices.accelerator, key, NEEDS[key])
    if name in vertex_spec.ACCELERATORS and not name.startswith("TPU_"):
        return name
    what = "TensorFlow's TPUStrategy trains on these, and drumbeat does not; expected a GPU."
    if not name.startswith("TPU_"):
        what = vertex_spec.meant_accelerator(name)
    raise ConfigError(f"devices.accelerator is {shown(name)}; {what}")


def _nfs(source: str, path: str) -> dict[str, str]:
    server, _, export = source.partition(":")
    return {"server": server, "path": export, "mountPoint": path[len(NFS) :].rstrip("/")}


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The replicas as processes of this machine."""
    from drumbeat.platforms.vertex import rehearsal as vertex_rehearsal

    return vertex_rehearsal.rehearse(manifest, places)


def connect(job: Job) -> Client:
    """The client for a job's project and region."""
    from drumbeat.platforms.vertex import client as vertex_client

    return vertex_client.VertexClient.of(job)


PLATFORM = Platform(
    name="vertex",
    title="Vertex AI",
    render=render,
    recognises=recognises,
    problems=problems,
    rehearse=rehearse,
    connect=connect,
)
