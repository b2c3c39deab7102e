"""Who hangs and who has ended too early, from readings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumbeat.control.hang import Limits, Place, Reading, find, patience
from drumbeat.control.restart import Kind

NOW_S = 10_000.0
USUAL = Limits(hang_s=None, collective_s=600.0)


def trains(name: str = "worker 0", *, ago_s: float = 0.0, step_s: float = 0.1) -> Reading:
    return Reading(
        name=name,
        place=Place.STEPS,
        alive_s=NOW_S - ago_s,
        slowest_step_s=step_s,
        number=7,
        since_s=NOW_S - ago_s,
    )


def phase(name: str = "worker 0", *, ago_s: float, pause_s: float = 0.0) -> Reading:
    return replace(trains(name, ago_s=ago_s), place=Place.PHASE, longest_pause_s=pause_s)


def script(name: str = "worker 0", *, ago_s: float) -> Reading:
    return replace(trains(name, ago_s=ago_s), place=Place.SCRIPT)


def waits(name: str = "worker 1", *, ago_s: float, number: int = 8) -> Reading:
    reading = trains(name, ago_s=ago_s)
    return replace(reading, waits=True, number=number, where=f"all_reduce #{number}")


def ended(name: str = "worker 0", *, number: int = 7) -> Reading:
    return replace(script(name, ago_s=50), ended=True, number=number)


def remote(reading: Reading) -> Reading:
    return replace(reading, remote=True)


def stopped(reading: Reading) -> Reading:
    return replace(reading, stopped=True)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        # Within steps: 60 s, or ten of the slowest recent steps.
        ([trains(ago_s=59)], []),
        ([trains(ago_s=61)], ["worker 0 made no progress for 61 s"]),
        ([trains(ago_s=61, step_s=8)], []),
        ([trains(ago_s=81, step_s=8)], ["worker 0 made no progress for 81 s"]),
        # A batch of another shape has its graph traced anew.
        ([replace(trains(ago_s=119), longest_start_s=60)], []),
        ([replace(trains(ago_s=121), longest_start_s=60)], ["worker 0 made no progress for 121 s"]),
        # Elsewhere in a phase: the collectives' deadline, or ten of the longest pauses.
        ([phase(ago_s=599)], []),
        ([phase(ago_s=601)], ["worker 0 made no progress for 601 s"]),
        ([phase(ago_s=601, pause_s=70)], []),
        # The chief's callback of a minute, for which the other waits.
        ([phase(ago_s=65), waits(ago_s=64)], []),
        # Outside of phases: only if somebody waits, and from then on.
        ([script(ago_s=9000)], []),
        ([script(ago_s=9000), waits(ago_s=599)], []),
        ([script(ago_s=9000), waits(ago_s=601)], ["worker 0 made no progress for 601 s"]),
        ([script(ago_s=9000), remote(waits(ago_s=601))], ["worker 0 made no progress for 601 s"]),
        # Who waits does not hang, the one waited for does.
        ([trains(ago_s=61), waits(ago_s=500)], ["worker 0 made no progress for 61 s"]),
        ([remote(trains(ago_s=61)), waits(ago_s=61)], []),
        ([waits("worker 0", ago_s=500), waits(ago_s=500)], []),
        # But one that is stopped in there, or that the others have left behind.
        ([waits(ago_s=61), stopped(waits("worker 2", ago_s=61))], ["worker 2 made no progress"]),
        ([waits(ago_s=61), waits("worker 2", ago_s=61, number=7)], ["worker 2 made no progress"]),
        ([stopped(trains(ago_s=59))], []),
        ([stopped(trains(ago_s=61))], ["worker 0 made no progress"]),
        ([stopped(phase(ago_s=61))], ["worker 0 made no progress"]),
        ([stopped(script(ago_s=61))], []),
        ([stopped(script(ago_s=61)), waits(ago_s=61)], ["worker 0 made no progress"]),
        # Ended while another one of this node waits.
        ([ended(), waits(ago_s=1.9)], []),
        ([ended(), waits(ago_s=2.0)], ["worker 0 has ended, but worker 1 waits for it"]),
        ([remote(ended()), waits(ago_s=2.0)], ["worker 0 has ended"]),
        ([ended(), remote(waits(ago_s=2.0))], []),
        (
            [ended(), waits(ago_s=2.0), waits("worker 2", ago_s=3.0)],
            ["worker 0 has ended, but worker 1, worker 2 wait for it"],
        ),
        # It has been in the same collective, so its part of it is under way.
        ([ended(number=8), waits(ago_s=50)], []),
        ([ended(), trains("worker 1", ago_s=3)], []),
        # A connection that broke because its other end has ended.
        (
            [ended(), replace(trains("worker 1"), lost=True, number=8)],
            ["worker 0 has ended, but worker 1 waited for it"],
        ),
        ([ended(number=8), replace(trains("worker 1"), lost=True, number=8)], []),
        ([replace(trains("worker 1", ago_s=700), lost=True)], []),
    ],
)
def test_findings(readings: list[Reading], expected: list[str]) -> None:
    found = [f"{finding.name} {finding.how}" for finding in find(readings, USUAL, NOW_S)]
    assert len(found) == len(expected)
    for text, start in zip(found, expected, strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize(
    ("hang_s", "reading", "found"),
    [
        (3.0, trains(ago_s=2.9), False),
        (3.0, trains(ago_s=3.1, step_s=2.0), True),
        (3.0, phase(ago_s=3.1, pause_s=2.0), True),
        (3.0, stopped(phase(ago_s=3.1)), True),
        (3.0, script(ago_s=3.1), False),
        (900.0, phase(ago_s=700), False),
        (0.0, trains(ago_s=9000), False),
        (0.0, stopped(phase(ago_s=9000)), False),
    ],
)
def test_a_given_limit_holds_in_all_of_a_phase(
    hang_s: float, reading: Reading, found: bool
) -> None:
    assert bool(find([reading], Limits(hang_s=hang_s, collective_s=600.0), NOW_S)) == found


def test_the_script_itself_has_the_time_that_collectives_have() -> None:
    """A chief may evaluate for minutes, while others wait in their next collective."""
    limits = Limits(hang_s=3.0, collective_s=600.0)
    assert find([script(ago_s=599), waits(ago_s=599)], limits, NOW_S) == []
    (finding,) = find([script(ago_s=601), waits(ago_s=601)], limits, NOW_S)
    assert finding.kind is Kind.ECHO
    assert finding.why.endswith("--collective-timeout is 600 s.")


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], 1),
        ([Kind.HANG], 2),
        ([Kind.HANG, Kind.HANG, Kind.HANG], 8),
        ([Kind.HANG, Kind.KILLED], 1),
        ([Kind.KILLED, Kind.HANG], 2),
    ],
)
def test_after_hangs_more_patience(kinds: list[Kind], expected: float) -> None:
    assert patience(kinds) == expected
    limits = replace(USUAL, patience=patience(kinds))
    assert bool(find([trains(ago_s=61)], limits, NOW_S)) == (expected == 1)


def test_switched_off_it_still_finds_who_has_ended() -> None:
    off = Limits(hang_s=0.0, collective_s=600.0)
    (finding,) = find([ended(), waits(ago_s=5)], off, NOW_S)
    assert finding.kind is Kind.MISTAKE


def test_the_finding_says_what_is_known() -> None:
    (finding,) = find([stopped(trains(ago_s=61)), waits(ago_s=60)], USUAL, NOW_S)
    assert finding.why == (
        "Its process is stopped (SIGSTOP), within the steps of an epoch. worker 1 waits in "
        "all_reduce #8. The slowest of its recent steps took 0.1 s, and 60 s were allowed; "
        "--hang-timeout changes that."
    )
    (finding,) = find([waits(ago_s=61), waits("worker 2", ago_s=61, number=7)], USUAL, NOW_S)
    assert "It is in all_reduce #7. The others have left that one behind." in finding.why
    (finding,) = find([ended(), waits(ago_s=5)], USUAL, NOW_S)
    assert finding.why.startswith("worker 1 waits for it in all_reduce #8. Every worker must make")
