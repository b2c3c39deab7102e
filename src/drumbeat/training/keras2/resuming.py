"""`fit` of tf_keras that goes on where an earlier life of the process was: see `training.resuming`.

tf_keras makes its iterators before a callback hears of the epoch, for data of its own one more
than it uses, and begins a fit at any step. So what `training.positions` watches is what
it makes iterators of, and the steps that have been made are left to tf_keras to leave out.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import tensorflow as tf
import tf_keras

from drumbeat import tf_keras_internals as touch
from drumbeat.state.format import State
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import journal, keras_loops, positions, randomness
from drumbeat.training.callback_state import PythonState
from drumbeat.training.epochs import csv_begin
from drumbeat.training.follower import FollowerHooks
from drumbeat.training.keras2.callbacks import unwatched
from drumbeat.training.kinds import KINDS
from drumbeat.training.positions import Position, Watched
from drumbeat.training.resuming import FitPhase


def integrate() -> None:
    """Look into tf_keras's epochs."""
    touch.wrap(touch.EPOCHS, _enumerate_epochs)
    touch.wrap(touch.STEPS, _steps)
    touch.wrap(touch.EPOCH_RESULT, _epoch_result)
    touch.wrap(touch.SYNC_LOGS, _sync_logs)
    touch.wrap(touch.CSV_BEGIN, csv_begin)
    KINDS.models += (tf_keras.Model,)
    KINDS.layers += (tf_keras.layers.Layer,)
    KINDS.optimizers += touch.OPTIMIZERS
    KINDS.metrics += (tf_keras.metrics.Metric,)
    KINDS.left_out += (tf_keras.losses.Loss,)
    KINDS.histories += (tf_keras.callbacks.History,)
    KINDS.csv_loggers += (tf_keras.callbacks.CSVLogger,)
    KINDS.progress_bars += (tf_keras.callbacks.ProgbarLogger,)
    KINDS.sequences += (tf_keras.utils.Sequence,)
    KINDS.more_of += [_states_of_generators, touch.loss_scale_variables]


def _states_of_generators(owner: Any) -> list[Any]:
    if not isinstance(owner, tf_keras.layers.Layer):
        return []
    return [generator.state for generator in touch.layer_generators(owner)]


def run(
    original: Callable[..., Any],
    model: Any,
    strategy: DataParallelStrategy | None,
    arguments: Mapping[str, Any],
    behind: list[Any],
) -> Any:
    """tf_keras's `fit`, or what is left of it after a restart."""
    return keras_loops.run(original, model, strategy, arguments, behind, of=Keras2FitPhase)


def configured(handler: Any) -> None:
    """A data handler has been made; in a fit, the first is that of the training."""
    phase = _active()
    if phase is not None:
        phase.knows(handler)


def counters(model: Any, epoch: int, step: int) -> tuple[int, int]:
    """The epoch and the step at which a fit begins, which without a restart are those given."""
    phase = _active()
    if phase is None or phase.model is not model:
        return epoch, step
    return phase.counters(epoch, step)


def _active() -> Keras2FitPhase | None:
    own = journal.own()
    active = None if own is None else own.active
    return active if isinstance(active, Keras2FitPhase) else None


def _enumerate_epochs(original: Callable[..., Any]) -> Callable[..., Any]:
    def enumerate_epochs(self: Any) -> Any:
        phase = _active()
        return original(self) if phase is None else phase.around_epochs(original, self)

    return enumerate_epochs


def _steps(original: Callable[..., Any]) -> Callable[..., Any]:
    def steps(self: Any) -> Any:
        own = journal.own()
        if own is None:
            return original(self)
        phase = _active()
        if phase is not None:
            return phase.around_handlers_steps(original(self), self)
        return _alive(original(self), own.page)

    return steps


def _alive(
    steps: Iterator[int], page: Any, took: Callable[[], None] = lambda: None
) -> Iterator[int]:
    for step in steps:
        if page is not None:
            page.update()
        yield step
        took()


def _epoch_result(original: Callable[..., Any]) -> Callable[..., Any]:
    def validate_and_get_metrics_result(self: Any, logs: Any) -> Any:
        phase = _active()
        if phase is not None and phase.model is self:
            # Before any callback's on_epoch_end; the generator of steps may be left unfinished.
            phase.steps_are_over()
        return original(self, logs)

    return validate_and_get_metrics_result


def _sync_logs(original: Callable[..., Any]) -> Callable[..., Any]:
    def sync_to_numpy_or_python_type(tensors: Any) -> Any:
        phase = _active() if tensors is None else None
        # The epoch went on behind its last step.
        return original(tensors if phase is None else phase.kept_logs())

    return sync_to_numpy_or_python_type


@unwatched
class _Follower(FollowerHooks, tf_keras.callbacks.Callback):
    def __init__(self, phase: Any) -> None:
        super().__init__(phase)
        self._supports_tf_logs = True


class _Source:
    """What a data handler makes iterators of, as `Watched` knows it."""

    def __init__(self, handler: Any, *, lives_on: bool) -> None:
        self.handler = handler
        self.steps_per_epoch = lives_on
        self._distributed_dataset = touch.dataset_of(handler)
        self._current_iterator: Any = None
        self._steps_seen = 0
        self._get_iterator: Any = None

    @property
    def _num_batches(self) -> int | None:
        return touch.steps_of(self.handler)


class _Iterators:
    """Stands for a handler's data: whoever asks for an iterator gets one that is watched."""

    def __init__(self, make: Callable[[], Any], *, leave_out: int) -> None:
        self._make = make
        self._leave_out = leave_out

    def __iter__(self) -> Any:
        if self._leave_out:
            self._leave_out -= 1
            return iter(())
        return self._make()


class Keras2FitPhase(FitPhase):
    """One call of tf_keras's `fit`."""

    history: ClassVar[type] = tf_keras.callbacks.History
    follower_class: ClassVar[Any] = _Follower
    no_epochs: ClassVar[dict[str, int]] = {"epochs": 1, "initial_epoch": 1}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._begins_with: State | None = None
        self._random_of_data: tuple[Any, ...] | None = None

    def knows(self, source: Any) -> None:
        """See `configured`."""
        if self._source is None:
            self._source = _Source(source, lives_on=not touch.makes_anew(source))

    def counters(self, epoch: int, step: int) -> tuple[int, int]:
        """See there; called behind the callbacks' `on_train_begin`."""
        self._begins_with = self._snapshot
        if self.finished is not None:
            return 1, 0
        if self._snapshot is None:
            return epoch, step
        meta = self._snapshot.meta
        return meta["epoch"], meta["steps_made"] * touch.steps_per_execution(self.model)

    def _build(self) -> None:
        assert self._source is not None  # noqa: S101
        strategy = self.model.distribute_strategy
        step = tf.function(lambda batch: strategy.run(self.model.train_step, (batch,)))
        with strategy.scope():
            # Traced, it makes all variables. It runs for no batch.
            step.get_concrete_function(self._source._distributed_dataset.element_spec)

    def _go_on(self, snapshot: State) -> None:
        if snapshot.meta["in_epoch"]:
            logs = self._put_back_all(snapshot)["logs"]
            self._logs = self._kept_logs = None if logs is None else pickle.loads(logs)
        if self._random_of_data is not None:
            randomness.put_back(self._random_of_data)

    # Iterators --------------------------------------------------------------------

    def around_epochs(
        self, original: Callable[[Any], Iterator[Any]], handler: Any
    ) -> Iterator[Any]:
        """tf_keras's generator of the epochs of `handler`."""
        is_training = self._source is not None and handler is self._source.handler
        if not is_training and handler is not touch.evaluation_handler(self.model):
            return original(handler)
        watched = self._watch_training() if is_training else self._watch_evaluation(handler)
        snapshot = self._begins_with if is_training else None
        self._begins_with = None
        # Of what makes an iterator each epoch, it makes one more before the first.
        leave_out = int(snapshot is not None and touch.makes_anew(handler))
        if self.finished is not None:
            leave_out = 1
        iterators = _Iterators(self._maker(watched, snapshot), leave_out=leave_out)
        return touch.with_dataset(handler, iterators, original)

    def _watch_training(self) -> Watched:
        snapshot, position = self._begins_with, None
        if snapshot is not None:
            meta = snapshot.meta
            position = Position.from_json(meta["train"])
            self._evaluation_goes_on = Position.from_json(meta["evaluation"])
            made = [*position.numbers, *self._evaluation_goes_on.numbers]
            self._numbers = itertools.count(max(made, default=-1) + 1)
            self._steps_before = meta["steps_made"]
            if touch.steps_of(self._source.handler) is None and position.length is not None:
                touch.set_steps_of(self._source.handler, position.length)
        self._watched = Watched(self._source, self._x, self._data, position, self._numbers)
        if self._evaluation_goes_on is not None:
            self._evaluation_is_made_up = self._watched.made_beside(
                self._validation_x, self._evaluation_goes_on
            )
        return self._watched

    def _watch_evaluation(self, handler: Any) -> Watched:
        if self._evaluation is None:
            goes_on, self._evaluation_goes_on = self._evaluation_goes_on, None
            self._evaluation = Watched(
                _Source(handler, lives_on=False),
                self._validation_x,
                PythonState([]),
                goes_on,
                self._numbers,
            )
            if self._evaluation_is_made_up:
                self._evaluation.is_made_up()
        return self._evaluation

    def _maker(self, watched: Watched, snapshot: State | None) -> Callable[[], Any]:
        first = [snapshot]

        def make() -> Any:
            goes_on = first.pop() if first else None
            if goes_on is None:
                made = watched.make()
            else:
                made = self._made_where_it_was(watched, goes_on)
            if watched is self._watched:
                self._source._current_iterator = made
            return made

        return make

    def _made_where_it_was(self, watched: Watched, snapshot: State) -> Any:
        """The first iterator after a restart: the data's code finds what it found then."""
        now = randomness.state()
        python = self.snapshot_python(snapshot)
        self.data_goes_on(self._source._distributed_dataset)
        if snapshot.meta["train"]["batches"] >= 0 and python["at_creation"].random:
            randomness.put_back(python["at_creation"].random)
            self._data.put_back(python["at_creation"].data)
        made = watched.make()
        if positions.runs_python(self._source._distributed_dataset):
            self._random_of_data = randomness.state()
        else:
            randomness.put_back(now)
        return made

    # Steps ------------------------------------------------------------------------

    _steps_before = 0

    def around_handlers_steps(self, steps: Iterator[int], handler: Any) -> Iterator[int]:
        """tf_keras's generator of the steps of an epoch."""
        if self._source is not None and handler is self._source.handler:
            self._steps_made, self._steps_before = self._steps_before, 0
            return self.report.clock.around(self._made(steps, handler))
        took: Callable[[], None] = lambda: None  # noqa: E731
        evaluation = self._evaluation
        if evaluation is not None and handler is touch.evaluation_handler(self.model):
            took = lambda: evaluation.took(handler.step_increment + 1)  # noqa: E731
        return _alive(steps, self.journal.page, took)

    def _made(self, steps: Iterator[int], handler: Any) -> Iterator[int]:
        for step in steps:
            yield step
            count = handler.step_increment + 1
            self._made_step(count, count)

    def around_steps(self, original: Callable[[Any], Iterator[Any]], source: Any) -> Iterator[Any]:
        """An epoch of a model of Keras 3 within this fit, such as an evaluation."""
        return positions.alive(original(source), self.journal.page)
