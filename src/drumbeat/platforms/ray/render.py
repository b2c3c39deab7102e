"""Ray: a job whose entrypoint asks for a placement group and starts an agent in each bundle.

Source: Ray 2.60's documentation of jobs (JobSubmissionClient) and runtime environments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drumbeat.cluster.wording import listed
from drumbeat.errors import ConfigError
from drumbeat.platforms import command, left_out
from drumbeat.platforms.jobfile.documents import read_text
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Client, Platform, Rendered
from drumbeat.platforms.ray import manifests as ray_manifests
from drumbeat.platforms.ray.client import RayClient
from drumbeat.platforms.ray.options import MODULE, Options
from drumbeat.platforms.yaml_text import Chosen, dump

FILE = "ray.yaml"
_GRACE_S = 25.0


def render(job: Job) -> Rendered:
    """The request for Ray's job server."""
    words = ["python", "-m", MODULE, *options_of(job).words()]
    document: dict[str, Any] = {
        "entrypoint": command.shell(words),
        "runtime_env": _runtime_env(job),
        "metadata": {"drumbeat": job.name},
        "entrypoint_num_cpus": Chosen(0, "it only watches; the nodes' CPUs are in its options"),
    }
    header = ["drumbeat submit ray gives it to the server of Ray's jobs."]
    return Rendered(files={FILE: dump([document], header)}, notes=_notes(job))


def options_of(job: Job) -> Options:
    """What the entrypoint is told."""
    cpus = job.resources.cpu if job.resources.cpu is not None else float(job.devices.count)
    return Options(
        nodes=job.nodes,
        cpus=cpus,
        gpus=float(job.devices.gpus),
        memory=job.resources.memory or 0,
        accelerator=(job.devices.accelerator or "") if job.devices.gpus else "",
        placement=job.ray.placement,
        start_timeout=job.timeouts.start or Options.start_timeout,
        grace=job.run.grace or _GRACE_S,
        timeout=job.timeouts.total or 0.0,
        command=tuple(command.drumbeat_run(job)),
    )


def connect(job: Job) -> Client:
    """The server of Ray's jobs."""
    return RayClient(job)


def _runtime_env(job: Job) -> dict[str, Any]:
    given = dict(job.ray.runtime_env)
    variables = {**command.environment(job), **_files_of_secrets(job)}
    variables |= {str(name): str(value) for name, value in given.pop("env_vars", {}).items()}
    found: dict[str, Any] = {}
    if "working_dir" not in given:
        found["working_dir"] = Chosen(".", "uploaded, 100 MB at most")
        found["excludes"] = Chosen(_excludes(job), "keys, leftovers and data stay here")
    found |= given
    if variables:
        found["env_vars"] = variables
    return found


def _excludes(job: Job) -> list[str]:
    # As .gitignore has it: a name alone would mean one in any folder.
    names = [".git", *left_out.LEFTOVERS, *left_out.DATA]
    names = [name if name.startswith("**/") else f"/{name}" for name in names]
    if paths := left_out.named(job, Path()):
        names += left_out.exceptions_of_git(paths, names)
    names += left_out.SECRETS
    if job.script is not None and left_out.is_left_out(job.script, names):
        names += left_out.exceptions_of_git([job.script.removeprefix("./")], names)
    return names


def _left_out_by_git(job: Job) -> list[str]:
    try:
        lines = read_text(Path(".gitignore")).splitlines()
    except ConfigError:
        return []
    names = [*([job.script] if job.script else []), *left_out.named(job, Path())]
    return [name for name in names if left_out.is_left_out_by_git(name, lines)]


def _files_of_secrets(job: Job) -> dict[str, str]:
    return {each.env: each.file for each in job.secrets if each.env and each.path}


def _notes(job: Job) -> tuple[str, ...]:
    found: list[str] = []
    if "pip" not in job.ray.runtime_env and "image_uri" not in job.ray.runtime_env:
        found.append(
            "Ray's nodes need drumbeat in their Python: in their image, or by ray.runtime_env, as "
            "in {pip: [drumbeat]}."
        )
    if job.image is not None and "image_uri" not in job.ray.runtime_env:
        found.append(
            f"image is {job.image}, and Ray's nodes have the image that they were started with; "
            "ray.runtime_env can have an image_uri."
        )
    if "working_dir" not in job.ray.runtime_env and (names := _left_out_by_git(job)):
        found.append(
            f"Ray leaves out what .gitignore names, and so {listed(names)}. Set "
            "RAY_RUNTIME_ENV_IGNORE_GITIGNORE=1 where you submit, or take the line out."
        )
    for secret in job.secrets:
        if secret.path is not None:
            found.append(f"Ray has no secrets: {secret.file} must be there on all of its nodes.")
        else:
            found.append(
                f"Ray has no secrets: {secret.env} must be set where its nodes were started; in "
                "env_vars everybody would see it."
            )
    for mount in job.mounts:
        found.append(f"Ray mounts nothing: {mount.path} must be there on all of its nodes.")
    if job.machine_type is not None:
        found.append("machine_type has no equivalent: Ray's nodes are there, or its autoscaler's.")
    if job.resources.shm is not None:
        found.append("resources.shm has no equivalent: /dev/shm is as large as on Ray's nodes.")
    return tuple(found)


PLATFORM = Platform(
    name="ray",
    title="Ray",
    render=render,
    recognises=ray_manifests.recognises,
    problems=ray_manifests.problems,
    # The copy of the working folder goes with the job; other folders are the machines'.
    has_own_disk=lambda job: command.backup_dir(job) is None,
    rehearse=ray_manifests.rehearse,
    connect=connect,
)
