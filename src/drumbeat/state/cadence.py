"""How often workers agree and take snapshots: from what they measured to what they do next.

All workers work with the same numbers, the largest that any of them measured, and so
come to the same decision. No I/O and no clock here.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_COST = 0.01
"""The part of the time that taking snapshots may take.

Half of the 2% that are promised: what they do to caches, and to the pace of workers that
wait for each other, is not measured.
"""
BEAT_S = 0.5
"""At most this long between two beats, as far as the speed of the steps lets foresee it."""
COSTS_KEPT = 5
"""How many of the last snapshots say what one takes."""
COLD = 2
"""The first ones find their memory, which takes several times as long, and happens once."""
COLD_FACTOR = 10
"""Until others are known, a cold one is taken to cost so many times a usual one."""
MIN_INTERVAL_S = 1.0
"""No snapshots closer than this: starting again takes longer anyway."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the workers say at a beat, each number the largest of all.

    Attributes:
        stop: A worker was asked to stop.
        regroup: A worker was asked to make place for others.
        held: A worker can't take a snapshot now, or they differ in what they know to differ.
        steps: Since the last snapshot, or since the phase began or was resumed.
        since_s: Time since then.
        step_s: Mean time of a step since the last beat.
        cost_s: What a snapshot usually takes, see `usual_cost_s`; 0 before the first.
        due: One is wanted for a backup.
    """

    stop: bool
    held: bool
    steps: int
    since_s: float
    step_s: float
    cost_s: float
    due: bool = False
    regroup: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows.

    Attributes:
        snapshot: Take one now.
        stop: Stop after this step.
        regroup: The same, if there is a snapshot of this step.
        next_in: The next beat is after so many more steps.
    """

    snapshot: bool
    stop: bool
    next_in: int
    regroup: bool = False


def usual_cost_s(costs_s: Sequence[float]) -> float:
    """What a snapshot takes, from what the last `COSTS_KEPT` took; 0 if there were none.

    The median: one that was disturbed, by another program or a slow worker, says little.
    """
    if len(costs_s) == COSTS_KEPT:
        return statistics.median(costs_s)
    cold = min(costs_s[:COLD], default=0.0) / COLD_FACTOR
    return min(costs_s[COLD:], default=cold)


def decide(measured: Measured, *, every: int | None, last_in: int) -> Decision:
    """The decision of all workers at a beat.

    Args:
        measured: See there.
        every: Snapshots every so many steps; 0 for none, None for as often as they cost no
            more than `MAX_COST` of the time.
        last_in: How many steps this beat came after the one before. The next comes at most
            after twice as many: the speed of a few steps foretells little.
    """
    if every == 0:
        wanted, due_s = False, float("inf")
    elif every is not None:
        wanted, due_s = measured.steps >= every, 0.0
    else:
        interval_s = max(measured.cost_s / MAX_COST, MIN_INTERVAL_S)
        # At once, until there is one.
        wanted = measured.since_s >= interval_s or measured.cost_s == 0 or measured.due
        due_s = interval_s if wanted else interval_s - measured.since_s
    snapshot = (wanted or measured.due or measured.stop or measured.regroup) and not measured.held
    wait_s = min(BEAT_S, due_s) if every is None else BEAT_S
    steps = int(wait_s / measured.step_s) if measured.step_s > 0 else 1
    next_in = max(1, min(steps, 2 * last_in))
    if every:
        left = every if snapshot else max(every - measured.steps, 1)
        next_in = min(next_in, left)
    return Decision(
        snapshot=snapshot,
        stop=measured.stop,
        next_in=next_in,
        regroup=measured.regroup and snapshot and not measured.stop,
    )
