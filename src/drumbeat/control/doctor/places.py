"""TF_CONFIG and the addresses in it: what one process can tell of its job's places."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from drumbeat.cluster import ClusterSpec
from drumbeat.cluster.address import parse_address
from drumbeat.cluster.wording import listed
from drumbeat.control.doctor.result import Result, error, ok, warning
from drumbeat.errors import ConfigError

# How a try to connect ends.
OPEN, REFUSED, TIMEOUT, NO_NAME, NO_WAY, OTHER = (
    "open",
    "refused",
    "timeout",
    "name unknown",
    "no way",
    "someone else",
)


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a try to reach an address ended.

    Attributes:
        state: One of the words above; `OTHER` where something answers that is not the node.
        ips: What the name stands for.
        wait_ms: How long it took.
        detail: More, in the system's words.
        ahead_s: By how much the other's clock is ahead, where it said its time.
    """

    state: str
    ips: tuple[str, ...] = ()
    wait_ms: float = 0.0
    detail: str = ""
    ahead_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Own:
    """What this machine says of the address that is to be its own.

    Attributes:
        is_here: Whether the address is one of this machine's; None where that can't be told.
        busy: Why nothing can listen at its port; "" where it can.
    """

    is_here: bool | None
    busy: str = ""


def check_tf_config(env: Mapping[str, str]) -> tuple[Result, ClusterSpec | None]:
    """TF_CONFIG as far as it can be judged by itself."""
    try:
        cluster = ClusterSpec.from_env(env)
    except ConfigError as problem:
        return error("TF_CONFIG", str(problem)), None
    if cluster is None or cluster.task is None:
        return ok("TF_CONFIG", "Not set: one machine, or the platform's own variables."), None
    jobs = ", ".join(f"{len(tasks)} {job}" for job, tasks in cluster.jobs.items())
    return ok("TF_CONFIG", f"This is {cluster.task} in a cluster of {jobs}."), cluster


def check_loopback(cluster: ClusterSpec, *, several: str, is_sure: bool = True) -> list[Result]:
    """Whether tasks on several machines are all called localhost.

    Args:
        cluster: The cluster.
        several: What says that they are on several machines; "" where nothing does.
        is_sure: Whether that leaves no doubt.
    """
    addresses = [cluster.address(task) for task in cluster.tasks]
    if len(addresses) < 2 or not all(parse_address(a, "").loopback for a in addresses):
        return []
    which = f"All {len(addresses)} tasks are at addresses of this machine ({listed(addresses, 3)})"
    if several:
        text = (
            f"{which}, but {several}: on several machines each would wait for itself. Give every "
            "task the name or address by which the other machines reach it."
        )
        return [error("localhost", text) if is_sure else warning("localhost", text)]
    return [ok("localhost", f"{which}, which is right where all of them run here.")]


def check_own(cluster: ClusterSpec, own: Own, meeting_port: int | None = None) -> list[Result]:
    """The place of this process's own task.

    Args:
        cluster: The cluster.
        own: What this machine says of it.
        meeting_port: Where the agents meet, if that is on this machine.
    """
    task = cluster.task
    if task is None or task not in cluster.tasks:
        return []
    address = cluster.address(task)
    found: list[Result] = []
    if own.is_here is False:
        found.append(
            warning(
                "own address",
                f"TF_CONFIG says that this is {task} at {address}, which is no address of this "
                "machine. Expected its own, except in networks that translate addresses: "
                "correct task.index, or the address.",
            )
        )
    if own.busy:
        found.append(
            error(
                "own port",
                f"{task} is to listen at {address}, but {own.busy}. End what listens there "
                "(perhaps an earlier run), or give the task another port.",
            )
        )
    return found or [ok("own port", f"{address} is free.")]


def check_same_place(cluster: ClusterSpec, ips: Mapping[str, Collection[str]]) -> list[Result]:
    """Whether two tasks with other names are at one place after all.

    Args:
        cluster: The cluster.
        ips: What the names of hosts stand for.
    """
    owners: dict[tuple[str, int], str] = {}
    found: list[Result] = []
    for task in cluster.tasks:
        address = parse_address(cluster.address(task), "")
        for ip in ips.get(address.host, ()):
            other = owners.setdefault((ip, address.port), str(task))
            if other != str(task):
                found.append(
                    error(
                        "one address",
                        f"{other} and {task} have different names, but both are {ip} port "
                        f"{address.port}; expected a place for each. Give one of them another "
                        "port.",
                    )
                )
                break
    return found


def check_reach(reached: Mapping[str, Reach], names: Mapping[str, str]) -> list[Result]:
    """Whether the other tasks' machines can be reached from this one.

    Nothing needs to listen there yet: a machine that refuses a connection has been reached.

    Args:
        reached: How a try to reach each address ended.
        names: Who is at an address, such as "worker 1".
    """
    found: list[Result] = []
    for address, reach in reached.items():
        who = f"{names.get(address, 'node 0')} at {address}"
        if reach.state == NO_NAME:
            found.append(
                error(
                    "peers",
                    f"{who}: the name is unknown here. Expected one that every machine can "
                    "resolve: correct it, or look whether its pod or service is there yet.",
                )
            )
        elif reach.state == TIMEOUT:
            found.append(
                error(
                    "peers",
                    f"{who} ({listed(reach.ips)}): no answer within {reach.wait_ms / 1000:g} s. "
                    "The machine is off, or a firewall or network policy drops what is sent there: "
                    f"open the port between the job's machines. {_PAIRWISE}",
                )
            )
        elif reach.state == NO_WAY:
            found.append(
                error(
                    "peers",
                    f"{who} ({listed(reach.ips)}): {reach.detail}. Expected an address in a "
                    "network that this machine has a way to.",
                )
            )
    answered = [a for a, reach in reached.items() if reach.state in (OPEN, REFUSED)]
    if answered:
        listening = sum(reached[a].state == OPEN for a in answered)
        found.append(
            ok(
                "peers",
                f"{len(answered)} of {len(reached)} other addresses can be reached from here; "
                f"something listens at {listening} of them.",
            )
        )
    return found


_PAIRWISE = "`drumbeat doctor --together`, started on all of them, shows who reaches whom."


def check_token(env: Mapping[str, str], nodes: int) -> list[Result]:
    """Whether the agents of several nodes have a secret."""
    if nodes < 2:
        return []
    if any(env.get(name, "").strip() for name in ("DRUMBEAT_TOKEN", "DRUMBEAT_TOKEN_FILE")):
        return [ok("token", "The agents' secret is set.")]
    return [
        error(
            "token",
            f"DRUMBEAT_TOKEN is not set, and the job has {nodes} nodes; expected the same secret "
            "on all of them, such as the output of `openssl rand -hex 32`, or its file in "
            "DRUMBEAT_TOKEN_FILE.",
        )
    ]


def check_same_cluster(clusters: Mapping[str, ClusterSpec], sizes: Sequence[str]) -> list[Result]:
    """Whether processes were told the same cluster, and each a task of its own.

    Args:
        clusters: What each process was told, by its name.
        sizes: The processes by name, those without TF_CONFIG, too.
    """
    found: list[Result] = []
    owners: dict[str, str] = {}
    first_name, first = next(iter(clusters.items()), ("", None))
    for name, cluster in clusters.items():
        if first is not None and cluster.jobs != first.jobs:
            found.append(
                error(
                    "TF_CONFIG",
                    f"{name} was given another cluster than {first_name}; expected the same "
                    "`cluster` for all, and only `task` of its own for each.",
                )
            )
        other = owners.setdefault(str(cluster.task), name)
        if other != name:
            found.append(
                error(
                    "TF_CONFIG",
                    f"{other} and {name} are both {cluster.task}; expected a task.index of its own "
                    "for each.",
                )
            )
    if first is not None and not found:
        missing = [str(task) for task in first.tasks if str(task) not in owners]
        if missing:
            found.append(
                error(
                    "TF_CONFIG",
                    f"The cluster has {listed(missing)}, which none of {listed(sizes)} is: the "
                    "others would wait for it. Start one process for each task.",
                )
            )
    return found
