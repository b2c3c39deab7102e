"""Where in its data a fit is, and going on from there.

Keras's epoch iterator is a generator: control comes back to it after each step, all
callbacks included, so that here a step is finished. To go on in the middle of an epoch
it is run as ever, with an iterator that begins later, and hands out nothing for the
steps that have been made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import tensorflow as tf

from drumbeat.data.distributed import DistributedDataset
from drumbeat.data.ordered import OrderedDataset
from drumbeat.data.replay import (
    have_a_source_in_common,
    iterator_at,
    pass_over,
    passing_over,
)
from drumbeat.state.progress import ProgressPage
from drumbeat.tf_internals import dataset_inputs, stateful_ops, undistributed
from drumbeat.training import randomness
from drumbeat.training.callback_state import Kept, PythonState


@dataclass
class Position:
    """Where a fit is in the data of one of its epoch iterators.

    Attributes:
        earlier: Of each iterator made so far from the dataset but the present one: how
            many batches it gave.
        batches: Taken from the present one; -1 where there is none.
        seen: Keras's count of steps at the beginning of the epoch.
        length: What Keras has found out about the number of batches.
        pass_number: For `drumbeat.data`: the pass that the last iterator is.
        numbers: Of each iterator, the present one too: how many the fit had made before it, of
            its training's and its validation's data.
    """

    earlier: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    batches: int = -1
    seen: int = 0
    length: int | None = None
    pass_number: int | None = None

    def end_iterator(self) -> None:
        """The present iterator, if there is one, is of no more use."""
        if self.batches >= 0:
            self.earlier = [*self.earlier, self.batches]
            self.batches = -1

    def to_json(self) -> dict[str, Any]:
        """As plain values, with equal numbers in a row counted."""
        steps = [b - a for a, b in zip([0, *self.numbers], self.numbers, strict=False)]
        return {**asdict(self), "earlier": _runs(self.earlier), "numbers": _runs(steps)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Position:
        """Inverse of `to_json`."""
        numbers = list(itertools.accumulate(_of_runs(values["numbers"])))
        return cls(**{**values, "earlier": _of_runs(values["earlier"]), "numbers": numbers})


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    return [(number, len(list(run))) for number, run in itertools.groupby(numbers)]


def _of_runs(runs: list[tuple[int, int]]) -> list[int]:
    return [number for number, count in runs for _ in range(count)]


@dataclass
class Start:
    """What the data's own code finds at the beginning of an epoch, or of an iterator's life.

    Attributes:
        random: See `randomness.state`.
        data: The attributes of Keras's `PyDataset`.
    """

    random: tuple[Any, ...] = ()
    data: list[Kept] = field(default_factory=list)


class Watched:
    """An epoch iterator of Keras's whose position is kept.

    Args:
        source: The epoch iterator.
        data: What the user gave as x.
        objects: The same, as far as it is a Python object with a state of its own.
        goes_on: Where an earlier process was; None to begin at the beginning.
        number: Gives each iterator of the fit its number, see `Position.numbers`.
    """

    def __init__(
        self,
        source: Any,
        data: Any,
        objects: PythonState,
        goes_on: Position | None,
        number: Iterator[int],
    ) -> None:
        self._source = source
        self._number = number
        self._beside: tuple[Any, Position] | None = None
        self._is_made_up = False
        self._ordered = data if isinstance(data, OrderedDataset) else None
        self._objects = objects
        self._goes_on = goes_on
        self._position = Position() if goes_on is None else replace(goes_on)
        self.at_creation = Start()
        source._get_iterator = lambda: _Making(self)

    @property
    def lives_on(self) -> bool:
        """Whether the present iterator is for the next epoch, too."""
        return bool(self._source.steps_per_epoch) and self._source._current_iterator is not None

    def epoch_begins(self) -> None:
        """Notes Keras's count of steps."""
        self._position.seen = self._source._steps_seen if self.lives_on else 0

    def took(self, batches: int) -> None:
        """A step is finished."""
        self._position.batches += batches

    def position(self, *, in_epoch: bool) -> Position:
        """Where it is now: after a step, or between epochs."""
        now = replace(self._position, length=self._source._num_batches)
        if not in_epoch:
            now.seen = self._source._steps_seen if self.lives_on else 0
            if not self.lives_on:
                now.end_iterator()
        if self._ordered is not None and now.batches < 0:
            now.pass_number = self._ordered.epoch
        return now

    def resume(self, goes_on: Position) -> None:
        """Lets Keras's iterator be where it was, before its generator starts."""
        source = self._source
        if source._num_batches is None:
            source._num_batches = goes_on.length
        if source.steps_per_epoch and goes_on.batches >= 0:
            # It lives on from epoch to epoch.
            source._current_iterator = self.make()
            source._steps_seen = goes_on.seen

    def is_made_up(self) -> None:
        """Another's `made_beside` has made up for the earlier iterators of this one."""
        self._is_made_up = True

    def made_beside(self, data: Any, position: Position) -> bool:
        """Takes on to make up for the iterators of `data`, too, if they share a shuffle.

        It moves on with each iterator of either, so these are made in the order of old.

        Args:
            data: What the user gave as validation data.
            position: Of its iterator; the present one isn't made up for.

        Returns:
            Whether it does.
        """
        mine = undistributed(self._source._distributed_dataset)
        is_plain = isinstance(data, tf.data.Dataset) and not isinstance(data, OrderedDataset)
        if self._goes_on is not None and is_plain and have_a_source_in_common(mine, data):
            self._beside = data, position
        return self._beside is not None

    def make(self) -> Any:
        """The next iterator over the data."""
        self.at_creation = Start(randomness.state(), self._objects.take())
        dataset = self._source._distributed_dataset
        goes_on, self._goes_on = self._goes_on, None
        if goes_on is not None and getattr(dataset, "has_no_place", False):
            # Pipelines on workers, of which nobody knows how far each has come.
            self._position.end_iterator()
            goes_on = None
        later: list[Iterator[None]] = []
        if goes_on is not None and not self._is_made_up:
            later = self._make_up(undistributed(dataset), goes_on)
        if self._ordered is not None:
            self._position.pass_number = self._ordered.epoch
        if goes_on is not None and goes_on.batches >= 0:
            present = iterator_at(undistributed(dataset), goes_on.batches)
        else:
            self._position.end_iterator()
            self._position.batches = 0
            self._position.numbers = [*self._position.numbers, next(self._number)]
            present = iter(dataset)
        for replay in later:
            next(replay)
        return present

    def _make_up(self, dataset: Any, goes_on: Position) -> list[Iterator[None]]:
        """Makes up for the iterators of an earlier process: each moves a shuffle on.

        Returns:
            What to make up for, by `next`, when the present one has been made.
        """
        if self._ordered is not None:
            if goes_on.pass_number is not None:
                self._ordered.epoch = goes_on.pass_number
            return []
        if self._beside is None:
            pass_over(dataset, goes_on.earlier)
            return []
        data, position = self._beside
        mine = passing_over(dataset, goes_on.earlier)
        beside = passing_over(data, position.earlier)
        replays = [
            *zip(goes_on.numbers, itertools.repeat(mine, len(goes_on.earlier)), strict=False),
            *zip(position.numbers, itertools.repeat(beside, len(position.earlier)), strict=False),
        ]
        replays.sort(key=lambda pair: pair[0])
        present = goes_on.numbers[-1] if goes_on.batches >= 0 else math.inf
        for number, replay in replays:
            if number < present:
                next(replay)
        return [replay for number, replay in replays if number > present]


class _Making:
    """What Keras asks for an iterator."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def __iter__(self) -> Any:
        return self._watched.make()


def leave_as(source: Any, data: Any, position: Position) -> None:
    """Leaves the data of a fit that is passed over as the fit had left it.

    Args:
        source: Keras's epoch iterator; None where it wasn't made.
        data: What the user gave.
        position: Of the epoch iterator at the end of the fit.
    """
    if isinstance(data, OrderedDataset):
        if position.pass_number is not None:
            data.epoch = position.pass_number
    elif source is not None and getattr(source._distributed_dataset, "has_no_place", False):
        pass  # it is made anew for each fit
    elif source is not None:
        pass_over(undistributed(source._distributed_dataset), position.earlier)
    elif isinstance(data, tf.data.Dataset):
        pass_over(data, position.earlier)


def runs_python(dataset: Any) -> bool:
    """Whether a pipeline calls Python code, which may draw random numbers of Python's or NumPy's.

    It draws them in threads of its own, so the streams can't be put back behind it.
    """
    dataset = undistributed(dataset)
    if isinstance(dataset, DistributedDataset):
        dataset = dataset.pipeline
    if stateful_ops(dataset) & _PYTHON:
        return True
    return any(runs_python(source) for source in dataset_inputs(dataset))


_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


def steps(
    original: Callable[[Any], Iterator[Any]],
    source: Any,
    *,
    skip: int,
    on_begin: Callable[[], None],
    on_step: Callable[[int, int], None],
) -> Iterator[Any]:
    """Keras's generator of an epoch, with a word after each step.

    Args:
        original: Keras's own.
        source: Its epoch iterator.
        skip: Hand out nothing for so many times.
        on_begin: Called when Keras's generator has begun.
        on_step: Called after each step; with `steps_per_execution` it is several. Gets how
            many batches were asked for, and how many steps they made.
    """
    length = source.num_batches
    for number, (begin, end, iterator) in enumerate(original(source)):
        if number == 0:
            on_begin()
        if number < skip:
            continue
        yield begin, end, iterator
        on_step(end + 1 - begin, (end + 1 if length is None else min(end + 1, length)) - begin)


def alive(
    steps: Iterator[Any],
    page: ProgressPage | None,
    took: Callable[[int], None] = lambda batches: None,
) -> Iterator[Any]:
    """Gives a sign of life with each step; `took` is told how many batches it has taken."""
    for begin, end, iterator in steps:
        if page is not None:
            page.update()
        yield begin, end, iterator
        took(end + 1 - begin)
