"""A state of some number of workers, as another number of them, or of their devices, goes on.

What all workers had alike stays that. What each had of its own is shared out anew, so
that at the end of the epoch the workers together have what they would have had.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from drumbeat.errors import StateError
from drumbeat.state.format import State, unpack
from drumbeat.training import shard_state, state_sync
from drumbeat.training.holdings import Held, Holdings, Kind


def own_of(state: State, rank: int) -> State:
    """What worker `rank` had of its own; a worker that wasn't there gets the chief's.

    Raises:
        StateError: It is damaged.
    """
    data = state.arrays.get(f"own{rank if rank < state.meta['workers'] else 0}")
    if data is None:
        raise StateError(f"The snapshot of step {state.step} has nothing of worker {rank}.")
    return unpack(np.ascontiguousarray(data).data)


def names_of(held: Sequence[Held]) -> list[str]:
    """What each of `held` is called in a state, for any number of virtual shards of a worker."""
    names, number = [], -1
    for each in held:
        number += each.shard == 0
        names.append(_name(number, each.shard))
    return names


def _name(number: int, shard: int) -> str:
    return f"v{number}.{shard}" if shard else f"v{number}"


class Former:
    """A state of other workers than those that go on from it.

    Args:
        state: See above.
        holdings: Of the worker that goes on.
        rank: Its rank.
        size: How many workers there are now.
    """

    def __init__(self, state: State, holdings: Holdings, rank: int, size: int) -> None:
        self._holdings = holdings
        self._rank = rank
        self._size = size
        self._shards = state.meta["shards"]
        self._units = state.meta["units"]
        self._workers = range(state.meta["workers"])
        self._arrays = [{**state.arrays, **own_of(state, r).arrays} for r in self._workers]
        self._alike = state.arrays
        # In exact mode there are always as many virtual shards, and each keeps what it has.
        self._same_shards = len(self._workers) * self._shards == size * holdings.shards

    def values(self) -> list[np.ndarray]:
        """What the variables of this worker are to hold."""
        values, number = [], -1
        for each in self._holdings.held:
            number += each.shard == 0
            values.append(self._value(each, number))
        return values

    def _value(self, each: Held, number: int) -> np.ndarray:
        name = _name(number, 0)
        if each.kind is Kind.METRIC:
            return self._counted(each, number)
        if each.kind is Kind.RESIDUAL:
            owed = functools.reduce(np.add, [arrays[name] for arrays in self._arrays])
            return owed / np.float32(self._size)
        if name in self._alike:
            return self._alike[name]
        if each.kind is Kind.STATISTIC:
            # As at the end of an epoch, see `divergence.average_drifted`.
            parts = zip(self._units, self._arrays, strict=True)
            total = sum(units * arrays[name] for units, arrays in parts)
            return np.asarray(total / sum(self._units)).astype(self._arrays[0][name].dtype)
        return self._arrays[self._rank if self._rank in self._workers else 0][name]

    def _replicas(self, number: int) -> list[np.ndarray]:
        """What each virtual shard of the job had in a variable."""
        shards = range(self._shards)
        return [arrays[_name(number, shard)] for arrays in self._arrays for shard in shards]

    def _counted(self, each: Held, number: int) -> np.ndarray:
        """A metric's variable: the chief takes over what all have counted, the others begin."""
        replicas = self._replicas(number)
        if self._same_shards:
            return replicas[self._rank * self._holdings.shards + each.shard]
        aggregation = state_sync.aggregation_of(each.variable)
        if aggregation == "only_first_replica":
            return replicas[0]
        if aggregation == "mean":
            return np.asarray(np.mean(replicas, axis=0)).astype(replicas[0].dtype)
        start = _start_of(each.variable, replicas[0])
        if self._rank:
            return start
        added = functools.reduce(np.add, [value - start for value in replicas])
        return np.asarray(start + added).astype(start.dtype)

    def merge(self) -> None:
        """Has metrics with a `merge_state` take over by that what all have counted."""
        if self._same_shards:
            return
        names = names_of(self._holdings.held)
        numbers = {
            id(each.variable): int(name[1:])
            for each, name in zip(self._holdings.held, names, strict=True)
            if not each.shard
        }
        for metric in state_sync.merging(self._holdings.metrics):
            everyones = [self._replicas(numbers[id(v)]) for v in metric.variables]
            for variable, values in zip(metric.variables, everyones, strict=True):
                variable.assign(_start_of(variable, values[0]) if self._rank else values[0])
            if not self._rank:
                others = zip(*[values[1:] for values in everyones], strict=True)
                state_sync.merge_into(metric, [list(values) for values in others])


def _start_of(variable: Any, like: np.ndarray) -> np.ndarray:
    start = shard_state.start_of(variable)
    return np.zeros_like(like) if start is None else np.asarray(start).astype(like.dtype)
