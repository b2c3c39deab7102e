"""Anybody's Run:ai job: a script with its command line, or the body of a request.

Underneath is a Kubeflow TFJob, by whose rules the pods are told of each other.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms import command
from drumbeat.platforms.kubernetes.manifests import tfjob
from drumbeat.platforms.kubernetes.manifests.pod import Pod
from drumbeat.platforms.kubernetes.manifests.rehearsing import rehearsal
from drumbeat.platforms.platform import Advice, Manifest, NoCommand, Places, Rehearsal
from drumbeat.platforms.runai import body as runai_body
from drumbeat.platforms.runai import flags as runai_flags
from drumbeat.platforms.runai.flags import Submission
from drumbeat.platforms.secret_names import names_secret

_UUID = "00000000-0000-4000-8000-000000000000"
_MAX_WORKERS = 4096
_UNLIKE = (
    "Run:ai's own variables have made-up ids here (JOB_UUID, POD_UUID).",
    "There a scheduler gives GPUs and projects' shares; here all have this machine.",
)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A job, whichever way it is written.

    Attributes:
        name: Of the job.
        project: Of Run:ai.
        workers: How many.
        has_master: Whether there is a master's pod besides.
        words: What workers run.
        master_words: What the master runs.
        env: Entries as Kubernetes has them.
        gpus: Of each worker.
    """

    name: str
    project: str
    workers: int
    words: Sequence[str]
    has_master: bool = False
    master_words: Sequence[str] = ()
    env: list[dict[str, Any]] = field(default_factory=list)
    gpus: str = "0"


def recognises(manifest: Manifest) -> bool:
    """Whether it is a script that submits, or a body."""
    if manifest.documents:
        return runai_body.recognises(manifest)
    return runai_flags.has_submission(manifest.text)


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """Its pods as processes, with the variables of TFJob and of Run:ai.

    Raises:
        ConfigError: The job can't be used, or what a pod runs isn't known here.
    """
    workload = _workload(manifest)
    pods = [_with_variables(pod, workload) for pod in tfjob.pods_of(_tfjob(workload))]
    notes: list[str] = list(_UNLIKE)
    if len(pods) == 1:
        notes.append("A job of one pod has no TF_CONFIG.")
    if workload.has_master:
        notes.append(
            "Whether Run:ai calls the master's task chief or master is not documented; here it is "
            "master, which TensorFlow refuses and drumbeat takes for the chief."
        )
    return rehearsal("runai", pods, places, notes)


def problems(manifest: Manifest) -> list[str]:
    """What Run:ai would refuse, or do otherwise than meant; see `Platform.problems`."""
    found: list[str] = []
    try:
        if manifest.documents:
            found += runai_body.problems(manifest)
        else:
            submission = runai_flags.read(manifest.text, manifest.path.name)
            found += [*submission.wrong, *_of_submission(submission)]
        found += _of_env(_workload(manifest))
    except NoCommand as problem:
        found.append(Advice(problem))
    except ConfigError as error:
        found.append(str(error))
    return list(dict.fromkeys(found))


def _workload(manifest: Manifest) -> Workload:
    if manifest.documents:
        given = runai_body.read(manifest)
        return Workload(**given)
    return _of_command(runai_flags.read(manifest.text, manifest.path.name))


def _of_command(given: Submission) -> Workload:
    text = given.last("--workers", "1")
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or not 0 < int(text) <= _MAX_WORKERS:
        raise ConfigError(f"--workers is {shown(text)}; expected 1 to {_MAX_WORKERS}.")
    if not given.has("--command") or not given.words:
        raise NoCommand(
            "There is no --command: what stands after -- goes to the program that the image "
            "starts, which is not known here. Write --command -- drumbeat run …"
        )
    env = [_entry(text) for text in given.flags.get("--environment", [])]
    return Workload(
        name=given.name or "job",
        project=given.last("--project", "default"),
        workers=int(text),
        has_master=not given.has("--no-master"),
        words=given.words,
        master_words=_split(given.last("--master-command")),
        env=env,
        gpus=given.last("--gpu", given.last("--gpu-devices-request", "0")),
    )


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--master-command is {shown(text)}: {error}.") from None


def _entry(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"-e is {shown(text)}; expected NAME=VALUE.")
    kind, colon, secret = value.partition(":")
    if kind == "SECRET" and colon:
        of, _, key = secret.partition(",")
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": of, "key": key}}}
    return {"name": name, "value": value}


def _tfjob(workload: Workload) -> dict[str, Any]:
    def replica(count: int, words: Sequence[str]) -> dict[str, Any]:
        container = {"name": "tensorflow", "command": list(words), "env": workload.env}
        return {"replicas": count, "template": {"spec": {"containers": [container]}}}

    replicas = {"Worker": replica(workload.workers, workload.words)}
    if workload.has_master:
        replicas = {"Master": replica(1, workload.master_words or workload.words)} | replicas
    metadata = {"name": workload.name, "namespace": f"runai-{workload.project}"}
    return {"metadata": metadata, "spec": {"tfReplicaSpecs": replicas}}


def _with_variables(pod: Pod, workload: Workload) -> Pod:
    own = {
        "JOB_NAME": workload.name,
        "JOB_UUID": _UUID,
        "POD_INDEX": pod.name.rpartition("-")[2],
        "POD_UUID": _UUID,
        "NODE_NAME": "node",
        "RUNAI_JOB_NAME": workload.name,
        "RUNAI_PROJECT": workload.project,
        "RUNAI_NUM_OF_GPUS": workload.gpus,
    }
    return replace(pod, appended={**own, **pod.appended})


def _of_submission(given: Submission) -> Iterator[str]:
    for flag in ("--image", "--workers"):
        if not given.has(flag):
            yield f"{flag} is missing."
    if not given.name and not (given.has("--name-prefix") or given.has("--job-name-prefix")):
        yield "The job has no name."
    if "--environment" in given.typed:
        yield Advice(
            "--environment is no variable in every version of the CLI: in v3 it names an "
            "environment asset. Write -e NAME=VALUE, which all take."
        )
    if not given.has("--no-master"):
        yield Advice(
            "Without --no-master there is one pod more, whose task may be called master: "
            "TensorFlow refuses it, drumbeat takes it for the chief."
        )
    if not given.has("--large-shm"):
        yield Advice(
            "--large-shm is missing: /dev/shm is 64 MiB then, where workers keep snapshots of "
            "their state."
        )


def _of_env(workload: Workload) -> Iterator[str]:
    agents = workload.workers + workload.has_master
    names = {each["name"] for each in workload.env}
    if (
        agents > 1
        and command.starts_agent(workload.words)
        and not names & {command.TOKEN, command.TOKEN_FILE}
    ):
        yield (
            f"No {command.TOKEN} is set, which the agents of {agents} pods need: -e "
            f"{command.TOKEN}=SECRET:NAME,KEY takes it from a Secret of Kubernetes."
        )
    if "TF_CONFIG" in names:
        yield Advice("TF_CONFIG is set, which Run:ai writes itself, another one for each pod.")
    for each in workload.env:
        if names_secret(each["name"]) and each.get("value"):
            yield (
                f"The value of {each['name']} is in the file; expected a Secret of Kubernetes: "
                f"-e {each['name']}=SECRET:NAME,KEY."
            )
