"""Loops that are resumable, where nothing keeps them."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from drumbeat.state import loops
from drumbeat.state.loops import resumable


class Kept:
    """A keeper that notes what it is told."""

    def __init__(self, first: int | None) -> None:
        self.first = first
        self.told: list[str] = []

    def __enter__(self) -> None:
        self.told.append("enter")

    def __exit__(self, *raised: object) -> None:
        self.told.append("exit")

    def first_epoch(self, first: int) -> int | None:
        return self.first

    def epoch_begins(self, epoch: int) -> None:
        self.told.append(f"begin {epoch}")

    def batches(self, data):
        return iter(list(data)[1:])

    def epoch_ends(self) -> None:
        self.told.append("end")

    def finish(self) -> None:
        self.told.append("finish")


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> list:
    monkeypatch.setattr(loops, "keepers", [])
    return loops.keepers


def test_plain_loops(keepers: list) -> None:
    progress = resumable(best=0.0, names=["a"])
    seen = []
    for epoch in progress.epochs(4, first=2):
        progress.last = epoch
        seen += [(epoch, batch) for batch in progress.batches("xy")]
    assert seen == [(2, "x"), (2, "y"), (3, "x"), (3, "y")]
    assert vars(progress) == {"best": 0.0, "names": ["a"], "last": 3}
    with pytest.raises(AttributeError, match="no 'worst'; it was made with best, names, last"):
        print(progress.worst)


@pytest.mark.parametrize(
    ("first", "stop_at", "told"),
    [
        (1, None, ["enter", "begin 1", "end", "begin 2", "end", "finish", "exit"]),
        (1, 1, ["enter", "begin 1", "finish", "exit"]),
        (3, None, ["enter", "finish", "exit"]),
        (None, None, ["enter", "exit"]),
    ],
)
def test_a_keeper_is_told(
    keepers: list, first: int | None, stop_at: int | None, told: list[str]
) -> None:
    kept = Kept(first)
    keepers += [lambda progress: None, lambda progress: kept]
    progress = resumable()
    for epoch in progress.epochs(3):
        assert list(progress.batches([1, 2, 3])) == [2, 3]
        if epoch == stop_at:
            break
    assert kept.told == told
    # Outside of the loop nothing is kept.
    assert list(progress.batches([1, 2])) == [1, 2]


def test_a_loop_that_fails_is_not_finished(keepers: list) -> None:
    kept = Kept(0)
    keepers.append(lambda progress: kept)
    epochs = resumable().epochs(3)
    next(epochs)
    with pytest.raises(ZeroDivisionError):
        epochs.throw(ZeroDivisionError)
    assert kept.told == ["enter", "begin 0", "exit"]


def test_importing_it_imports_no_tensorflow() -> None:
    code = (
        "import sys, drumbeat\n"
        "list(drumbeat.state.resumable().epochs(2))\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _breaks(progress, data) -> None:
    for _ in progress.epochs(3):
        for batch in progress.batches(data):
            if batch == "y":
                break
        break


def _returns(progress, data):
    for _ in progress.epochs(3):
        for batch in progress.batches(data):
            if batch == "y":
                return batch
    return None


def _raises(progress, data) -> None:
    for _ in progress.epochs(3):
        for batch in progress.batches(data):
            if batch == "y":
                raise ValueError(batch)


def _fails(progress, data) -> None:
    for _ in progress.epochs(3):
        for batch in progress.batches(data):
            int(batch)


def _exits(progress, data) -> None:
    for _ in progress.epochs(3):
        sys.exit(75)


@pytest.mark.parametrize(
    ("leave", "finished"),
    [(_breaks, True), (_returns, True), (_raises, False), (_fails, False), (_exits, False)],
)
def test_a_loop_is_finished_by_a_break_and_not_by_an_exception(keepers: list, leave, finished):
    kept = Kept(0)
    keepers.append(lambda progress: kept)
    with contextlib.suppress(ValueError, SystemExit):
        leave(resumable(), "xyz")
    assert ("finish" in kept.told) is finished
    assert kept.told[-1] == "exit"
