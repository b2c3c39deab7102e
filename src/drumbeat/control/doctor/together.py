"""What the nodes of a job say of each other: who reaches whom, and what differs."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from drumbeat.cluster.wording import listed, shown
from drumbeat.control.doctor.machine import Machine, Place, check_shm, check_versions
from drumbeat.control.doctor.places import NO_NAME, NO_WAY, OPEN, OTHER, REFUSED, TIMEOUT, Reach
from drumbeat.control.doctor.result import OK, WARNING, Result, error, ok, warning

Reached = Mapping[tuple[int, int], Reach]
"""By who tried, and whom."""
SKEW_WARNING_S, SKEW_ERROR_S = 2.0, 240.0
"""Logins at object stores are refused from about five minutes on; logs are puzzling before."""
MAX_COLUMNS = 16
_WHY = {
    REFUSED: "refuses the connection, though the node listens: something between them answers",
    TIMEOUT: "no answer: a firewall or network policy drops what is sent there",
    NO_NAME: "its name is unknown there",
    NO_WAY: "there is no way to its address from there",
    OTHER: "something else answers at its address, not the node",
}


def check(machines: Mapping[int, Machine], reached: Reached, *, workers: int = 1) -> list[Result]:
    """All that is to be said about the nodes together.

    Args:
        machines: What each node says of itself, by its rank.
        reached: How the tries of each to reach the others ended.
        workers: Of each node.
    """
    found = [
        *check_reach(reached),
        *check_clocks(reached),
        *_same(machines, "versions", _versions, warns=False),
        *_same(machines, "script", lambda machine: machine.script, warns=False),
        *_sources(machines),
        *_same(machines, "machines", _size, warns=True),
        *_seen(machines, "data", [machine.data for machine in machines.values()]),
        *_seen(machines, "output", [machine.output for machine in machines.values()]),
    ]
    for rank, machine in machines.items():
        found += [error(name, f"Node {rank}: {text}") for name, text in machine.problems.items()]
        alone = [*check_versions(machine.versions), *check_shm(machine, workers, machine.gpus)]
        found += [
            dataclasses.replace(each, text=f"Node {rank}: {each.text}")
            for each in alone
            if each.state != OK
        ]
    return found


def _sources(machines: Mapping[int, Machine]) -> list[Result]:
    found = _same(machines, "sources", lambda machine: machine.sources, warns=True)
    if not any(each.state == WARNING for each in found):
        return found
    paths = {path for machine in machines.values() for path in machine.files}
    apart = [
        path
        for path in sorted(paths)
        if len({machine.files.get(path) for machine in machines.values()}) > 1
    ]
    which = f" They differ in {listed(apart)}." if apart else ""
    return [dataclasses.replace(each, text=each.text + which) for each in found]


def check_reach(reached: Reached) -> list[Result]:
    """Whether every node can reach every other one."""
    if not reached:
        return []
    found: list[Result] = []
    for (who, whom), reach in reached.items():
        if reach.state == OPEN:
            continue
        back = reached.get((whom, who))
        other = " The other direction works." if back is not None and back.state == OPEN else ""
        at = f" at {listed(reach.ips)}" if reach.ips else ""
        detail = f" ({reach.detail})" if reach.detail else ""
        why = _WHY.get(reach.state, reach.state)
        found.append(
            error(
                "reach",
                f"Node {who} can't reach node {whom}{at}: {why}{detail}.{other} Workers of all "
                "nodes connect to each other, at ports that the system chooses: allow all "
                "between them.",
            )
        )
    if not found:
        slowest = max(reach.wait_ms for reach in reached.values())
        found.append(ok("reach", f"Every node reaches every other one, within {slowest:.1f} ms."))
    return found


def check_clocks(reached: Reached) -> list[Result]:
    """Whether the nodes' clocks agree with that of node 0."""
    ahead = {
        who: -reach.ahead_s
        for (who, whom), reach in reached.items()
        if whom == 0 and reach.ahead_s is not None
    }
    if not ahead:
        return []
    rank, most = max(ahead.items(), key=lambda item: abs(item[1]))
    if abs(most) < SKEW_WARNING_S:
        return [ok("clocks", f"They differ by at most {abs(most):.2f} s from that of node 0.")]
    way = "ahead of" if most > 0 else "behind"
    text = (
        f"The clock of node {rank} is {abs(most):.1f} s {way} that of node 0; expected less than "
        f"{SKEW_WARNING_S:g} s. Set it by NTP (chrony): logs can't be compared, and object stores "
        "refuse logins from about five minutes on."
    )
    return [(error if abs(most) >= SKEW_ERROR_S else warning)("clocks", text)]


def _versions(machine: Machine) -> str:
    return ", ".join(f"{name} {version or 'missing'}" for name, version in machine.versions.items())


def _size(machine: Machine) -> str:
    memory = f", {machine.memory_bytes / 2**30:.0f} GiB of memory" if machine.memory_bytes else ""
    return f"{machine.cpus:g} CPUs, {machine.gpus} GPUs{memory}"


_MEND = {
    "versions": "Install the same on all of them: give them the same image.",
    "script": "Give all nodes the same one.",
    "sources": "Where the script imports one of them, nodes train different models.",
    "machines": "All wait for the slowest in each step: --shares auto gives each what it can do.",
}


def _same(
    machines: Mapping[int, Machine], what: str, of: Callable[[Machine], str], *, warns: bool
) -> list[Result]:
    if len(machines) < 2:
        return []
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, machine in machines.items():
        groups[of(machine)].append(rank)
    if len(groups) == 1:
        value = next(iter(groups))
        if not value:
            return []
        return [ok(what, f"The same on all nodes: {value}.")]
    said = "; ".join(f"{value or 'none'} on {_nodes(ranks)}" for value, ranks in groups.items())
    name = {
        "script": "The script is not the same on all nodes",
        "sources": "The folder's Python files are not the same on all nodes",
        "versions": "Versions differ",
        "machines": "The machines differ",
    }[what]
    return [(warning if warns else error)(what, f"{name}: {said}. {_MEND[what]}")]


def _nodes(ranks: Sequence[int]) -> str:
    return f"node{'s' * (len(ranks) > 1)} {listed(ranks)}"


def _seen(
    machines: Mapping[int, Machine], what: str, places: Sequence[Place | None]
) -> list[Result]:
    by_rank = dict(zip(machines, places, strict=True))
    given = {rank: place for rank, place in by_rank.items() if place is not None}
    if not given:
        return []
    found: list[Result] = []
    bad = {rank: place for rank, place in given.items() if place.problem}
    if bad:
        rank, place = next(iter(bad.items()))
        text = f"{shown(place.name)} can't be used on {_nodes(list(bad))}: {place.problem}"
        if what == "data":
            text += " Expected the same data on all nodes: mount it there, or name a URL."
        found.append(error(what, text))
    counts = {place.files for place in given.values() if place.files is not None}
    if what == "data" and len(counts) > 1:
        said = ", ".join(f"{place.files} on node {rank}" for rank, place in given.items())
        found.append(
            error(
                what,
                f"There are not as many files on all nodes ({said}); expected the same data "
                "everywhere, or nodes train on different rows.",
            )
        )
    if not found:
        name = shown(next(iter(given.values())).name)
        how = "is seen" if what == "data" else "can be written, and is one folder,"
        found.append(ok(what, f"{name} {how} on {_nodes(list(given))}."))
    if len(given) < len(by_rank):
        others = [each for each in by_rank if each not in given]
        found.append(
            warning(what, f"{_nodes(others).capitalize()} was not told of it: expected --{what}.")
        )
    return found


def table(names: Mapping[int, str], reached: Reached) -> list[str]:
    """Who reaches whom, as lines; of many nodes those that something is wrong with.

    Args:
        names: A name for each node, by its rank.
        reached: How the tries ended.
    """
    wrong = {rank for pair, reach in reached.items() if reach.state != OPEN for rank in pair}
    ranks = sorted(names)
    if len(ranks) > MAX_COLUMNS:
        ranks = sorted(wrong)[:MAX_COLUMNS]
    if not ranks:
        return []
    first = [f"{rank} {names[rank]}" for rank in ranks]
    width = max(len("from \\ to"), *map(len, first))
    cells = {
        (who, whom): "-" if who == whom else _cell(reached.get((who, whom)))
        for who in ranks
        for whom in ranks
    }
    widths = {
        whom: max(len(str(whom)), *(len(cells[who, whom]) for who in ranks)) for whom in ranks
    }
    corner = "from \\ to".ljust(width)
    lines = ["  ".join([corner, *(f"{whom:>{widths[whom]}}" for whom in ranks)])]
    for who, name in zip(ranks, first, strict=True):
        row = [f"{cells[who, whom]:>{widths[whom]}}" for whom in ranks]
        lines.append("  ".join([f"{name:{width}}", *row]))
    left = len(names) - len(ranks)
    return lines + ([f"{left} more nodes reach all others."] if left else [])


def _cell(reach: Reach | None) -> str:
    if reach is None:
        return "?"
    return f"{reach.wait_ms:.1f} ms" if reach.state == OPEN else reach.state
