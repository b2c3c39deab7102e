"""A batch script of Slurm as processes of this machine: the tasks of its step.

Source: srun(1), OUTPUT ENVIRONMENT VARIABLES; as seen with slurm-wlm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumbeat.cluster.launched_by.slurm import PORTS, PORTS_FROM
from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.command import TOKEN
from drumbeat.platforms.platform import Manifest, Places, Process, Rehearsal
from drumbeat.platforms.shell_text import plain
from drumbeat.platforms.slurm.script import Options, Script, Step, filled, read

MAX_TASKS = 1024
_PORT_TRIES = 64
_BATCH = "batch"
_BIND_NAMES = ("gpus-per-node", "gpus", "gpus-per-task", "gres")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which task runs where.

    Attributes:
        counts: Tasks of each node.
        per_node: As asked for with --ntasks-per-node, if it was.
        distribution: What SLURM_DISTRIBUTION says.
    """

    counts: tuple[int, ...]
    distribution: str
    per_node: int | None = None

    @property
    def is_cyclic(self) -> bool:
        """Whether tasks go round the nodes, in another order than theirs on each node."""
        return self.distribution == "cyclic" and max(self.counts) > 1

    @property
    def places(self) -> list[tuple[int, int]]:
        """Of each task, by rank: its node, and its number there."""
        nodes = range(len(self.counts))
        if not self.is_cyclic:
            return [(node, local) for node in nodes for local in range(self.counts[node])]
        rounds = range(max(self.counts))
        return [(node, local) for local in rounds for node in nodes if local < self.counts[node]]


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The tasks of the script's step, or the script itself where it has none.

    Raises:
        ConfigError: Its options can't be understood.
    """
    script = read(manifest.text)
    step = script.training
    job = _job_id(places)
    if step is None:
        env = _batch_env(script, layout_of(script.groups, {}), job)
        process = Process(name=_BATCH, command=("bash", str(manifest.path)), env=env)
        return Rehearsal(
            platform="slurm", processes=(process,), differences=tuple(_differences(script, None))
        )
    groups = _groups_of(script, step)
    layout = layout_of(groups, step.options)
    # Of a heterogeneous job, a step sees the components that it is in as one job.
    batch = _batch_env(script, layout_of(groups, {}), job)
    unknown: list[str] = []
    env = dict(batch)
    for name, value in script.exports:
        if name == TOKEN:
            continue
        known = filled(value, env)
        if known is None:
            unknown.append(name)
        else:
            env[name] = known
    words = [filled(word, env) for word in step.command]
    if None in words:
        word = step.command[words.index(None)]
        raise ConfigError(
            f"srun runs {shown(plain(word))}, which only the shell of the job can compute. "
            "Expected a command with no other variables than the script exports."
        )
    env |= _exported_by_srun(step, env)
    processes = tuple(
        Process(
            name=f"task-{rank}",
            command=tuple(word or "" for word in words),
            env={**env, **_task_env(layout, rank, job, step)},
        )
        for rank in range(sum(layout.counts))
    )
    differences = tuple(_differences(script, step, unknown))
    return Rehearsal(platform="slurm", processes=processes, differences=differences)


def layout_of(groups: Sequence[Options], srun: Options) -> Layout:
    """Where Slurm puts the tasks of a step, as far as that doesn't depend on its machines.

    Args:
        groups: Options of sbatch, of each component that the step is in.
        srun: Those of srun, which win.

    Raises:
        ConfigError: A number of them is none.
    """
    counts: list[int] = []
    per_node: int | None = None
    for group in groups:
        # Each component of a heterogeneous job has its own size.
        options = {**group, **srun} if len(groups) == 1 else group
        per_node = _number(options, "ntasks-per-node")
        counts += _counts(options, per_node)
    if sum(counts) > MAX_TASKS:
        raise ConfigError(f"The script has {sum(counts)} tasks; expected {MAX_TASKS} at most.")
    asked = {**groups[0], **srun}.get("distribution", "").partition(":")[0].partition(",")[0]
    distribution = asked.lower() or ("cyclic" if sum(counts) <= len(counts) else "block")
    return Layout(
        counts=tuple(counts),
        per_node=per_node,
        distribution=distribution,
    )


def _counts(options: Options, per_node: int | None) -> list[int]:
    nodes = _number(options, "nodes")
    tasks = _number(options, "ntasks")
    if nodes is None:
        nodes = 1 if tasks is None or per_node is None else -(-tasks // per_node)
    if tasks is None:
        tasks = nodes * (per_node or 1)
    if tasks < nodes:
        nodes = tasks  # srun: "Warning: can't run 1 processes on 2 nodes, setting nnodes to 1"
    if nodes > MAX_TASKS:
        return [nodes]
    return [tasks // nodes + (node < tasks % nodes) for node in range(nodes)]


def _number(options: Options, name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})(?:-\d{1,6})?", text, re.ASCII)
    if found is None or not int(found[1]):
        raise ConfigError(f"--{name} is {shown(text)}; expected a whole number from 1.")
    return int(found[1])


def _groups_of(script: Script, step: Step) -> list[Options]:
    """The components of a heterogeneous job that the step is in."""
    text = step.options.get("het-group", step.options.get("pack-group"))
    if text is None:
        return script.groups[:1]
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part.strip(), re.ASCII)
        if found is None or int(found[2] or found[1]) >= len(script.groups):
            raise ConfigError(
                f"--het-group is {shown(text)}; expected numbers from 0 to "
                f"{len(script.groups) - 1}, the components of the job."
            )
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
    return [script.groups[number] for number in numbers] or script.groups[:1]


def _job_id(places: Places) -> int:
    """The number of a job whose agents meet at a port that is free here."""
    port = 0
    for _ in range(_PORT_TRIES):
        port = places.port()
        if PORTS_FROM <= port < PORTS_FROM + PORTS:
            break
    return (port - PORTS_FROM) % PORTS or PORTS


def _hosts(count: int) -> str:
    """Names of this machine, as a list of Slurm's; on Linux all of 127.0.0.0/8 are."""
    return "127.0.0.1" if count == 1 else f"127.0.0.[1-{count}]"


def _short(counts: Sequence[int]) -> str:
    """Numbers as Slurm writes them: 2(x3),1."""
    parts: list[list[int]] = []
    for count in counts:
        if parts and parts[-1][0] == count:
            parts[-1][1] += 1
        else:
            parts.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)


def _job_env(script: Script, layout: Layout, job: int) -> dict[str, str]:
    """What the batch script and its steps have in common."""
    nodes, tasks = len(layout.counts), sum(layout.counts)
    env = {
        "SLURM_CLUSTER_NAME": "rehearsal",
        "SLURM_JOBID": str(job),
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NAME": script.options.get("job-name", "rehearsal"),
        "SLURM_JOB_NODELIST": _hosts(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_PARTITION": script.options.get("partition", "rehearsal"),
        "SLURM_NNODES": str(nodes),
        "SLURM_NODELIST": _hosts(nodes),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NTASKS": str(tasks),
        "SLURM_SUBMIT_DIR": str(Path.cwd()),
        "SLURM_SUBMIT_HOST": "127.0.0.1",
        "SLURM_TASKS_PER_NODE": _short(layout.counts),
    }
    if len(script.groups) > 1:
        env["SLURM_HET_SIZE"] = env["SLURM_PACK_SIZE"] = str(len(script.groups))
    if layout.per_node is not None:
        env["SLURM_NTASKS_PER_NODE"] = str(layout.per_node)
    for option, name in (
        ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
        ("gpus-per-node", "SLURM_GPUS_PER_NODE"),
    ):
        if option in script.options:
            env[name] = script.options[option]
    return env


def _batch_env(script: Script, layout: Layout, job: int) -> dict[str, str]:
    """Of the script itself: rank 0 of no step."""
    return {
        **_job_env(script, layout, job),
        "SLURMD_NODENAME": "127.0.0.1",
        "SLURM_GTIDS": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
    }


def _task_env(layout: Layout, rank: int, job: int, step: Step) -> dict[str, str]:
    """What srun adds, or sets otherwise."""
    places = layout.places
    node, local = places[rank]
    nodes, tasks = len(layout.counts), len(places)
    here = [str(other) for other, (its_node, _) in enumerate(places) if its_node == node]
    return {
        "SLURMD_NODENAME": f"127.0.0.{node + 1}",
        "SLURM_DISTRIBUTION": layout.distribution,
        "SLURM_GTIDS": ",".join(here),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_LOCALID": str(local),
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": str(node),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NTASKS": str(tasks),
        "SLURM_PROCID": str(rank),
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": _hosts(nodes),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_TASKS_PER_NODE": _short(layout.counts),
        "SLURM_TASKS_PER_NODE": _short(layout.counts),
        **({"SLURM_LABELIO": "1"} if "label" in step.options else {}),
    }


def _exported_by_srun(step: Step, env: Mapping[str, str]) -> dict[str, str]:
    """Variables that --export sets, as in --export=ALL,A=b."""
    found = {}
    for part in step.options.get("export", "").split(","):
        name, equals, value = part.partition("=")
        if equals and (known := filled(value, env)) is not None:
            found[name] = known
    return found


def _differences(script: Script, step: Step | None, unknown: Sequence[str] = ()) -> Iterator[str]:
    yield (
        "Slurm's machines have their own names and network; all of 127.0.0.1, 127.0.0.2 and so on "
        "are this machine."
    )
    if step is None:
        yield (
            "The script has no srun: it runs on the first machine of the job only, whatever the "
            "others were asked for."
        )
        if script.commands:
            yield (
                "All of the script's lines were run here, by this machine's bash, those that set "
                "up the machine (module, source) among them."
            )
    elif script.setup:
        yield (
            f"Lines that set up the machine are not run here: {listed(map(shown, script.setup))}."
        )
    if unknown:
        yield f"Set by the shell of the job only: {listed(dict.fromkeys(unknown))}."
    others = [each for each in script.steps if each is not step]
    if others:
        named = listed(plain(" ".join(each.command)) for each in others)
        yield f"Other steps of the script are not run here: {named}."
    gpus = [name for name in _BIND_NAMES if name in script.options]
    if gpus:
        yield f"GPUs: --{gpus[0]}={script.options[gpus[0]]}; here are those of this machine."
    image = (step.options if step else {}).get("container-image")
    if image:
        yield f"The tasks run in {image}; here in this environment."
    for name, what in (("mem", "memory"), ("cpus-per-task", "CPUs of a task"), ("time", "time")):
        if name in script.options:
            yield f"The {what} that Slurm allows: --{name}={script.options[name]}."
    among = f", {listed(script.handed_on)} among them" if script.handed_on else ""
    yield f"sbatch hands on the variables of its shell{among}; --env NAME has one here."
