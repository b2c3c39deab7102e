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
        rank: Its rank, or -1 for a ps or an evaluator.
        local_rank: Its place among the processes of the node: decides its CPUs.
        tf_config: TF_CONFIG as it sees it, JSON.
    """

    name: str
    rank: int
    local_rank: int
    tf_config: str

    @property
    def folder(self) -> str:
        """Name of its folder under the run's: "worker-1"."""
        return self.name.replace(" ", "-")


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
    sync: list[str] = []
    ps: list[str] = []
    for node in roster:
        places = [_address(node.host, port) for port in node.ports]
        count = len(places) - (settings.ps if node.node_rank == 0 else 0)
        sync += places[:count]
        ps += places[count:]
    jobs: dict[str, object] = {}
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


def local_tasks(
    settings: RunSettings, roster: Sequence[Node], cluster: ClusterSpec
) -> tuple[LocalTask, ...]:
    """The processes of this node, those with a rank first."""
    if settings.lone_task:
        own = [settings.lone_task]
    else:
        sizes = [_sync_size(settings, node) for node in roster]
        first = sum(sizes[: settings.node_rank])
        own = list(cluster.sync_tasks[first : first + sizes[settings.node_rank]])
        if settings.node_rank == 0:
            own += [Task("ps", index) for index in range(settings.ps)]
    return tuple(
        LocalTask(
            name=str(task),
            rank=-1 if settings.lone_task else cluster.rank_of(task),
            local_rank=local_rank,
            tf_config=cluster.for_task(task).to_json(),
        )
        for local_rank, task in enumerate(own)
    )


def sync_sizes(settings: RunSettings, roster: Sequence[Node]) -> tuple[int, ...]:
    """How many ranks each node has."""
    return tuple(_sync_size(settings, node) for node in roster)


def _sync_size(settings: RunSettings, node: Node) -> int:
    return len(node.ports) - (settings.ps if node.node_rank == 0 else 0)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
