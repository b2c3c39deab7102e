"""Tables of the restart policy: what is tried again, when, and what is said at the end."""

from __future__ import annotations

import pytest

from drumbeat.control.restart import (
    Ended,
    EndedAlone,
    GiveUp,
    Kind,
    Restart,
    decide,
    decide_alone,
)


def ended(kind: Kind, step: int = 0, what: str = "", furthest: int | None = None) -> Ended:
    return Ended(kind=kind, what=what, step=step, furthest=step if furthest is None else furthest)


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.KILLED, Kind.HANG, Kind.ECHO, Kind.NODE_LOST])
@pytest.mark.parametrize("step", [0, 37])
def test_a_failure_that_may_be_chance_is_tried_again_at_once(kind, step):
    assert decide([ended(kind, step)], 10) == Restart(delay_s=0.0)


@pytest.mark.parametrize("kind", [Kind.EXCEPTION, Kind.EXIT])
def test_the_scripts_own_failure_is_tried_again_only_once_something_was_trained(kind):
    assert decide([ended(kind)], 10) == GiveUp()
    assert decide([ended(kind, 1)], 10) == Restart(delay_s=0.0)
    assert decide([ended(Kind.KILLED), ended(kind)], 10) == GiveUp()
    assert decide([ended(Kind.KILLED, 5), ended(kind)], 10) == Restart(delay_s=1.0)


@pytest.mark.parametrize("kind", [Kind.MISTAKE, Kind.STOPPED, Kind.PREEMPTED])
def test_what_no_second_try_can_change_ends_the_job(kind):
    assert decide([ended(kind, 37)], 10) == GiveUp()
    assert decide([ended(Kind.KILLED, 5), ended(kind, 37)], 10) == GiveUp()


@pytest.mark.parametrize("kind", list(Kind))
def test_no_restart_where_none_is_allowed(kind):
    assert decide([ended(kind, 37)], 0) == GiveUp()


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (("exception", 7, "ValueError: bad"), ("exception", 7, "ValueError: bad"), True),
        (("exception", 7, "<A at 0x7f01>"), ("exception", 7, "<A at 0x7fA2>"), True),
        (("exception", 7, "ValueError: bad"), ("exception", 7, "ValueError: worse"), False),
        (("exception", 7, "ValueError: bad"), ("exception", 8, "ValueError: bad"), False),
        (("exit", 7, "exit code 3"), ("exit", 7, "exit code 3"), True),
        (("exit", 7, "exit code 3"), ("exit", 7, "exit code 4"), False),
        (("crash", 0, "SIGSEGV"), ("crash", 0, "SIGSEGV"), True),
        (("crash", 7, "SIGSEGV"), ("crash", 7, "SIGABRT"), False),
        (("echo", 0, "CollectiveTimeout"), ("echo", 0, "CollectiveTimeout"), True),
        (("killed", 7, "SIGKILL"), ("killed", 7, "SIGKILL"), False),
        (("hang", 7, ""), ("hang", 7, ""), False),
        (("node lost", 7, ""), ("node lost", 7, ""), False),
    ],
)
def test_the_same_failure_at_the_same_step_is_no_accident(first, second, is_same):
    history = [ended(Kind(kind), step, what) for kind, step, what in (first, second)]
    assert isinstance(decide(history, 10), GiveUp) is is_same


def test_the_same_failure_counts_in_a_row_only():
    bug, kill = ended(Kind.EXCEPTION, 7, "E"), ended(Kind.KILLED, 7)
    assert isinstance(decide([bug, kill, bug], 10), Restart)
    found = decide([kill, bug, bug], 10)
    assert isinstance(found, GiveUp)
    assert found.why.startswith("This has happened 2 times in a row after step 7, ")


def test_the_wait_doubles_up_to_its_limit():
    history = [ended(Kind.KILLED, 5)]
    delays = []
    for _ in range(9):
        found = decide(history, 10)
        assert isinstance(found, Restart)
        delays.append(found.delay_s)
        history.append(ended(Kind.KILLED, 5))
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_step_further_than_ever_starts_the_count_anew():
    history = [ended(Kind.KILLED, 5)] * 4
    assert decide(history, 10) == Restart(delay_s=4.0)
    # Further than the attempt before is not enough: it must be further than any.
    assert decide([*history, ended(Kind.KILLED, 2), ended(Kind.KILLED, 4)], 10) == Restart(
        delay_s=16.0
    )
    assert decide([*history, ended(Kind.KILLED, 6)], 10) == Restart(delay_s=0.0)
    # Another worker may have been a step ahead of the one that failed.
    assert decide([*history, ended(Kind.KILLED, 5, furthest=6)], 10) == Restart(delay_s=0.0)


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_restarts_in_vain_are_limited(limit):
    history = [ended(Kind.KILLED, 5)]
    while isinstance(found := decide(history, limit), Restart):
        history.append(ended(Kind.KILLED, 5))
    assert len(history) == limit + 1
    times = "once" if limit == 1 else f"{limit} times in a row"
    assert f"started again {times} and got no further than step 5" in found.why
    assert f"more than {limit} to try" in found.why


def test_a_job_that_never_trains_is_told_so():
    found = decide([ended(Kind.KILLED)] * 2, 1)
    assert isinstance(found, GiveUp)
    assert "came to no training step" in found.why


@pytest.mark.parametrize("kind", [Kind.SHRUNK, Kind.REGROUPED])
def test_a_job_that_gets_smaller_or_larger_goes_on_at_once(kind):
    killed, moved = ended(Kind.KILLED, 5), ended(kind, 5)
    assert decide([moved], 1) == Restart(delay_s=0.0)
    assert decide([killed, *[moved] * 9], 1) == Restart(delay_s=0.0)
    # It counts as no failure, but its steps do as progress.
    assert decide([killed, moved, killed], 2) == Restart(delay_s=1.0)
    assert isinstance(decide([killed, moved, killed], 1), GiveUp)
    assert decide([killed, ended(kind, 9), ended(Kind.KILLED, 12)], 1) == Restart(delay_s=0.0)
    error = ended(Kind.EXCEPTION, 5, "ValueError: bad")
    assert isinstance(decide([error, moved, error], 10), GiveUp)


@pytest.mark.parametrize(
    ("lives", "max_restarts", "delay_s"),
    [
        ([(0, 1.0)], 10, 0.0),
        ([(0, 1.0)] * 2, 10, 1.0),
        ([(0, 1.0)] * 5, 10, 8.0),
        ([(0, 1.0)] * 9, 10, 30.0),
        ([(7, 1.0), (8, 1.0), (9, 1.0)], 10, 0.0),  # the job makes steps meanwhile
        ([(7, 1.0), (9, 1.0), (9, 1.0)], 10, 1.0),
        ([(0, 400.0)] * 50, 10, 0.0),  # nobody counts its steps, but it lives long
        ([(0, 1.0)] * 3, 2, None),
        ([(0, 1.0)], 0, None),
    ],
)
def test_what_can_be_missed_is_started_again_alone(lives, max_restarts, delay_s):
    history = [EndedAlone(step=step, lived_s=lived_s) for step, lived_s in lives]
    decision = decide_alone(history, max_restarts)
    if delay_s is not None:
        assert decision == Restart(delay_s=delay_s)
    else:
        assert isinstance(decision, GiveUp)
        assert ("2 times in a row" in decision.why) is (max_restarts == 2)
