"""The summary as tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .peers import NO_PEERS, PEERS
from .plan import (
    RATES_GBIT,
    SIDE_BY_SIDE,
    SIZES,
    SLEEP_MS,
    WORKLOADS,
    growth_group,
    network_group,
)

Figures = Mapping[str, Any]


def number(value: float) -> str:
    """Three digits where it is small, none after the point where it is large."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def cell(figures: Figures, name: str, form: Callable[[float], str] = number) -> str:
    """Median and spread of a figure; empty if there is none."""
    found = figures.get(name)
    if not found:
        return ""
    if len(found["all"]) == 1:
        return form(found["median"])
    return f"{form(found['median'])} ({form(found['min'])} to {form(found['max'])})"


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _peers(groups: Figures) -> list[str]:
    """Those that any workload has, in the order of `PEERS`."""
    found = {name for key in SIDE_BY_SIDE for name in groups.get(key, {}).get("peers", {})}
    return [name for name in PEERS if name in found - NO_PEERS]


def _keys(groups: Figures) -> list[str]:
    return [key for key in SIDE_BY_SIDE if key in groups]


def across(
    groups: Figures, figure: str, form: Callable[[float], str] = number, without: str = ""
) -> str:
    """A figure of all peers but one (rows) at all workloads (columns)."""
    rows = []
    for name in _peers(groups):
        if name == without:
            continue
        cells = []
        for key in _keys(groups):
            of = groups[key]["peers"].get(name, {})
            cells.append("failed" if "error" in of else cell(of, figure, form))
        if any(cells):
            rows.append([PEERS[name].title, *cells])
    head = [WORKLOADS[key].title for key in _keys(groups)]
    return markdown(["", *head], rows)


def ours(groups: Figures) -> str:
    """Where drumbeat's time goes, workload by workload."""
    head = ["drumbeat", "step, ms", "one worker alone, ms", "efficiency", "two alone at once, ms"]
    head += ["efficiency by these", "sum alone, ms", "times the floor", "waiting", "transfer"]
    head += ["exchange, ms", "TensorFlow's (tuned)"]
    rows = []
    for key in _keys(groups):
        peers = groups[key]["peers"]
        mine, alone = peers.get("drumbeat", {}), peers.get("drumbeat-1", {})
        at_once = peers.get("drumbeat-apart", {})
        floor = {"floor": groups[key]["floor_ms"]}
        rows.append(
            [
                WORKLOADS[key].title,
                cell(mine, "step_ms"),
                cell(alone, "step_ms"),
                cell(mine, "efficiency"),
                cell(at_once, "step_ms"),
                cell(mine, "efficiency_at_once"),
                cell(floor, "floor"),
                cell(mine, "over_floor"),
                cell(mine, "waiting_share", percent),
                cell(mine, "transfer_share", percent),
                cell(mine, "exchange_ms"),
                cell(peers.get("tensorflow-tuned", {}), "exchange_ms"),
            ]
        )
    return markdown(head, rows)


def errors(groups: Figures) -> str:
    """What failed, and how."""
    found = [
        f"- {key}, {name}: {figures['error']}"
        for key, group in groups.items()
        for name, figures in group["peers"].items()
        if "error" in figures
    ]
    return "\n".join(found)


def networks(groups: Figures) -> str:
    """The dense network over emulated cables."""
    head = ["(b) over a network", "step, ms", "times as fast as uncompressed", "loss after"]
    rows = []
    for rate in RATES_GBIT:
        group = groups.get(network_group(rate))
        if not group:
            continue
        floor = cell({"floor": group["floor_ms"]}, "floor")
        rows.append([f"{rate:g} Gbit/s: the bytes alone, both ways at once", floor, "", ""])
        for name, figures in group["peers"].items():
            title = PEERS[name].title if name in PEERS else name
            step = "failed" if "error" in figures else cell(figures, "step_ms")
            faster = cell(figures, "against_ours")
            loss = cell(figures, "second_loss", lambda value: f"{value:.4f}")
            rows.append([f"{rate:g} Gbit/s: {title}", step, faster, loss])
    return markdown(head, rows)


def growth(groups: Figures) -> str:
    """What a step costs besides its sleep, and what CPU time of that is a worker's."""
    names = [
        n
        for n in PEERS
        if any(n in groups.get(growth_group(s), {"peers": {}})["peers"] for s in SIZES)
    ]
    head = ["workers"]
    for name in names:
        head += [f"{PEERS[name].title}: ms a step", "CPU ms, each worker"]
    rows = []
    for size in SIZES:
        group = groups.get(growth_group(size))
        if not group:
            continue
        cells = [str(size)]
        for name in names:
            figures = group["peers"].get(name, {})
            cost = cell(figures, "step_ms", lambda value: number(value - SLEEP_MS))
            cells.append("failed" if "error" in figures else cost)
            cells.append(cell(figures, "cpu_ms", lambda value, size=size: number(value / size)))
        rows.append(cells)
    return markdown(head, rows)


def report(record: Figures) -> str:
    """All tables, with what they hold for."""
    groups = record["summary"]["groups"]
    machine, summary = record["machine"], record["summary"]
    worst = summary["others_cores"]["max"]
    parts = [
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python "
        f"{machine['python']}, TensorFlow {machine['tensorflow']}, Keras {machine['keras']}, "
        f"MPICH {machine['mpich']}. {record['rounds']} rounds, {summary['runs']} runs, "
        f"{summary['failed_runs']} failed; other processes used up to {worst:.2f} cores during "
        f"a run. Median (least to greatest) over the rounds."
    ]
    if _keys(groups):
        parts += ["Samples a second:", across(groups, "samples_s")]
        parts += ["How many times as fast drumbeat is, within a round:"]
        parts += [across(groups, "faster", without="drumbeat")]
        parts += ["Scaling efficiency, by each one's own worker alone:"]
        parts += [across(groups, "efficiency"), ours(groups)]
        parts += ["Seconds from the start of the command to the end of the first step:"]
        parts += [across(groups, "first_step_s")]
        parts += ["Memory of all processes, MB (shared pages once), once trained:"]
        parts += [across(groups, "memory_mb")]
        parts += ["Loss of the second epoch:"]
        parts += [across(groups, "second_loss", lambda value: f"{value:.5f}")]
    if any(network_group(rate) in groups for rate in RATES_GBIT):
        parts.append(networks(groups))
    if any(growth_group(size) in groups for size in SIZES):
        parts.append(growth(groups))
    failed = errors(groups)
    return "\n\n".join(parts + ([f"Failed:\n\n{failed}"] if failed else []))
