"""What is started again alone, how often, and what the others hear of it."""

from __future__ import annotations

import asyncio

import pytest

from drumbeat.control.restart import Kind
from drumbeat.launch.failures import Failure
from drumbeat.launch.keeper import Keeper
from drumbeat.launch.plan import LocalTask

pytestmark = pytest.mark.timeout(30)


def lives(task: LocalTask, failures: list[Failure], **how: int) -> tuple[list, list[str], list]:
    """What comes of each failure in turn, what is said, and who is told to be down."""
    said: list[str] = []
    down: list[tuple[str, bool]] = []

    async def start(started: LocalTask) -> str:
        return f"another {started.name}"

    async def on_down(name: str, is_down: bool) -> None:
        down.append((name, is_down))

    async def run() -> list:
        keeper = Keeper(
            task,
            start=start,  # type: ignore[arg-type]
            max_restarts=how.get("max_restarts", 10),
            step=lambda: how.get("step", 0),
            note=said.append,
            down=on_down,
        )
        return [await keeper.after(failure) for failure in failures]

    return asyncio.run(run()), said, down


def task(*, is_server: bool = True) -> LocalTask:
    name = "worker 1" if is_server else "evaluator 0"
    return LocalTask(
        name=name,
        rank=-1,
        local_rank=0,
        tf_config="{}",
        is_server=is_server,
        is_evaluator=not is_server,
    )


def killed(code: int = -9, kind: Kind | None = None) -> Failure:
    return Failure(name="worker 1", host="a", code=code, text="its last words", kind=kind)


def test_a_server_that_was_killed_comes_back_and_the_others_know():
    (found,), said, down = lives(task(), [killed()], step=37)
    assert found == "another worker 1"
    assert said == [
        "worker 1 on a was killed by SIGKILL (out of memory?) after step 37. It is started again; "
        "the others go on."
    ]
    assert down == [("worker 1", True), ("worker 1", False)]


def test_one_that_dies_again_and_again_ends_the_job():
    (first, last), said, _ = lives(task(), [killed(), killed()], max_restarts=1)
    assert first == "another worker 1"
    assert last.policy_kind is Kind.MISTAKE  # all together would fare no better
    assert last.text.startswith("It was started again once, and the job made no progress.")
    assert last.text.endswith("its last words")
    assert len(said) == 1


def test_without_restarts_the_failure_is_what_it_was():
    (found,), said, down = lives(task(), [killed()], max_restarts=0)
    assert found == killed()
    assert said == down == []


@pytest.mark.parametrize(
    ("is_server", "failure", "comes_back"),
    [
        (True, killed(1), True),  # its port may be taken for a moment
        (True, killed(0), True),
        (True, killed(2, Kind.MISTAKE), False),
        (False, killed(-11), True),
        (False, killed(1), False),  # a script's own failure
        (False, killed(1, Kind.EXCEPTION), False),
    ],
)
def test_what_may_be_chance(is_server, failure, comes_back):
    (found,), _, _ = lives(task(is_server=is_server), [failure])
    assert (found != failure) is comes_back
