"""What `--inject` takes, and what it says where it can't."""

from __future__ import annotations

import pytest

from drumbeat.cluster import faults
from drumbeat.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("kill:rank=1,step=37", "kill:rank=1,step=37"),
        ("kill:rank=chief,step=37", "kill:rank=0,step=37"),
        (" stop : step=5 , rank=0 ", "stop:rank=0,step=5"),
        ("delay:rank=0,step=5,seconds=0.5", "delay:rank=0,step=5,seconds=0.5"),
        ("slow:rank=0,step=5,seconds=0.1", "slow:rank=0,step=5,seconds=0.1,steps=10"),
        ("exit:rank=0,step=5", "exit:rank=0,step=5,code=1"),
        ("agent-kill:node=0,step=5", "agent-kill:node=0,step=5"),
        ("partition:node=1,step=5,seconds=3", "partition:node=1,step=5,seconds=3"),
    ],
)
def test_reads_and_writes_a_fault(text: str, written: str) -> None:
    fault = faults.parse(text)
    assert str(fault) == written
    assert faults.parse(written) == fault


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("kil:rank=1,step=3", ("no fault 'kil'", "Did you mean kill?")),
        ("oom_kill:rank=1,step=3", ("no fault 'oom_kill'", "Expected one of kill, stop")),
        ("corrupt_snapshot:rank=1,step=3", ("Did you mean corrupt-snapshot?",)),
        ("", ("no fault ''", "kill:rank=1,step=37")),
        ("kill", ("rank= is missing", "takes rank, step")),
        ("kill:rank=1", ("step= is missing",)),
        ("delay:rank=1,step=3", ("seconds= is missing",)),
        ("kill:rank=1,step=3,rank=2", ("rank is given twice",)),
        ("kill:rank,step=3", ("'rank' is not name=value",)),
        ("kill:rank=1,stpe=3", ("no 'stpe'", "Did you mean step?")),
        ("kill:node=1,step=3", ("no 'node'", "strikes a worker: give rank=")),
        ("agent-kill:rank=1,step=3", ("no 'rank'", "strikes a node: give node=")),
        ("kill:rank=1,step=0", ("step is '0'", "a whole number, 1 or more")),
        ("kill:rank=-1,step=3", ("rank is '-1'", "0 or more")),
        ("kill:rank=1,step=3.5", ("step is '3.5'",)),
        ("exit:rank=1,step=3,code=0", ("code is '0'", "1 to 255")),
        ("delay:rank=1,step=3,seconds=nan", ("seconds is 'nan'", "0 to 86400")),
    ],
)
def test_says_what_is_wrong_with_a_fault(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        faults.parse(text)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kill:rank=2,step=3", "no rank 2 in a job of 2 workers; expected 0 to 1."),
        ("agent-kill:node=1,step=3", "no node 1 in a job of 1 node; expected 0."),
    ],
)
def test_refuses_a_place_that_is_not_there(text: str, message: str) -> None:
    faults.check_places([faults.parse("kill:rank=1,step=3")], workers=2, nodes=1)
    with pytest.raises(ConfigError, match=message):
        faults.check_places([faults.parse(text)], workers=2, nodes=1)


def test_refuses_more_faults_than_can_be_noted() -> None:
    assert len(faults.parse_all(["kill:rank=1,step=3"] * 60)) == 60
    with pytest.raises(ConfigError, match="61 times; at most 60"):
        faults.parse_all(["kill:rank=1,step=3"] * 61)


def test_a_worker_is_told_what_is_still_to_happen_to_it() -> None:
    texts = ["kill:rank=1,step=3", "stop:rank=0,step=4", "exit:rank=1,step=9,code=7"]
    every = faults.parse_all([*texts, "agent-kill:node=1,step=9"])
    told = faults.from_worker_text(faults.for_worker(every, 1, fired=0))
    assert told == {0: every[0], 2: every[2]}
    assert faults.from_worker_text(faults.for_worker(every, 1, fired=0b001)) == {2: every[2]}
    assert faults.for_worker(every, 1, fired=0b101) == ""
    assert faults.for_worker(every, 2, fired=0) == ""


@pytest.mark.parametrize(
    ("before", "step", "numbers"),
    [(0, 2, []), (2, 3, [0]), (3, 4, [1]), (2, 4, [0, 1]), (4, 99, [])],
)
def test_a_fault_is_due_when_its_step_has_been_made(
    before: int, step: int, numbers: list[int]
) -> None:
    told = dict(enumerate(faults.parse_all(["kill:rank=1,step=3", "stop:rank=1,step=4"])))
    assert faults.due(told, before, step) == numbers
