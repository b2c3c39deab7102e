"""An old job of AI Platform Training as processes of this machine.

What `gcloud ai-platform local train --distributed` did, with the variables that the service set
and without an empty `ps`, which TensorFlow 2 crashes on.

Source: AI Platform Training, "TF_CONFIG and distributed training", "Distributed training with
containers"; gcloud 528 (command_lib/ml_engine/local_train.py).
"""

from __future__ import annotations

from drumbeat.platforms.ai_platform import spec as old
from drumbeat.platforms.ai_platform.spec import TrainingInput
from drumbeat.platforms.platform import Manifest, NoCommand, Places, Process, Rehearsal
from drumbeat.platforms.vertex.rehearsal import Replica, cluster_spec, tf_config

_TASKS = {"worker": "worker", "parameterServer": "ps", "evaluator": "evaluator"}


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The replicas of an old job.

    Raises:
        ConfigError: The file is no training job, or says no command.
    """
    given = old.read(manifest).trainingInput
    if missing := old.missing(given):
        raise NoCommand("\n".join(f"{manifest.path.name}: {text}" for text in missing))
    described = old.described(manifest)
    tasks = [_TASKS.get(role, old.chief_name(given)) for role in old.ROLES]
    replicas = [
        Replica(pool, index, f"127.0.0.1:{places.port()}")
        for pool, role in enumerate(old.ROLES)
        for index in range(old.machine_of(given, role)[1])
    ]
    processes: list[Process] = []
    for each in replicas:
        env = {"TF_CONFIG": tf_config(replicas, each, described, tasks)}
        if old.has_image(given):
            env["CLUSTER_SPEC"] = cluster_spec(replicas, each, described)
        role = old.ROLES[each.pool]
        processes.append(
            Process(
                name=f"{tasks[each.pool]}-{each.index}",
                command=_command(given, role),
                env=env,
                is_main=role in ("master", "worker"),
            )
        )
    return Rehearsal(
        platform="ai-platform",
        processes=tuple(processes),
        differences=tuple(_differences(given, tasks[0])),
    )


def _command(given: TrainingInput, role: str) -> tuple[str, ...]:
    config = old.config_of(given, role)
    job_dir = ("--job-dir", given.jobDir) if given.jobDir is not None else ()
    if not old.has_image(given):
        return ("python", "-m", str(given.pythonModule), *given.args, *job_dir)
    if not config.containerCommand:
        raise NoCommand(
            f"{role}Config has no containerCommand: the image's ENTRYPOINT runs, which can't be "
            "known here. Write it as containerCommand: [python, train.py], and args as "
            "containerArgs."
        )
    return (*config.containerCommand, *config.containerArgs, *job_dir)


def _differences(given: TrainingInput, chief: str) -> list[str]:
    found = [
        "AI Platform Training was shut down on 2025-01-31: this is what it would have run.",
        "There, each replica was a machine of its own; here, all share this one.",
        "DRUMBEAT_TOKEN is made up; there, nobody set it: a job had no variables of its own.",
    ]
    if old.has_image(given):
        found.append("There, the program ran in the image; here, in this folder and this Python.")
    else:
        found.append(
            f"There, packageUris were installed beside TensorFlow {given.runtimeVersion}; here, "
            "the module is this folder's."
        )
    if chief == "master":
        found.append("TF_CONFIG has `master` here as there; on Vertex AI it is `chief`.")
    return found
