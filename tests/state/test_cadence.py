"""When workers agree and take snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumbeat.state.cadence import (
    BEAT_S,
    MAX_COST,
    Decision,
    Measured,
    decide,
    usual_cost_s,
)

QUIET = Measured(stop=False, held=False, steps=10, since_s=1.0, step_s=0.01, cost_s=0.05, due=False)


@pytest.mark.parametrize(
    ("change", "every", "last_in", "expected"),
    [
        # 1% of 5 s are 50 ms: not yet; the next beat is half a second away.
        ({}, None, 100, (False, False, 50)),
        ({"since_s": 4.875}, None, 100, (False, False, 12)),
        ({"since_s": 5.1}, None, 100, (True, False, 50)),
        # Nothing is known of what it costs.
        ({"cost_s": 0.0, "since_s": 0.001}, None, 1, (True, False, 2)),
        # It costs next to nothing; still not more often than once a second.
        ({"cost_s": 1e-5, "since_s": 0.85}, None, 100, (False, False, 15)),
        ({"cost_s": 1e-5, "since_s": 1.1}, None, 100, (True, False, 50)),
        # The speed of a few steps foretells little.
        ({"step_s": 1e-4}, None, 4, (False, False, 8)),
        # Steps longer than a beat.
        ({"step_s": 3.0, "since_s": 30.0}, None, 1, (True, False, 1)),
        ({"step_s": 0.0}, None, 8, (False, False, 1)),
        ({"stop": True}, None, 100, (True, True, 50)),
        ({"since_s": 9.0, "held": True}, None, 100, (False, False, 50)),
        ({"stop": True, "held": True}, None, 100, (False, True, 50)),
        ({"due": True}, None, 100, (True, False, 50)),
        # Every so many steps, whatever it costs: a beat falls on each of them.
        ({"steps": 4}, 16, 100, (False, False, 12)),
        ({"steps": 16}, 16, 100, (True, False, 16)),
        ({"steps": 17}, 16, 100, (True, False, 16)),
        ({"steps": 4, "stop": True}, 16, 100, (True, True, 16)),
        ({"steps": 16, "held": True}, 16, 100, (False, False, 1)),
        ({"steps": 100}, 1000, 100, (False, False, 50)),
        # None at all: beats go on.
        ({"since_s": 99.0}, 0, 100, (False, False, 50)),
        ({"since_s": 99.0, "due": True}, 0, 100, (True, False, 50)),
    ],
)
def test_decide(
    change: dict[str, float], every: int | None, last_in: int, expected: tuple[bool, bool, int]
) -> None:
    snapshot, stop, next_in = expected
    decision = decide(replace(QUIET, **change), every=every, last_in=last_in)
    assert decision == Decision(snapshot=snapshot, stop=stop, next_in=next_in)


@pytest.mark.parametrize(
    ("costs_s", "usual_s"),
    [
        ((), 0.0),
        ((0.1,), 0.01),
        ((0.1, 0.2), 0.01),
        ((0.1, 0.1, 0.015), 0.015),
        ((0.1, 0.1, 0.3, 0.015), 0.015),
        ((0.1, 0.1, 0.016, 0.015, 0.014), 0.016),
        ((0.015, 0.016, 0.9, 0.015, 0.014), 0.015),
    ],
)
def test_the_first_snapshots_say_little_of_what_one_costs(
    costs_s: tuple[float, ...], usual_s: float
) -> None:
    assert usual_cost_s(costs_s) == usual_s


@pytest.mark.parametrize("cost_s", [1e-4, 0.01, 0.3, 4.0])
@pytest.mark.parametrize("step_s", [2e-4, 0.01, 0.4, 7.0])
def test_snapshots_cost_no_more_than_they_may(cost_s: float, step_s: float) -> None:
    steps, since_s, last_in, spent_s, total_s, gaps = 0, 0.0, 1, 0.0, 0.0, []
    while total_s < 2000 * max(cost_s, 0.1):
        waited_s = last_in * step_s
        steps, since_s, total_s = steps + last_in, since_s + waited_s, total_s + waited_s
        gaps.append(waited_s)
        measured = Measured(
            stop=False,
            held=False,
            steps=steps,
            since_s=since_s,
            step_s=step_s,
            cost_s=cost_s if spent_s else 0.0,
            due=False,
        )
        decision = decide(measured, every=None, last_in=last_in)
        last_in = decision.next_in
        if decision.snapshot:
            spent_s, total_s, steps, since_s = spent_s + cost_s, total_s + cost_s, 0, 0.0
    assert cost_s <= spent_s <= MAX_COST * total_s + cost_s
    assert max(gaps) <= max(BEAT_S, step_s) + 1e-9
