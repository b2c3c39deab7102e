"""How the devices of a node are shared by processes, for each strategy. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumbeat.cluster import strategy_names as names
from drumbeat.cluster.strategy_names import Decision, Facts, decide
from drumbeat.errors import ConfigError
from drumbeat.launch.sizes import Range

if TYPE_CHECKING:
    from drumbeat.launch.place import Place
    from drumbeat.launch.settings import RunArguments


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The processes of a node that train.

    Attributes:
        decision: The strategy.
        processes: How many; of parameter servers' workers, the servers.
        devices: Devices of each; None for all that the machine has.
        ps: Parameter servers of the job.
        has_servers: Whether workers and ps are servers of the chief.
        is_ours: Whether all of the job's tasks are drumbeat's to look after: none of them
            serves a coordinator in a way of its own.
        notes: For the log.
    """

    decision: Decision
    processes: int
    devices: int | None
    ps: int
    has_servers: bool = False
    is_ours: bool = True
    notes: tuple[str, ...] = ()


def plan_layout(arguments: RunArguments, place: Place, workers: int) -> Layout:
    """What -n, --devices-per-worker and --processes-per-node mean under the strategy.

    A worker is one process with one device, unless something else is said: n workers with D
    devices each are n · D devices in all, one for each process of multi-worker training, all in
    one process of a strategy that knows only one.

    Args:
        arguments: The command line.
        place: This node among the others.
        workers: Workers of this node.

    Raises:
        ConfigError: They can't be had like that.
    """
    decision = _decide(arguments, place, workers)
    if place.lone_task is not None:
        return Layout(decision=decision, processes=1, devices=1, ps=0)
    notes: list[str] = []
    ps = arguments.ps or 0
    if ps and decision.name != names.PARAMETER_SERVER:
        notes.append(
            f"--ps {ps} has no effect: the strategy {decision.name} has no parameter servers."
        )
        ps = 0
    total = workers * (arguments.devices_per_worker or 1)
    if decision.name in names.IN_ONE_PROCESS:
        processes, devices = 1, _in_one_process(arguments, place, decision, total, notes)
    elif decision.name == names.PARAMETER_SERVER:
        processes, devices = workers, arguments.devices_per_worker or 1
    else:
        processes, devices = _multi_worker(arguments, workers, total, notes)
    if arguments.processes_per_node not in (None, processes):
        raise ConfigError(
            f"--processes-per-node is {arguments.processes_per_node}, but the strategy "
            f"{decision.name} trains in {processes} process{'es' if processes > 1 else ''} here. "
            f"Leave it out, or give --strategy {names.MULTI_WORKER}."
        )
    if not decision.why.startswith("as") and (ps or (devices or 0) > 1):
        notes.append(str(decision))
    with_ps = decision.name == names.PARAMETER_SERVER
    if with_ps and place.platform is not None and processes > 1:
        raise ConfigError(
            f"-n is {processes}, but with the ps tasks of TF_CONFIG each of its tasks is one "
            "process. Leave out -n."
        )
    return Layout(
        decision=decision,
        processes=processes,
        devices=devices,
        ps=ps,
        has_servers=with_ps and not arguments.keep_tf_strategies,
        is_ours=not (with_ps and arguments.keep_tf_strategies),
        notes=tuple(notes),
    )


def _decide(arguments: RunArguments, place: Place, workers: int) -> Decision:
    cluster, ps, nodes = place.platform, arguments.ps or 0, place.nodes
    if cluster is not None:
        ps = len(cluster.jobs.get("ps", ())) or ps
        nodes = sum(len(cluster.jobs.get(job, ())) for job in ("chief", "worker"))
    # Those of one node share a process where there can be only one.
    alone = arguments.strategy in names.IN_ONE_PROCESS
    facts = Facts(
        workers=nodes * (1 if alone else workers),
        ps=ps,
        devices=arguments.devices_per_worker or 1,
        options=_of_multi_worker(arguments),
    )
    return decide(arguments.strategy, facts)


def _of_multi_worker(arguments: RunArguments) -> tuple[str, ...]:
    """Options that were given and that only multi-worker training has, as they are written."""
    given = {
        "--exact": arguments.exact is not None,
        f"--shares {arguments.shares}": arguments.shares is not None,
        f"--compress {arguments.compress}": arguments.compress != "none",
        f"--sync-every {arguments.sync_every}": arguments.sync_every is not None,
        f"-n {arguments.workers}": isinstance(arguments.workers, Range),
        f"--processes-per-node {arguments.processes_per_node}": (
            arguments.processes_per_node is not None
        ),
    }
    return tuple(option for option, is_given in given.items() if is_given)


def _in_one_process(
    arguments: RunArguments, place: Place, decision: Decision, total: int, notes: list[str]
) -> int | None:
    """How many devices the process has."""
    if decision.name == names.ONE_DEVICE:
        if total > 1:
            notes.append(f"--strategy {names.ONE_DEVICE}: one process on one device, not {total}.")
            return 1
        asked = arguments.workers is not None or arguments.strategy == names.ONE_DEVICE
        # As without drumbeat: a script sees, and may use, all GPUs of its machine.
        return 1 if asked or place.platform is not None else None
    if arguments.workers is None and arguments.devices_per_worker is None:
        return None
    if arguments.workers not in (None, 1):
        notes.append(
            f"--strategy {decision.name}: one process with {total} devices, in place of "
            f"{arguments.workers} workers."
        )
    return total


def _multi_worker(
    arguments: RunArguments, workers: int, total: int, notes: list[str]
) -> tuple[int, int]:
    """Processes on this node, and devices of each."""
    processes = arguments.processes_per_node or total
    if isinstance(arguments.workers, Range) and processes != workers:
        raise ConfigError(
            f"-n is {arguments.workers}, and a job that gets smaller or larger has one device in "
            "each worker. Leave out --devices-per-worker and --processes-per-node."
        )
    if total % processes:
        raise ConfigError(
            f"--processes-per-node is {processes}, but {total} devices (-n times "
            f"--devices-per-worker) can't be shared evenly by so many. Expected a number that "
            f"divides {total}."
        )
    if processes != workers and arguments.processes_per_node is None:
        notes.append(
            f"{workers} worker{'s' if workers > 1 else ''} of {total // workers} devices: "
            f"{processes} processes, each with one device; --processes-per-node chooses."
        )
    return processes, total // processes
