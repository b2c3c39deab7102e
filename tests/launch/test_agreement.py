"""What agents that know different parts of a job's past make of it together."""

from __future__ import annotations

import pytest

from drumbeat.control.restart import Ended, Kind
from drumbeat.errors import RendezvousError
from drumbeat.launch.agreement import Standing, agree, from_values, to_values
from drumbeat.launch.failures import Failure

FIRST = Ended(kind=Kind.HANG, step=3, furthest=4)
KILLED = Failure(name="worker 1", host="h", code=-9, step=7)
ECHO = Failure(name="worker 0", host="g", code=1, consequence=True, step=8)
LOST = Failure(name="node 1", host="h", code=1, kind=Kind.NODE_LOST)
SECOND = Ended(kind=Kind.KILLED, what="was killed by SIGKILL (out of memory?)", step=7, furthest=9)
NEW = Standing()


def known(*history: Ended, **more: object) -> Standing:
    return Standing(job_id="a", history=history, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("standings", "job_id", "history", "cause"),
    [
        ([NEW, NEW], "", (), None),
        # All have seen the same attempt fail, each in its way.
        (
            [known(FIRST, failure=ECHO, furthest=9), known(FIRST, failure=KILLED, furthest=7)],
            "a",
            (FIRST, SECOND),
            KILLED,
        ),
        # A replacement knows nothing, wherever it is.
        ([NEW, known(FIRST, failure=KILLED, furthest=9)], "a", (FIRST, SECOND), KILLED),
        ([known(FIRST, failure=KILLED, furthest=9), NEW], "a", (FIRST, SECOND), KILLED),
        # One node has agreed on the second attempt's end already, and lost another since.
        (
            [known(FIRST, failure=ECHO, furthest=8), known(FIRST, SECOND, failure=LOST)],
            "a",
            (FIRST, SECOND, Ended(kind=Kind.NODE_LOST, what="node 1", step=0, furthest=0)),
            LOST,
        ),
    ],
)
def test_what_follows_from_all_standings(standings, job_id, history, cause):
    values: dict[str, str] = {}
    for rank, standing in enumerate(standings):
        values |= to_values(standing, rank, len(standings))
    agreed = agree(from_values(values))
    assert agreed.job_id == job_id
    assert [(e.kind, e.step, e.furthest) for e in agreed.history] == [
        (e.kind, e.step, e.furthest) for e in history
    ]
    assert (agreed.cause and agreed.cause.heading) == (cause and cause.heading)


def test_the_newest_snapshot_and_all_faults_count():
    agreed = agree([known(snapshot=5, fired=1), known(snapshot=7, fired=4), NEW])
    assert (agreed.snapshot, agreed.fired) == (7, 5)


def test_many_nodes_together_stay_within_one_message():
    failure = Failure(name="worker 1", host="h", code=1, text="x" * 100_000)
    values = [to_values(known(failure=failure), rank, 1024) for rank in range(1024)]
    assert sum(len(text) for value in values for text in value.values()) < 3 * 1024 * 1024
    texts = [standing.failure.text for standing in from_values(values[0]) if standing.failure]
    assert texts == ["x" * 2048]


def test_what_is_malformed_is_an_error():
    with pytest.raises(RendezvousError, match="same version"):
        from_values({"standing:0": '{"job_id": "a"}'})
