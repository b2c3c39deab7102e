"""What is fastest on this machine: from measured times to settings. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

CLEAR_GAIN = 1.05
"""An alternative has to be so many times as fast as the usual settings, over all operations."""
MAX_LOSS = 1.1
"""And must not take longer than this many times as long for any of them: a user may train
with that one alone."""


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Settings that may be faster than the usual ones.

    Attributes:
        name: In words.
        variables: What it sets otherwise.
    """

    name: str
    variables: Mapping[str, str]


ONEDNN_OFF = Alternative(name="oneDNN off", variables={"TF_ENABLE_ONEDNN_OPTS": "0"})


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was measured of an alternative.

    Attributes:
        name: See `Alternative`.
        variables: See `Alternative`.
        gain: How many times as fast as the usual settings, the geometric mean over the
            operations of the ratios of their shortest times.
        low: The smallest of the gains of the single rounds.
        high: The largest.
        by_operation: The gain for each.
        is_taken: Whether it is clearly better.
    """

    name: str
    variables: dict[str, str]
    gain: float
    low: float
    high: float
    by_operation: dict[str, float]
    is_taken: bool

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def __str__(self) -> str:
        ways = ", ".join(f"{name} {_times(gain)}" for name, gain in self.by_operation.items())
        verdict = "taken" if self.is_taken else "not taken"
        return (
            f"{self.name}: {_times(self.gain)} as fast as the usual "
            f"({self.low:.2f} to {self.high:.2f} in single rounds; {ways}): {verdict}."
        )


def alternatives(
    threads: int, physical: int | None, environ: Mapping[str, str]
) -> list[Alternative]:
    """What is worth measuring for a worker.

    Args:
        threads: How many it has usually.
        physical: How many cores its CPUs are; None if unknown.
        environ: What the user has set is not varied.
    """
    found = []
    if not set(ONEDNN_OFF.variables) & set(environ):
        found.append(ONEDNN_OFF)
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    if physical is not None and physical < threads and not set(names) & set(environ):
        variables = {name: str(physical) for name in names}
        found.append(Alternative(name="a thread a core, not two", variables=variables))
    return found


def judge(
    alternative: Alternative,
    usual: Sequence[Mapping[str, float]],
    other: Sequence[Mapping[str, float]],
) -> Finding:
    """Whether an alternative is clearly better than the usual settings.

    That is by `CLEAR_GAIN` over all operations, better in each single round, and for no
    operation worse by more than `MAX_LOSS`.

    Args:
        alternative: Of it.
        usual: In each round, seconds by operation with the usual settings.
        other: The same with the alternative's.
    """
    names = list(usual[0])
    shortest = {name: min(r[name] for r in usual) / min(r[name] for r in other) for name in names}
    rounds = [
        _mean([a[name] / b[name] for name in names]) for a, b in zip(usual, other, strict=True)
    ]
    gain = _mean(list(shortest.values()))
    taken = gain >= CLEAR_GAIN and min(rounds) > 1 and min(shortest.values()) >= 1 / MAX_LOSS
    return Finding(
        name=alternative.name,
        variables=dict(alternative.variables),
        gain=round(gain, 3),
        low=round(min(rounds), 3),
        high=round(max(rounds), 3),
        by_operation={name: round(ratio, 3) for name, ratio in shortest.items()},
        is_taken=taken,
    )


def chosen(findings: Sequence[Finding]) -> dict[str, str]:
    """The variables that are set otherwise than usual."""
    return {
        name: value
        for found in findings
        if found.is_taken
        for name, value in found.variables.items()
    }


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _times(ratio: float) -> str:
    return f"{ratio:.2f}×"
