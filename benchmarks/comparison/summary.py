"""Figures and ratios from runs: medians within a run, ratios within a round, spread over rounds."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .peers import PEERS

Run = Mapping[str, Any]
ByRound = dict[int, Run]
OURS = "drumbeat"


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, least and greatest, and all."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "all": [round(value, 4) for value in values],
    }


def step_ms(run: Run) -> float:
    """Of the median epoch, all that happens between epochs included."""
    return 1e3 * statistics.median(run["epoch_s"]) / run["steps"]


def samples_s(run: Run) -> float:
    """Rows of global batches in a second."""
    return 1e3 * run["rows"] / step_ms(run)


FIGURES: dict[str, Callable[[Run], float]] = {
    "step_ms": step_ms,
    "samples_s": samples_s,
    "first_step_s": lambda run: run["first_step_s"],
    "memory_mb": lambda run: run["memory_mb"],
    "peak_rss_mb": lambda run: run["peak_rss_mb"],
    "first_loss": lambda run: run["first_loss"],
    "second_loss": lambda run: run["losses"][1],
    "cpu_ms": lambda run: 1e3 * run["cpu_s"] / (run["steps"] * len(run["epoch_s"])),
    "waiting_share": lambda run: run["counters"]["waiting_s"] / run["measured_s"],
    "transfer_share": lambda run: run["counters"]["transfer_s"] / run["measured_s"],
}


class Group:
    """The runs of cases that took turns.

    Args:
        runs: Of one group.
        floors: What the exchange of a step takes at best, in ms, by round.
    """

    def __init__(self, runs: Iterable[Run], floors: Mapping[int, float]) -> None:
        self._floors = floors
        self._good: dict[str, ByRound] = {}
        self._errors: dict[str, str] = {}
        for run in runs:
            if "failed" in run:
                self._errors[run["peer"]] = run["failed"]["error"]
            else:
                self._good.setdefault(run["peer"], {})[run["round"]] = run

    def summary(self) -> dict[str, dict[str, Any]]:
        """All figures of each peer; what it can't have is missing."""
        found = {name: self._figures(name, by_round) for name, by_round in self._good.items()}
        failed = {name: {"error": text} for name, text in self._errors.items() if name not in found}
        return found | failed

    def _figures(self, name: str, mine: ByRound) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for figure, of in FIGURES.items():
            values = []
            for run in mine.values():
                # drumbeat alone counts collectives; a short run has one epoch.
                with contextlib.suppress(KeyError, IndexError, TypeError):
                    values.append(of(run))
            if values:
                figures[figure] = spread(values)
        figures["parameters"] = next(iter(mine.values()))["parameters"]
        figures["disturbed"] = max(run["others_cores"] for run in mine.values())
        # How many times as fast as this peer we are.
        figures["faster"] = self._ratio(self._good.get(OURS, {}), mine, samples_s)
        figures["against_ours"] = self._ratio(mine, self._good.get(OURS, {}), samples_s)
        return figures | self._scaling(name, mine)

    def _scaling(self, name: str, mine: ByRound) -> dict[str, Any]:
        peer = PEERS.get(name)
        alone = self._good.get(peer.alone or "", {}) if peer else {}
        both = sorted(set(mine) & set(alone))
        if not both:
            return {}
        at_once = self._good.get(peer.at_once or "", {}) if peer else {}
        found: dict[str, Any] = {
            "efficiency": self._ratio(alone, mine, step_ms),
            "efficiency_at_once": self._ratio(at_once, mine, step_ms),
            # What talking to each other costs, with all that comes of it.
            "exchange_ms": spread([step_ms(mine[n]) - step_ms(alone[n]) for n in both]),
        }
        floored = sorted(set(mine) & set(at_once) & set(self._floors))
        if floored:
            found["over_floor"] = spread(
                [step_ms(mine[n]) / (step_ms(at_once[n]) + self._floors[n]) for n in floored]
            )
        return found

    def _ratio(
        self, above: ByRound, below: ByRound, of: Callable[[Run], float]
    ) -> dict[str, Any] | None:
        both = sorted(set(above) & set(below))
        return spread([of(above[n]) / of(below[n]) for n in both]) if both else None


def summarize(runs: Sequence[Run], floors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summaries of all groups of runs, and how disturbed they were.

    Args:
        runs: As `launchers.run` returns them, with "round".
        floors: "group", "round" and "ms" of each measured floor.
    """
    groups = {}
    for name in dict.fromkeys(run["group"] for run in runs):
        mine = {floor["round"]: floor["ms"] for floor in floors if floor["group"] == name}
        group = Group([run for run in runs if run["group"] == name], mine)
        floor = spread(list(mine.values())) if mine else None
        groups[name] = {"peers": group.summary(), "floor_ms": floor}
    return {
        "groups": groups,
        "runs": len(runs),
        "failed_runs": sum("failed" in run for run in runs),
        "others_cores": spread([run["others_cores"] for run in runs]),
    }
