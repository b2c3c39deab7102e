"""What workers have of their own, and large, is in a snapshot once if all have the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from drumbeat.state.format import State, pack, unpack
from drumbeat.training import snapshots
from drumbeat.training.holdings import Holdings

pytestmark = pytest.mark.tensorflow

LARGE = np.arange(50_000.0)


class Together:
    """The workers of one job, each a thread."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=30)
        self.given: list[Any] = [None] * size

    def gather(self, rank: int, mine: np.ndarray) -> list[np.ndarray]:
        self.given[rank] = mine
        self.barrier.wait()
        everyones = list(self.given)
        self.barrier.wait()
        return everyones


class Worker:
    def __init__(self, job: Together, rank: int) -> None:
        self.job, self.rank, self.size = job, rank, job.size

    def all_gather_numpy(self, mine: np.ndarray, *, name: str) -> np.ndarray:
        return np.concatenate(self.job.gather(self.rank, mine))

    def all_reduce_numpy(self, mine: np.ndarray, how: str, *, name: str) -> np.ndarray:
        assert how in ("min", "max")
        return getattr(np, f"{how}imum").reduce(self.job.gather(self.rank, mine))


def taken(everyones: list[dict[str, Any]]) -> list[State]:
    """The snapshots of workers that have these Python values, as each of them has it."""
    job = Together(len(everyones))

    def take(rank: int) -> State:
        state = snapshots.take(
            Holdings(),
            everyones[rank],
            Worker(job, rank),  # type: ignore[arg-type]
            step=7,
            meta={"phase": 0},
            units=[1] * job.size,
        )
        return unpack(pack(state))

    with ThreadPoolExecutor(job.size) as pool:
        return list(pool.map(take, range(job.size)))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_all_have_is_there_once(size: int) -> None:
    everyones = [
        {"rank": rank, "alike": LARGE, "again": LARGE.copy(), "own": LARGE + rank, "small": [rank]}
        for rank in range(size)
    ]
    states = taken(everyones)
    own = size - 1 if size > 1 else 0  # rank 0's `own` is what all have
    size_bytes = len(pack(states[0]))
    assert (1 + own) * LARGE.nbytes < size_bytes < (1.1 + own) * LARGE.nbytes
    for state in states:
        for rank, python in enumerate(everyones):
            np.testing.assert_equal(snapshots.python_of(state, rank), python)


def test_as_many_large_ones_on_each_are_not_needed() -> None:
    everyones = [{"a": LARGE, "b": LARGE * 2}, {"b": LARGE * 2}, {}]
    for state in taken(everyones):
        assert [snapshots.python_of(state, rank).keys() for rank in range(3)] == [
            {"a", "b"},
            {"b"},
            set(),
        ]
        np.testing.assert_equal(snapshots.python_of(state, 1)["b"], LARGE * 2)
