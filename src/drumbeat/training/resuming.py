"""`fit` that goes on where an earlier life of the process was, in the middle of an epoch.

The script is run again from its top. A `fit` that was finished is passed over: Keras
builds what it builds, trains nothing, and the state at the end is put back. The one
that was interrupted begins as ever, its callbacks' `on_train_begin` and `on_epoch_begin`
included; then everything is put back, and its epoch goes on with the next batch.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import tensorflow as tf

from drumbeat.collectives.local import LocalCommunicator
from drumbeat.state.format import State
from drumbeat.state.progress import Activity
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import holdings, journal, positions, randomness, stopping
from drumbeat.training.callback_state import PythonState, pickled
from drumbeat.training.follower import Follower
from drumbeat.training.jit_record import Record
from drumbeat.training.journal import Journal
from drumbeat.training.keeping import Keeper
from drumbeat.training.kinds import KINDS
from drumbeat.training.phases import Phase
from drumbeat.training.positions import Position, Start, Watched
from drumbeat.training.time_report import TimeReport, told


def begin(
    model: Any,
    strategy: DataParallelStrategy | None,
    arguments: Mapping[str, Any],
    of: type[FitPhase],
) -> FitPhase | None:
    """A `fit` begins; what is to be kept of it, or None where nothing is.

    All workers must call this, where the model is trained by all.

    Args:
        model: To be fitted.
        strategy: With which all workers train it; None for a training of this worker's own.
        arguments: Of `fit`, by name.
        of: Class of phases of the Keras that fits it.
    """
    own = journal.own()
    if own is None or own.active is not None:
        return None
    communicator = LocalCommunicator() if strategy is None else strategy.communicator
    shards = 1 if strategy is None else strategy.extended.replicas.count
    other = strategy is None and model.distribute_strategy.num_replicas_in_sync > 1
    if other or communicator.size < own.identity.world_size:
        # Not all workers may come here: it has no number.
        return of(own, communicator, -1, model, arguments, shards, None, None)
    callbacks = stopping.each(arguments.get("callbacks"))
    keepers = [getattr(callback, "keeper", None) for callback in callbacks]
    number, finished, snapshot = own.begin(
        communicator, [keeper for keeper in keepers if isinstance(keeper, Keeper)]
    )
    return of(own, communicator, number, model, arguments, shards, finished, snapshot)


@dataclass
class _Resumed:
    """What the data's iterator needs to go on."""

    position: Position
    in_epoch: bool
    steps_made: int
    epoch_start: Start
    at_creation: Start


class FitPhase(Phase):
    """One call of `fit`.

    Args:
        journal: Of this worker.
        communicator: Of the workers.
        number: See `Phase`.
        model: To be fitted.
        arguments: Of `fit`, by name.
        shards: How many virtual shards this worker runs.
        finished: The state at its end, where it was finished before.
        snapshot: What it goes on from, where it was interrupted.
    """

    kind = "fit"
    history: ClassVar[type] = keras.callbacks.History
    follower_class: ClassVar[Any] = Follower
    no_epochs: ClassVar[dict[str, int]] = {"epochs": 0, "initial_epoch": 0}

    def __init__(
        self,
        journal: Journal,
        communicator: Any,
        number: int,
        model: Any,
        arguments: Mapping[str, Any],
        shards: int,
        finished: State | None,
        snapshot: State | None,
    ) -> None:
        super().__init__(journal, communicator, number)
        self.model = model
        self.finished = finished
        self.is_going_on = snapshot is not None
        self.follower = self.follower_class(self)
        for state in (finished, snapshot):
            Record.adopt(state.meta.get("jit", {}) if state else {})
        given = list(stopping.each(arguments.get("callbacks")))
        self._callbacks = given
        self._own_history: list[Any] = []
        if not any(isinstance(callback, KINDS.histories) for callback in given):
            self._own_history = [self.history()]
        self._x = arguments.get("x")
        self._validation_x = _first(arguments.get("validation_data"))
        objects = [*given, *self._own_history, *_of_keras(self._validation_x)]
        self.report = TimeReport(
            journal.identity, communicator.times, number, told(journal.identity), given
        )
        self._objects = PythonState(objects)
        self._data = PythonState(_of_keras(self._x))
        self._shards = shards
        self._snapshot = snapshot
        self._resumed: _Resumed | None = None
        self._source: Any = None
        self._watched: Watched | None = None
        self._evaluation: Watched | None = None
        self._evaluation_goes_on: Position | None = None
        self._evaluation_is_made_up = False
        self._numbers: Iterator[int] = itertools.count()
        self._epoch, self._steps_made = 0, 0
        self._epoch_start = Start()
        self._expects_steps = False
        self._has_evaluated = False
        self._logs: Any = None
        self._kept_logs: Any = None

    @property
    def behind(self) -> list[Any]:
        """What to put behind all other callbacks."""
        return [*self._own_history, self.follower]

    # The state --------------------------------------------------------------------

    def holdings(self) -> holdings.Holdings:
        """The model's variables, and those of callbacks."""
        return holdings.of([self.model, *self._callbacks], self._shards)

    def python(self) -> dict[str, Any]:
        """Callbacks, the data's own state, and what `fit` remembers."""
        watched = self._watched
        return {
            "objects": self._objects.take(),
            "data": self._data.take(),
            "epoch_start": self._epoch_start,
            "at_creation": Start() if watched is None else watched.at_creation,
            "logs": pickled(self._logs),
            "stop_training": self.model.stop_training,
        }

    def facts(self, *, in_epoch: bool) -> dict[str, Any]:
        """The position in the data."""
        watched, evaluation = self._watched, self._evaluation
        train = Position() if watched is None else watched.position(in_epoch=in_epoch)
        tested = Position() if evaluation is None else evaluation.position(in_epoch=False)
        return {
            "epoch": self._epoch if in_epoch else self._epoch + 1,
            "in_epoch": in_epoch,
            "steps_made": self._steps_made if in_epoch else 0,
            "train": train.to_json(),
            "evaluation": tested.to_json(),
        }

    # A fit that is over -----------------------------------------------------------

    def pass_over(self, original: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """What `fit` returned; model, callbacks and random numbers are as they were after it."""
        state = self.finished
        assert state is not None  # noqa: S101
        histories = [c for c in self._callbacks if isinstance(c, KINDS.histories)]
        for callback in self._callbacks:
            callback.set_model(self.model)
        with self:
            result = original(
                **{
                    **arguments,
                    "callbacks": [*histories, *self._own_history, self.follower],
                    **self.no_epochs,
                    "verbose": 0,
                }
            )
            python = self.put_back(state)
        self._objects.put_back(python["objects"])
        self._data.put_back(python["data"])
        self.model.stop_training = python["stop_training"]
        self.journal.step = state.step
        if self._source is not None:
            positions.leave_as(self._source, self._x, Position.from_json(state.meta["train"]))
        positions.leave_as(None, self._validation_x, Position.from_json(state.meta["evaluation"]))
        randomness.put_back(python["random"])
        return result

    # A fit that goes on -----------------------------------------------------------

    def train_begins(self) -> None:
        """Behind the callbacks' `on_train_begin`."""
        self._objects.begin()
        self._data.begin()
        if self.finished is not None:
            self._build()
        elif self._snapshot is not None:
            self._build()
            # So that what on_epoch_begin looks at is no older than need be.
            self._put_back_all(self._snapshot)
            self.model._initial_epoch = self._snapshot.meta["epoch"]

    def epoch_about_to_begin(self, epoch: int) -> None:
        """Behind the callbacks' `on_epoch_begin`."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            self._go_on(snapshot)
        self._epoch = epoch
        self._steps_made = 0
        self._expects_steps, self._has_evaluated = True, False
        self.report.epoch_begins(self.model)
        self.epoch_begins(epoch)

    def epoch_ends(self) -> None:
        """Behind the callbacks' `on_epoch_end`, after what differed between workers is mended."""
        self.mended()
        self._kept_logs = None
        self.journal.doing(Activity.BETWEEN_EPOCHS)
        # A long evaluation is a long time without a beat.
        wanted = self._has_evaluated or self.journal.backups.epoch_ends_matter
        if wanted and not self.model.stop_training:
            self.between_epochs()

    def noted(self, logs: Any) -> None:
        """Behind the callbacks' `on_train_batch_end`."""
        self._logs = logs
        self._kept_logs = None

    def evaluation_begins(self) -> None:
        """Validation."""
        self._has_evaluated = True
        self.journal.doing(Activity.EVALUATING)

    def _build(self) -> None:
        if self.model._distribute_strategy is None and self._source is not None:
            # Keras leaves it to the first step, which is too late.
            dataset: Any = self._source._distributed_dataset
            build(self.model, dataset.element_spec)

    def _put_back_all(self, snapshot: State) -> dict[str, Any]:
        python = self.put_back(snapshot)
        self._objects.put_back(python["objects"])
        return python

    def _go_on(self, snapshot: State) -> None:
        meta = snapshot.meta
        self.model._initial_epoch = None
        in_epoch = meta["in_epoch"]
        if in_epoch:
            python = self._put_back_all(snapshot)
            logs = python["logs"]
            self._logs = self._kept_logs = None if logs is None else pickle.loads(logs)
        else:
            python = self.snapshot_python(snapshot)
            self._data.put_back(python["data"])
        position, self._evaluation_goes_on = (
            Position.from_json(meta[name]) for name in ("train", "evaluation")
        )
        made = [*position.numbers, *self._evaluation_goes_on.numbers]
        self._numbers = itertools.count(max(made, default=-1) + 1)
        self._resumed = _Resumed(
            position=position,
            in_epoch=in_epoch,
            steps_made=meta["steps_made"],
            epoch_start=python["epoch_start"],
            at_creation=python["at_creation"],
        )

    def kept_logs(self) -> Any:
        """Of the last step before the snapshot, where no other was made since; once."""
        kept, self._kept_logs = self._kept_logs, None
        return kept

    # Epoch iterators --------------------------------------------------------------

    def knows(self, source: Any) -> None:
        """An epoch iterator of Keras's has been made; the first is that of the training."""
        if self._source is None:
            self._source = source

    def around_steps(self, original: Callable[[Any], Iterator[Any]], source: Any) -> Iterator[Any]:
        """Keras's generator for one epoch of `source`."""
        if self._expects_steps:
            self._expects_steps = False
            return self._train_steps(original, source)
        if source is not getattr(self.model, "_eval_epoch_iterator", None):
            return positions.alive(original(source), self.journal.page)
        if self._evaluation is None:
            goes_on, self._evaluation_goes_on = self._evaluation_goes_on, None
            self._evaluation = Watched(
                source, self._validation_x, PythonState([]), goes_on, self._numbers
            )
            if self._evaluation_is_made_up:
                self._evaluation.is_made_up()
        return positions.alive(original(source), self.journal.page, self._evaluation.took)

    def _train_steps(self, original: Callable[[Any], Iterator[Any]], source: Any) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        position = None if resumed is None else resumed.position
        if self._watched is None:
            self._watched = Watched(source, self._x, self._data, position, self._numbers)
            if self._evaluation_goes_on is not None:
                self._evaluation_is_made_up = self._watched.made_beside(
                    self._validation_x, self._evaluation_goes_on
                )
        watched = self._watched
        on_begin: Callable[[], None] = _nothing
        if resumed is None or position is None:
            self._epoch_start = Start(randomness.state(), self._data.take())
            watched.epoch_begins()
        else:
            now = randomness.state()
            self.data_goes_on(source._distributed_dataset)
            self._recreate(watched, resumed)
            if not positions.runs_python(source._distributed_dataset):
                on_begin = lambda: randomness.put_back(now)  # noqa: E731
            self._steps_made = resumed.steps_made
        skip = self._steps_made
        made = positions.steps(
            original, source, skip=skip, on_begin=on_begin, on_step=self._made_step
        )
        return self.report.clock.around(made)

    def _recreate(self, watched: Watched, resumed: _Resumed) -> None:
        """Lets the data's code find what it found when the epoch, or the iterator, began."""
        if resumed.position.batches >= 0 and resumed.at_creation.random:
            randomness.put_back(resumed.at_creation.random)
            self._data.put_back(resumed.at_creation.data)
        watched.resume(resumed.position)
        if resumed.in_epoch:
            self._epoch_start = resumed.epoch_start
            if not watched.lives_on:
                randomness.put_back(resumed.epoch_start.random)
                self._data.put_back(resumed.epoch_start.data)
        else:
            self._epoch_start = Start(randomness.state(), self._data.take())

    def _made_step(self, batches: int, steps: int) -> None:
        assert self._watched is not None  # noqa: S101
        self._watched.took(batches)
        self._steps_made += 1
        self.step_finished(steps)
        self.report.made(steps)

    def steps_are_over(self) -> None:
        """The steps of an epoch are made, or those of a validation."""
        super().steps_are_over()
        self.report.steps_are_over()


def build(model: Any, batch_spec: Any) -> None:
    """Makes all variables that a training step of `model` makes or uses.

    Args:
        model: Compiled.
        batch_spec: Type specification of a batch.
    """
    try:
        model._symbolic_build(data_batch=batch_spec)
    except (RuntimeError, ValueError):
        # There is only a train_step: trace it. It runs for no batch.
        step = tf.function(lambda batch: model.train_step(batch))
        step.get_concrete_function(batch_spec)


def _first(validation_data: Any) -> Any:
    return validation_data[0] if isinstance(validation_data, tuple) else validation_data


def _of_keras(data: Any) -> list[Any]:
    return [data] if isinstance(data, KINDS.sequences) else []


def _nothing() -> None:
    """Nothing to do."""
