"""Which node this is, and where agents meet: by arguments, TF_CONFIG, or the platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drumbeat.cluster import launched_by, strategy_names
from drumbeat.cluster.address import parse_address
from drumbeat.cluster.spec import ClusterSpec, Task
from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

if TYPE_CHECKING:
    from drumbeat.launch.settings import RunArguments


@dataclass(frozen=True, kw_only=True)
class Place:
    """This node among the job's; the attributes are those of `RunSettings`.

    Its `platform_tasks` are `tasks` here.
    """

    nodes: int = 1
    node_rank: int = 0
    rendezvous: tuple[str, int] | None = None
    platform: ClusterSpec | None = None
    tasks: tuple[Task, ...] = ()
    lone_task: Task | None = None
    notes: tuple[str, ...] = ()


def environ_here(env: Mapping[str, str]) -> dict[str, str]:
    """`env`, with what the platform has put into files of this machine instead."""
    return dict(launched_by.with_files(env, _text_of))


def find_place(arguments: RunArguments, env: Mapping[str, str]) -> Place:
    """Which node of how many this is: what was given, else what TF_CONFIG or the platform says.

    Raises:
        ConfigError: They contradict themselves or each other, or something is missing.
    """
    if arguments.nodes is not None:
        return _place_from_arguments(arguments, env)
    cluster = ClusterSpec.from_env(env)
    if cluster is None:
        for option, value in (
            ("--node-rank", arguments.node_rank),
            ("--rendezvous", arguments.rendezvous),
        ):
            if value is not None:
                raise ConfigError(
                    f"{option} is {shown(value)}, but --nodes is not given; expected how many "
                    "nodes the job has, such as --nodes 2."
                )
        return _place_by_platform(launched_by.find(env))
    return _place_from_platform(arguments, cluster)


def _place_by_platform(found: launched_by.Found | None) -> Place:
    """Where a platform that sets no TF_CONFIG has put this process."""
    if found is None or found.nodes == 1:
        return Place(notes=(str(found),) if found and found.note else ())
    return Place(
        nodes=found.nodes,
        node_rank=found.node_rank,
        rendezvous=(found.host, found.port),
        notes=(str(found),),
    )


def _place_from_arguments(arguments: RunArguments, env: Mapping[str, str]) -> Place:
    nodes = arguments.nodes or 1
    ignored = ("TF_CONFIG is set, but --nodes is given and wins.",) if "TF_CONFIG" in env else ()
    rank = arguments.node_rank
    if nodes == 1:
        if rank:
            raise ConfigError(f"--node-rank is {rank} of --nodes 1; expected 0.")
        return Place(notes=ignored)
    if rank is None:
        raise ConfigError(
            f"--nodes is {nodes}, but which of them is this? Give --node-rank 0 to {nodes - 1}, "
            "another on each node."
        )
    if rank >= nodes:
        raise ConfigError(f"--node-rank is {rank} of --nodes {nodes}; expected 0 to {nodes - 1}.")
    if arguments.rendezvous is None:
        raise ConfigError(
            f"--nodes is {nodes}, but --rendezvous is not given; expected HOST:PORT, an address of "
            "node 0 with a port that is free there, the same on every node."
        )
    address = _rendezvous(arguments.rendezvous)
    return Place(nodes=nodes, node_rank=rank, rendezvous=address, notes=ignored)


def _place_from_platform(arguments: RunArguments, cluster: ClusterSpec) -> Place:
    task = cluster.task
    assert task is not None, "from_env sets it"  # noqa: S101
    if arguments.node_rank is not None:
        raise ConfigError(
            f"--node-rank is {arguments.node_rank}, but TF_CONFIG says that this is {task}. Leave "
            "it out, or give --nodes as well to have TF_CONFIG ignored."
        )
    is_lone = task.type == "evaluator" or (task.type == "ps" and not _serves(arguments, cluster))
    if is_lone:
        note = f"This is {task} of TF_CONFIG: the script runs once, outside the workers' training."
        return Place(platform=cluster, lone_task=task, notes=(note,))
    tasks = _tasks(arguments, cluster)
    rank, nodes = tasks.index(task), len(tasks)
    notes = [f"TF_CONFIG: this is {task}, node {rank} of {nodes}."]
    if nodes == 1:
        return Place(platform=cluster, tasks=tasks, notes=tuple(notes))
    if arguments.rendezvous is not None:
        address = _rendezvous(arguments.rendezvous)
    else:
        address = _rendezvous(cluster.address(cluster.chief))
    return Place(
        nodes=nodes,
        node_rank=rank,
        rendezvous=address,
        platform=cluster,
        tasks=tasks,
        notes=tuple(notes),
    )


def _serves(arguments: RunArguments, cluster: ClusterSpec) -> bool:
    """Whether the workers and ps of a platform's cluster are servers of its chief."""
    asked = arguments.strategy in (strategy_names.AUTO, strategy_names.PARAMETER_SERVER)
    return "ps" in cluster.jobs and asked and not arguments.keep_tf_strategies


def _tasks(arguments: RunArguments, cluster: ClusterSpec) -> tuple[Task, ...]:
    """The tasks whose agents meet, by node rank."""
    if not _serves(arguments, cluster):
        return cluster.sync_tasks
    if "chief" not in cluster.jobs:
        raise ConfigError(
            "TF_CONFIG has ps tasks but no chief, which would run the script and coordinate the "
            "others. Add a chief to the cluster, or give --strategy multi-worker to train in step, "
            "without ps."
        )
    return (*cluster.sync_tasks, *(task for task in cluster.tasks if task.type == "ps"))


def _rendezvous(text: str) -> tuple[str, int]:
    address = parse_address(text, "--rendezvous")
    host = text.rpartition(":")[0].strip("[]")  # as given: "localhost" may be any loopback name
    return host, address.port


def _text_of(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None
