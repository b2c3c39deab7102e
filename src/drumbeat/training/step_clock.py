"""Measures where the time of a fit's steps goes. Costs a few microseconds a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from drumbeat.collectives.times import CollectiveTimes
from drumbeat.state.step_times import StepTimes


class StepClock:
    """Of one fit on one worker.

    A step is cut at four places: Keras's generator of steps hands one out; the training
    function is called, and returns; the generator gets control back. What collectives took
    between two of them counts for itself.

    Args:
        collectives: What they have cost this worker so far; grows as they go on.
        input_s: How long this process has waited for batches so far, seconds.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        collectives: CollectiveTimes,
        input_s: Callable[[], float],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._collectives = collectives
        self._input_s = input_s
        self._clock = clock
        self._is_first = True
        self._is_running = False
        self._was_called = False
        self._now_s = self._waited_s = self._moved_s = 0.0
        self._input_before_s = 0.0
        self._steps = 0
        self._waiting_s = self._moving_s = 0.0
        self._callbacks_s = self._function_s = self._between_s = 0.0

    @property
    def now_s(self) -> float:
        """When it was looked at last."""
        return self._now_s

    def around(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Keras's generator of an epoch's steps, with the clock running."""
        self._is_running = False
        for step in steps:
            self._hand_out()
            yield step
            self._come_back()

    def timed(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The training function, with the clock looked at before and after."""

        def train_function(iterator: Any) -> Any:
            self._callbacks_s += self._lap()
            result = function(iterator)
            self._function_s += self._lap()
            self._was_called = True
            return result

        return train_function

    def made(self, steps: int) -> None:
        """The step that came back last was so many."""
        self._steps += steps
        if self._is_first:
            # It made graphs and filled caches.
            self._is_first = False
            self._steps = 0
            self._waiting_s = self._moving_s = 0.0
            self._callbacks_s = self._function_s = self._between_s = 0.0
            self._input_before_s = self._input_s()
            self._lap(counts=False)

    def read(self) -> StepTimes:
        """Of all steps so far but the first. Costs some 20 microseconds."""
        input_s = 0.0 if self._is_first else self._input_s() - self._input_before_s
        # The clocks in the graph are not monotonic.
        input_s = min(max(input_s, 0.0), self._function_s)
        return StepTimes(
            steps=self._steps,
            input_s=input_s,
            # Where collectives go on beside the computation, they took longer than it waited.
            compute_s=max(self._function_s - input_s, 0.0),
            communication_s=self._moving_s,
            waiting_s=self._waiting_s,
            callbacks_s=max(self._callbacks_s, 0.0),
            other_s=max(self._between_s, 0.0),
        )

    def _hand_out(self) -> None:
        if self._is_running:
            self._between_s += self._lap()
        else:
            self._lap(counts=False)
        self._is_running, self._was_called = True, False

    def _come_back(self) -> None:
        # Without a call, as far as is known, all of it was the step.
        if self._was_called:
            self._callbacks_s += self._lap()
        else:
            self._function_s += self._lap()

    def _lap(self, *, counts: bool = True) -> float:
        """Seconds since the last lap without those in collectives, which are added up."""
        now_s = self._clock()
        waited_s, moved_s = self._collectives.waiting_s, self._collectives.transfer_s
        waiting_s, moving_s = waited_s - self._waited_s, moved_s - self._moved_s
        lap_s = now_s - self._now_s - waiting_s - moving_s
        self._now_s, self._waited_s, self._moved_s = now_s, waited_s, moved_s
        if counts:
            self._waiting_s += waiting_s
            self._moving_s += moving_s
        return lap_s
