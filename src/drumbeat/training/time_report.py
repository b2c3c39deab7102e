"""Tells where the time of a fit's steps goes: the agent, the user's log, a file, TensorBoard."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.cluster.identity import Identity
from drumbeat.collectives.times import CollectiveTimes
from drumbeat.state.step_times import (
    EpochTimes,
    StepTimes,
    TimesNote,
    callback_advice,
    epoch_callback_advice,
    input_advice,
    worker_file,
)
from drumbeat.training import callback_times, input_times
from drumbeat.training.callback_times import CallbackTimes
from drumbeat.training.step_clock import StepClock

logger = logging.getLogger("drumbeat")

LOOK_EVERY_S = 1.0
"""The agent's page is as old at most; looking costs some 50 µs."""
_NAMING_STEPS = 16


@dataclass
class Latest:
    """What `drumbeat.metrics.step_times` returns."""

    epochs: tuple[EpochTimes, ...] = ()


LATEST = Latest()


class TimeReport:
    """Of one fit on one worker.

    Args:
        identity: Who it is.
        collectives: What they have cost it so far.
        fit: Number of the fit among the job's phases.
        told: What all fits before have taken, and is to be added to.
        callbacks: The user's.
    """

    def __init__(
        self,
        identity: Identity,
        collectives: CollectiveTimes,
        fit: int,
        told: Told,
        callbacks: Iterable[Any],
    ) -> None:
        self.clock = StepClock(collectives, lambda: input_times.OF_PROCESS.total_s)
        self._identity = identity
        self._fit = fit
        self._told = told
        self._boards = [c for c in callbacks if isinstance(c, keras.callbacks.TensorBoard)]
        self._callbacks = CallbackTimes(self._epoch_ends)
        self._epoch_began = StepTimes()
        self._epoch_began_s = self._steps_over_s = 0.0
        self._named_from = StepTimes()
        self._next_look_s = 0.0
        self._advised: set[str] = set()

    @contextlib.contextmanager
    def running(self, model: Any) -> Iterator[None]:
        """Within this, Keras's calls of callbacks are looked at; the model is left as it was."""
        LATEST.epochs = ()
        try:
            with callback_times.listening(self._callbacks):
                yield
        finally:
            timed = model.train_function
            if isinstance(timed, _Timed):
                model.train_function = timed.function
            self._told.before += self.clock.read()

    def epoch_begins(self, model: Any) -> None:
        """The steps of an epoch are about to begin."""
        if model.train_function is not None and not isinstance(model.train_function, _Timed):
            model.train_function = _Timed(model.train_function, self.clock)
        self._epoch_began = self.clock.read()
        self._epoch_began_s = time.perf_counter()

    def steps_are_over(self) -> None:
        """What follows are the validation and callbacks. To be called at least once an epoch."""
        if self._steps_over_s < self._epoch_began_s:
            self._steps_over_s = time.perf_counter()

    def made(self, steps: int) -> None:
        """A step is finished, or several that were made at once."""
        self.clock.made(steps)
        if self._callbacks.names_batches:
            self._name()
        elif self.clock.now_s >= self._next_look_s:
            self._look()

    def _epoch_ends(self, epoch: int) -> None:
        """After the callbacks' hooks for the end of an epoch."""
        spent_s = self._callbacks.epoch_s
        spent_s.pop("", None)
        steps = self.clock.read() - self._epoch_began
        times = EpochTimes(
            fit=self._fit,
            epoch=epoch,
            attempt=self._identity.attempt,
            epoch_s=time.perf_counter() - self._epoch_began_s,
            validation_s=self._callbacks.epoch_end_began_s - self._steps_over_s,
            epoch_callbacks_s=sum(spent_s.values()),
            **dataclasses.asdict(steps),
        )
        LATEST.epochs = (*LATEST.epochs, times)
        self._told.write(times)
        self._show(times)
        self._advise_on_epochs(spent_s, times)
        spent_s.clear()
        self._look()

    def _look(self) -> None:
        self._next_look_s = self.clock.now_s + LOOK_EVERY_S
        times = self.clock.read()
        self._told.tell(times)
        if self._identity.rank == 0:
            self._advise("input", input_advice(times))
            advised = "callbacks" in self._advised
            if not advised and callback_advice("?", times.callbacks_s, times.steps, times.total_s):
                self._callbacks.batch_s.clear()
                self._callbacks.names_batches = True
                self._named_from = times

    def _name(self) -> None:
        """The callbacks take long: after a few steps in which each was looked at, say which."""
        times = self.clock.read() - self._named_from
        spent_s = self._callbacks.batch_s
        if times.steps < _NAMING_STEPS:
            return
        self._callbacks.names_batches = False
        spent_s.pop("", None)
        if spent_s:
            name = max(spent_s, key=lambda name: spent_s[name])
            text = callback_advice(name, spent_s[name], times.steps, times.total_s)
            self._advise("callbacks", text)

    def _advise_on_epochs(self, spent_s: dict[str, float], times: EpochTimes) -> None:
        if self._identity.rank == 0 and spent_s:
            name = max(spent_s, key=lambda name: spent_s[name])
            advice = epoch_callback_advice(name, spent_s[name], times.epoch_s)
            self._advise("epoch callbacks", advice)

    def _advise(self, about: str, text: str) -> None:
        """Says it, once in a fit."""
        if text and about not in self._advised:
            self._advised.add(about)
            logger.warning("%s", text)

    def _show(self, times: EpochTimes) -> None:
        """Scalars for each TensorBoard callback, among its own."""
        for board in self._boards:
            writer = touch.train_writer(board)
            with writer.as_default(), tf.summary.record_if(True):
                for name, value in times.means().items():
                    tf.summary.scalar(f"step_time_ms/{name}", 1e3 * value, step=times.epoch)
            writer.flush()


class Told:
    """What was told of all fits of this process.

    Attributes:
        before: Of the fits before the one that runs.
    """

    def __init__(self, identity: Identity, note: TimesNote | None) -> None:
        """Args: who this worker is, and its part of the progress page."""
        self.before = StepTimes()
        self._note = note
        self._path = worker_file(Path(identity.run_dir), identity.name)

    def tell(self, times: StepTimes) -> None:
        """The agent, of the fit that runs."""
        if self._note is not None:
            self._note.write(self.before + times)

    def write(self, times: EpochTimes) -> None:
        """A line for an epoch; a disk that is full doesn't stop a training."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(times.to_json()) + "\n")


@functools.cache
def told(identity: Identity) -> Told:
    """That of this process."""
    return Told(identity, TimesNote.from_env(os.environ))


class _Timed:
    """Keras's training function with the clock looked at before and after."""

    def __init__(self, function: Callable[[Any], Any], clock: StepClock) -> None:
        self.function = function
        self._call = clock.timed(function)

    def __call__(self, iterator: Any) -> Any:
        with input_times.OF_PROCESS.listening():
            return self._call(iterator)
