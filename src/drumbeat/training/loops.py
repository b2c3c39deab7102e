"""Keeps the state of a training loop of the user's own; see `drumbeat.state.resumable`."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from drumbeat.collectives.local import LocalCommunicator
from drumbeat.data.distributed import DistributedDataset
from drumbeat.data.replay import iterator_at, pass_over
from drumbeat.state.format import State
from drumbeat.state.loops import Resumable
from drumbeat.state.progress import Activity
from drumbeat.strategies import choose
from drumbeat.training import holdings, journal, local_sgd, positions, randomness
from drumbeat.training.callback_state import PythonState
from drumbeat.training.journal import Journal
from drumbeat.training.phases import Phase


def keeper(progress: Resumable) -> LoopPhase | None:
    """What keeps a loop that begins, on all workers; None where nothing is kept."""
    own = journal.own()
    if own is None or own.active is not None:
        return None
    strategy = choose.existing()
    communicator = LocalCommunicator() if strategy is None else strategy.communicator
    if communicator.size < own.identity.world_size:
        return None
    shards = 1 if strategy is None else strategy.extended.replicas.count
    number, finished, snapshot = own.begin(communicator)
    return LoopPhase(own, communicator, number, progress, shards, finished, snapshot)


@dataclass
class _Data:
    """How far the loop is in one of its datasets.

    Attributes:
        earlier: How many batches each iterator made so far gave, but the present one.
        batches: Taken from the present one; -1 where there is none.
        is_same: Whether it was the same dataset in the epoch before, as far as is known.
        dataset: It, once this process has got it.
        is_behind: Whether an earlier process has made iterators that this one has not.
    """

    earlier: list[int] = field(default_factory=list)
    batches: int = -1
    is_same: bool = True
    dataset: Any = None
    is_behind: bool = False

    def begin(self) -> None:
        """A new pass."""
        if self.batches >= 0:
            self.earlier.append(self.batches)
        self.batches = 0


class LoopPhase(Phase):
    """One loop over epochs.

    Args:
        journal: Of this worker.
        communicator: Of the workers.
        number: See `Phase`.
        progress: What the user holds.
        shards: How many virtual shards this worker runs.
        finished: The state at its end, where it was finished before.
        snapshot: What it goes on from, where it was interrupted.
    """

    kind = "loop"

    def __init__(
        self,
        journal: Journal,
        communicator: Any,
        number: int,
        progress: Resumable,
        shards: int,
        finished: State | None,
        snapshot: State | None,
    ) -> None:
        super().__init__(journal, communicator, number)
        self._progress = progress
        self._shards = shards
        self._finished = finished
        self._snapshot = snapshot
        self._values = PythonState([progress])
        self._epoch = 0
        self._calls = 0
        self._data: list[_Data] = []
        self._epoch_start: tuple[Any, ...] = ()

    # The state --------------------------------------------------------------------

    def holdings(self) -> holdings.Holdings:
        """What the user holds."""
        return holdings.of(list(vars(self._progress).values()), self._shards)

    def python(self) -> dict[str, Any]:
        """The user's values, and the random numbers at the beginning of the epoch."""
        return {"values": self._values.take(), "epoch_start": self._epoch_start}

    def facts(self, *, in_epoch: bool) -> dict[str, Any]:
        """How far it is."""
        return {
            "epoch": self._epoch if in_epoch else self._epoch + 1,
            "in_epoch": in_epoch,
            "calls": self._calls if in_epoch else 0,
            "data": [[d.earlier, d.batches, d.is_same] for d in self._data],
        }

    def _put_back_all(self, state: State) -> dict[str, Any]:
        python = self.put_back(state)
        self._values.put_back(python["values"])
        return python

    # The loop ---------------------------------------------------------------------

    def first_epoch(self, first: int) -> int | None:
        """See `drumbeat.state.loops.Keeper`."""
        self._values.begin()
        if self._finished is not None:
            self._put_back_all(self._finished)
            self.journal.step = self._finished.step
            return None
        snapshot = self._snapshot
        if snapshot is None:
            return first
        python = self._put_back_all(snapshot)
        self._data = [_Data(*each, is_behind=True) for each in snapshot.meta["data"]]
        if snapshot.meta["in_epoch"]:
            # For what the body does before it asks for batches.
            randomness.put_back(python["epoch_start"])
        else:
            self._snapshot = None
        return snapshot.meta["epoch"]

    def epoch_begins(self, epoch: int) -> None:
        """Before the body of the loop."""
        self._epoch, self._calls = epoch, 0
        self._epoch_start = randomness.state()
        super().epoch_begins(epoch)

    def epoch_ends(self) -> None:
        """After the body of the loop."""
        # Interrupted in its steps, it went on without asking for any.
        self._snapshot = None
        self.journal.doing(Activity.BETWEEN_EPOCHS)
        local_sgd.average_weights(*vars(self._progress).values())
        self.between_epochs()

    def batches(self, data: Iterable[Any]) -> Iterator[Any]:
        """The batches of `data` that are left of this epoch."""
        call, self._calls = self._calls, self._calls + 1
        snapshot = self._snapshot
        if snapshot is not None and call < snapshot.meta["calls"] - 1:
            self._of_call(call, data)
            return
        known = self._of_call(call, data)
        if snapshot is None:
            iterator = self._fresh(known, data)
        else:
            iterator = self._later(known, data)
            self._snapshot = None
            now = randomness.state()
            self._put_back_all(snapshot)
            if _is_pipeline(data) and positions.runs_python(data):
                randomness.put_back(now)
        super().epoch_begins(self._epoch)
        try:
            for batch in iterator:
                yield batch
                known.batches += 1
                self.step_finished()
        finally:
            self.steps_are_over()

    def _of_call(self, call: int, data: Any) -> _Data:
        """What is known of the dataset of the `call`-th call in this epoch."""
        while len(self._data) <= call:
            self._data.append(_Data())
        known = self._data[call]
        goes_on = self._snapshot is not None and call < self._snapshot.meta["calls"]
        if known.dataset is None and (known.is_same or goes_on):
            known.dataset = data
        elif known.dataset is not data:
            known = self._data[call] = _Data(is_same=False, dataset=data)
        return known

    def _fresh(self, known: _Data, data: Any) -> Iterator[Any]:
        known.begin()
        if known.is_behind and _is_pipeline(data):
            pass_over(data, known.earlier)
        known.is_behind = False
        return iter(data)

    def _later(self, known: _Data, data: Any) -> Iterator[Any]:
        self.data_goes_on(data)
        known.is_behind = False
        if _is_pipeline(data):
            pass_over(data, known.earlier)
            return iterator_at(data, known.batches)
        iterator = iter(data)
        # Now: it may draw random numbers, which are put back after it.
        collections.deque(itertools.islice(iterator, known.batches), maxlen=0)
        return iterator


def _is_pipeline(data: Any) -> bool:
    return isinstance(data, tf.data.Dataset | DistributedDataset)
