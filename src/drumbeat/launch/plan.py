"""From the settings of a run and the nodes that came to the processes of one node. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumbeat.cluster.spec import ClusterSpec, Task
from drumbeat.launch.roster import Node
from drumbeat.launch.settings import RunSettings


@dataclass(frozen=True, kw_only=True)
class LocalTask:
    """One process that this node runs.

    Attributes:
        name: How logs call it, such as "worker 1".
        rank: Its rank among those that train; -1 for a server and an evaluator.
        local_rank: Its place among the processes of the node: decides its CPUs.
        tf_config: TF_CONFIG as it sees it, JSON.
        is_server: It runs no script, but a server for the chief.
        is_evaluator: It evaluates what the others train.
        uses_devices: It computes on GPUs, if there are any.
        number: Its place in the job: 0 is the chief, then workers, then ps. With servers,
            faults to rehearse name them by it.
    """

    name: str
    rank: int
    local_rank: int
    tf_config: str
    is_server: bool = False
    is_evaluator: bool = False
    uses_devices: bool = True
    number: int = 0

    @property
    def folder(self) -> str:
        """Name of its folder under the run's: "worker-1"."""
        return self.name.replace(" ", "-")

    @property
    def starts_alone(self) -> bool:
        """Whether it can be started again without the others: it holds nothing that they miss."""
        return self.is_evaluator or (self.is_server and not self.name.startswith("ps"))


def cluster_of(settings: RunSettings, roster: Sequence[Node]) -> ClusterSpec:
    """The cluster of the job: rank 0 first, then the workers node by node.

    Args:
        settings: Of any node; `ps` and `platform` are the same on all.
        roster: All nodes, by node rank. `ports` are in the order of ranks, the
            ps tasks' at the end.
    """
    if settings.lone_task:
        assert settings.platform is not None  # noqa: S101
        return settings.platform
    jobs: dict[str, object] = {}
    sync, ps = _addresses(settings, roster)
    platform = settings.platform.jobs if settings.platform else {}
    if settings.ps or "chief" in platform:
        jobs["chief"] = sync[:1]
        sync = sync[1:]
    if sync:
        jobs["worker"] = sync
    if ps:
        jobs["ps"] = ps
    for job in ("ps", "evaluator"):
        if job in platform and job not in jobs:
            jobs[job] = platform[job]
    rpc_layer = settings.platform.rpc_layer if settings.platform else None
    environment = settings.platform.environment if settings.platform else None
    return ClusterSpec(jobs, rpc_layer=rpc_layer, environment=environment)  # type: ignore[arg-type]


def _addresses(settings: RunSettings, roster: Sequence[Node]) -> tuple[list[str], list[str]]:
    """Of chief and workers, and of the ps tasks."""
    sync: list[str] = []
    ps: list[str] = []
    for node, count in zip(roster, sync_sizes(settings, roster), strict=True):
        places = [_address(node.host, port) for port in node.ports]
        sync += places[:count]
        ps += places[count:]
    return sync, ps


def local_tasks(
    settings: RunSettings, roster: Sequence[Node], cluster: ClusterSpec
) -> tuple[LocalTask, ...]:
    """The processes of this node, in the order in which they are started."""
    own = _own_tasks(settings, roster, cluster)
    if settings.has_servers:
        # The chief looks for its servers; and GPUs are given out in this order.
        order = ("worker", "ps", "chief", "evaluator")
        own = sorted(own, key=lambda task: (order.index(task.type), task.index))
    return tuple(
        _local_task(settings, cluster, task, local_rank) for local_rank, task in enumerate(own)
    )


def _own_tasks(settings: RunSettings, roster: Sequence[Node], cluster: ClusterSpec) -> list[Task]:
    if settings.lone_task:
        return [settings.lone_task]
    sizes = sync_sizes(settings, roster)
    first = sum(sizes[: settings.node_rank])
    own = list(cluster.sync_tasks[first : first + sizes[settings.node_rank]])
    if settings.has_servers and not own:
        own = [settings.platform_tasks[settings.node_rank]]
    if settings.node_rank == 0:
        own += [Task("ps", index) for index in range(settings.ps)]
        own += [Task("evaluator", 0)] if settings.evaluator else []
    return own


def _local_task(
    settings: RunSettings, cluster: ClusterSpec, task: Task, local_rank: int
) -> LocalTask:
    is_evaluator = task.type == "evaluator"
    rank = -1 if settings.lone_task or is_evaluator else cluster.rank_of(task)
    serves = settings.has_servers and task.type in ("worker", "ps")
    return LocalTask(
        name=str(task),
        rank=-1 if serves else rank,
        local_rank=local_rank,
        tf_config=cluster.for_task(task).to_json(),
        is_server=serves,
        is_evaluator=is_evaluator and not settings.lone_task,
        # Whoever only opens a GPU takes all of its memory.
        uses_devices=task.type == "worker" if settings.has_servers else not is_evaluator,
        number=-1 if is_evaluator else cluster.tasks.index(task),
    )


def sync_sizes(settings: RunSettings, roster: Sequence[Node]) -> tuple[int, ...]:
    """How many chiefs and workers each node has."""
    return tuple(_sync_size(settings, node) for node in roster)


def _sync_size(settings: RunSettings, node: Node) -> int:
    if settings.has_servers and settings.platform_tasks:
        return int(settings.platform_tasks[node.node_rank].type != "ps")
    return len(node.ports) - (settings.ps if node.node_rank == 0 else 0)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
