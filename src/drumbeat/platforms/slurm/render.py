"""Slurm: a batch script with one `srun`, and in it one agent on each machine.

Source: sbatch(1) and srun(1); tried with slurm-wlm 22.05, real daemons.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import PREEMPTED_CODE, ConfigError
from drumbeat.platforms import command
from drumbeat.platforms.jobfile.amounts import mebibytes
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.needed import folder_of_nodes
from drumbeat.platforms.platform import Client, Manifest, Platform, Rendered
from drumbeat.platforms.slurm.rehearsal import rehearse
from drumbeat.platforms.slurm.rules import problems

FILE = "job.sbatch"
GRACE_S = 25
"""`drumbeat run`'s own."""
_NOTICE_MARGIN_S = 35
"""From the end of the grace to the end of the job: agents end, and Slurm looks once in a while."""
_CPUS_PER_GPU = 4
_GPU_TYPE = re.compile(r"[A-Za-z0-9_.-]+")
_OPTION = re.compile(r"--?[A-Za-z][^\n]*")


def render(job: Job) -> Rendered:
    """The batch script of a job.

    Raises:
        ConfigError: A value of the job file can't be an option of sbatch.
    """
    lines = ["#!/bin/bash", *_directives(job), "", "set -e", *job.slurm.setup]
    lines += _variables(job)
    lines += ["", *_step(job)]
    text = "\n".join(lines) + "\n"
    if "\r\n" in text:
        raise ConfigError(
            "The job file has text with Windows' line ends, and sbatch refuses a script that has "
            "them anywhere; expected \\n alone in args, environment and slurm.setup."
        )
    return Rendered(files={FILE: text}, notes=tuple(_notes(job)))


def saves_state(job: Job) -> bool:
    """Whether the job goes on where it was when it is started again."""
    return command.backup_dir(job) is not None


def is_elastic(job: Job) -> bool:
    """Whether it goes on without lost machines."""
    return job.min_workers is not None and job.nodes > 1


def _directives(job: Job) -> Iterator[str]:
    slurm = job.slurm
    notice_s = math.ceil(job.run.grace or GRACE_S) + _NOTICE_MARGIN_S
    cpus, why_cpus = _cpus(job)
    given: list[tuple[str, object, str]] = [
        ("job-name", job.name, ""),
        ("partition", slurm.partition, ""),
        ("account", slurm.account, ""),
        ("qos", slurm.qos, ""),
        ("constraint", slurm.constraint, ""),
        ("nodes", job.nodes, ""),
        ("ntasks-per-node", 1, "an agent on each machine, which starts its workers"),
        ("cpus-per-task", cpus, why_cpus),
        ("gpus-per-node", _gpus(job), ""),
        ("mem", job.resources.memory and f"{mebibytes(job.resources.memory)}M", ""),
        ("time", job.timeouts.total and _duration(job.timeouts.total), ""),
        ("output", "%x-%j.out", "drumbeat logs slurm reads it"),
    ]
    for name, value, why in given:
        if value is not None:
            yield _directive(f"--{name}={_checked(name, value)}", why)
    if saves_state(job):
        yield _directive("--open-mode=append", "started again, it goes on in the same file")
        yield _directive("--requeue", "after the loss of a machine, and when it makes room")
        # Without B: it goes to the tasks, whose agents know what to do; a shell waits for srun.
        yield _directive(f"--signal=TERM@{notice_s}", "before the time is up, to save the state")
    if is_elastic(job):
        yield _directive("--no-kill", "it goes on without a lost machine")
    for option in slurm.extra:
        if not _OPTION.fullmatch(option):
            raise ConfigError(
                f"slurm.extra has {shown(option)}; expected an option of sbatch such as "
                "--reservation=name."
            )
        yield f"#SBATCH {option}"


def _directive(option: str, why: str) -> str:
    return f"#SBATCH {option}" + (f"  # {why}" if why else "")


def _checked(name: str, value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"[^\s'\"\\#]+", value):
        raise ConfigError(
            f"slurm.{name} is {shown(value)}; expected a word without spaces and quotes."
        )
    return value


def _cpus(job: Job) -> tuple[int, str]:
    if job.resources.cpu is not None:
        return math.ceil(job.resources.cpu), ""
    each = _CPUS_PER_GPU if job.devices.gpus else 1
    return each * job.devices.count, "resources.cpu is not given"


def _gpus(job: Job) -> str | None:
    kind = job.devices.accelerator
    if not job.devices.gpus:
        return None
    # nvidia.com/gpu is Kubernetes' name.
    is_type = kind is not None and _GPU_TYPE.fullmatch(kind)
    return f"{kind}:{job.devices.gpus}" if is_type else str(job.devices.gpus)


def _duration(seconds: float) -> str:
    """As D-HH:MM:SS; Slurm counts whole minutes."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def _variables(job: Job) -> Iterator[str]:
    yield f"export SRUN_CPUS_PER_TASK={_cpus(job)[0]}  # since 22.05 srun takes no --cpus-per-task"
    for name, value in command.environment(job).items():
        yield f"export {name}={command.shell([value])}"
    for secret in job.secrets:
        if secret.env is not None:
            yield f': "${{{secret.env}:?Set it before sbatch, which hands it on}}"'
            yield f"export {secret.env}"
    if job.nodes > 1:
        yield "# The agents' secret: another one each time, and in no file."
        yield f"{command.TOKEN}=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')"
        yield f"export {command.TOKEN}"


def _step(job: Job) -> Iterator[str]:
    srun = ["srun", "--distribution=block", "--label", *_container(job)]
    srun += ["--kill-on-bad-exit=0", f"--wait={_wait_s(job)}"]
    if is_elastic(job):
        yield "# Machines come and go: none ends the others."
    elif job.nodes > 1:
        yield "# A task that ends early ends the others after --wait: by then they have saved their"
        yield "# state. With --kill-on-bad-exit=1 the first that has done so would end the others."
    yield "code=0"
    yield f"{' '.join(srun)} \\"
    yield f"  {command.shell(command.drumbeat_run(job))} || code=$?"
    if saves_state(job):
        yield ""
        yield f"# {PREEMPTED_CODE}: the state is saved, and the same job goes on from there, unless"
        yield "# scancel has ended it."
        yield f'if [ "$code" -eq {PREEMPTED_CODE} ] &&'
        yield '    scontrol show job "$SLURM_JOB_ID" | grep -q "JobState=RUNNING"; then'
        yield '  scontrol requeue "$SLURM_JOB_ID"'
        yield "fi"
    yield 'exit "$code"'


def _wait_s(job: Job) -> int:
    """Between the end of the first task and that of the others; 0: any time."""
    return 0 if is_elastic(job) else math.ceil(job.run.grace or GRACE_S) + _NOTICE_MARGIN_S


def _container(job: Job) -> Iterator[str]:
    """Options of pyxis, and variables whose files are elsewhere in the container."""
    if job.slurm.container is None:
        return
    yield f"--container-image={command.shell([job.slurm.container])}"
    mounts = [
        _in_quotes(f"{folder_of_nodes(mount)}:{mount.path}" + (":ro" if mount.read_only else ""))
        for mount in job.mounts
        if mount.source is not None and ":" not in mount.source
    ]
    exported = ["ALL"]
    for secret in job.secrets:
        if secret.path is not None and secret.env is not None:
            mounts.append(f"${secret.env}:{_in_quotes(secret.file)}:ro")
            exported.append(f"{secret.env}={secret.file}")
    if mounts:
        yield f'--container-mounts="{",".join(mounts)}"'
    if len(exported) > 1:
        yield f"--export={command.shell([','.join(exported)])}"


def _in_quotes(text: str) -> str:
    """As a shell reads it between double quotes."""
    return re.sub(r'[\\"$`]', lambda found: f"\\{found[0]}", text)


def _notes(job: Job) -> Iterator[str]:
    slurm = job.slurm
    if job.image is not None and slurm.container is None:
        yield (
            "The image is not used: the job runs in what slurm.setup sets up. slurm.container "
            "names one for sites that have srun --container-image."
        )
    if slurm.container is None and job.mounts:
        yield (
            f"Nothing is mounted: {listed([each.path for each in job.mounts])} must be there on "
            "all machines."
        )
    absent = [each.name for each in job.mounts if each.source is None or ":" in each.source]
    if slurm.container is not None and absent:
        yield (
            f"Only folders of the nodes are mounted, and {listed(absent)} "
            f"{'is none' if len(absent) == 1 else 'are none'}: give source, by its absolute path."
        )
    if job.machine_type is not None and slurm.constraint is None:
        yield "machine_type says nothing to Slurm; slurm.partition and slurm.constraint do."
    for secret in job.secrets:
        if secret.env is None:
            yield f"The secret {secret.name} has no env: its files must lie in {secret.path} there."
        else:
            what = "the path of a file that all machines see" if secret.path else "its value"
            yield f"The secret {secret.name}: set {secret.env} to {what} before you submit."


def recognises(manifest: Manifest) -> bool:
    """Whether it is a script with options of sbatch."""
    return manifest.text.startswith("#!") and bool(
        re.search(r"^#SBATCH\b", manifest.text, re.MULTILINE)
    )


def connect(job: Job) -> Client:
    """The commands of Slurm."""
    from drumbeat.platforms.slurm.client import SlurmClient

    return SlurmClient(job)


PLATFORM = Platform(
    name="slurm",
    title="Slurm",
    render=render,
    recognises=recognises,
    problems=problems,
    rehearse=rehearse,
    connect=connect,
    has_own_disk=lambda job: job.slurm.container is not None,
)
