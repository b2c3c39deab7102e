from __future__ import annotations

import contextlib
import threading

import pytest

from drumbeat.errors import CollectiveMismatch
from drumbeat.strategies.lockstep import Lockstep

pytestmark = pytest.mark.timeout(20)


def lockstep() -> Lockstep:
    return Lockstep(contextlib.nullcontext)


def test_one_after_the_other_up_to_where_they_meet() -> None:
    steps, seen = lockstep(), []

    def body(number: int) -> str:
        seen.append(f"{number} before")
        total = steps.meet(number, lambda numbers: seen.append(numbers) or sum(numbers))
        seen.append(f"{number} after")
        return f"{number} of {total}"

    results = steps.run([lambda n=n: body(n) for n in range(3)])
    assert results == ["0 of 3", "1 of 3", "2 of 3"]
    before, after = [f"{n} before" for n in range(3)], [f"{n} after" for n in range(3)]
    assert seen == [*before, [0, 1, 2], *after]


def test_they_meet_as_often_as_they_like() -> None:
    steps = lockstep()

    def body(number: int) -> list[int]:
        return [steps.meet(number * factor, sum) for factor in range(4)]

    assert steps.run([lambda n=n: body(n) for n in (1, 2)]) == [[0, 3, 6, 9]] * 2


def test_the_first_error_is_raised_and_nobody_is_left_waiting() -> None:
    steps, ended = lockstep(), []

    def waits() -> None:
        try:
            steps.meet(1, sum)
        finally:
            ended.append("waits")

    def fails() -> None:
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        steps.run([waits, fails, waits])
    assert ended == ["waits"]
    assert not [t for t in threading.enumerate() if t.name == "replica"]


def test_an_error_where_they_meet_is_raised() -> None:
    steps = lockstep()
    with pytest.raises(ZeroDivisionError):
        steps.run([lambda: steps.meet(0, lambda numbers: 1 // numbers[0])] * 2)
    assert not [t for t in threading.enumerate() if t.name == "replica"]


def test_one_that_ends_while_others_wait_is_told() -> None:
    steps = lockstep()
    with pytest.raises(CollectiveMismatch, match="Virtual shard 1 .* ran to its end"):
        steps.run([lambda: steps.meet(1, sum), lambda: None])


class Copies:
    def __init__(self) -> None:
        self.log: list[str] = []

    def enter(self, index: int) -> None:
        self.log.append(f"enter {index}")

    def leave(self) -> None:
        self.log.append("leave")

    def settle(self) -> None:
        self.log.append("settle")

    def finish(self) -> None:
        self.log.append("finish")


def test_each_sees_its_own_copy_of_the_state() -> None:
    steps, copies = lockstep(), Copies()

    def body() -> None:
        assert steps.keep(lambda: copies) is copies
        steps.meet(1, update)

    def update(numbers: list[int]) -> int:
        steps.settle()
        return sum(numbers)

    steps.run([body, body])
    both = ["enter 0", "leave", "enter 1", "leave"]
    assert copies.log == [*both, "settle", *both, "finish"]
