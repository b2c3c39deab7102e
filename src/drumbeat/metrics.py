"""What drumbeat measures while a model trains. Nothing of it changes Keras's logs or History."""

from __future__ import annotations

from drumbeat.state.step_times import EpochTimes, StepTimes
from drumbeat.training import time_report
from drumbeat.training.coordinated.staleness import LATEST as _STALENESS

__all__ = ["EpochTimes", "StepTimes", "staleness", "step_times"]


def staleness() -> tuple[float, ...]:
    """How late gradients came in each finished epoch of the last `fit` with parameter servers.

    That is how many updates by other workers there were, on average, between a step's reading of
    the variables and its own update of them: 0 with one worker, about N - 1 with N equally fast
    ones. In the chief's process; elsewhere, and before the first epoch has ended, it is empty.

    Returns:
        One number for each epoch, in order.
    """
    return _STALENESS.of_epochs


def step_times() -> tuple[EpochTimes, ...]:
    """Where the time of this worker's steps went, for each finished epoch of the last `fit`.

    Under `drumbeat run`; elsewhere, and before the first epoch has ended, it is empty. In a
    callback's `on_epoch_end` the epoch that ends is not among them yet. For example, the
    part of the time in the last epoch that steps waited for their batches:

        last = drumbeat.metrics.step_times()[-1]
        print(last.input_s / last.total_s)

    Returns:
        One for each epoch, in order. Times are in seconds, for all steps of the epoch
        together; `means()` has those of a step.
    """
    return time_report.LATEST.epochs
