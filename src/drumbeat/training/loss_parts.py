"""Which losses are this replica's part of a mean over the global batch.

A `keras.losses` object gives the mean over the rows at hand, which has to count by the replica's
share of all rows once: what compile() was given takes its part itself, and so does one that a
step of its author's own calls. One that is called within another, by a layer for `add_loss` or
as a metric doesn't: what is made of it does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from drumbeat import keras_internals as touch
from drumbeat.training import current


class Place(NamedTuple):
    """Where a loss is called.

    Attributes:
        is_part: What it gives is added to what other replicas have.
        is_compiled: It is one that compile() was given.
    """

    is_part: bool
    is_compiled: bool


COMPILED = Place(is_part=True, is_compiled=True)
OWN_STEP = Place(is_part=True, is_compiled=False)
WITHIN = Place(is_part=False, is_compiled=False)


class _Here(threading.local):
    called = OWN_STEP
    """Where a loss is that is called next."""
    computed = OWN_STEP
    """Where the one is that is computed now."""


_here = _Here()
_MEANS = ("auto", "sum_over_batch_size", "mean", "mean_with_sample_weight")


def integrate() -> None:
    """Let Keras 3's steps and its compiled loss say where losses are called."""
    touch.wrap(touch.COMPILED_LOSS, _compiled_loss)
    touch.wrap(touch.TRAIN_STEP, _step)
    touch.wrap(touch.TEST_STEP, _step)


def is_part() -> bool:
    """Whether the loss that is computed now takes its part of the mean."""
    return _here.computed.is_part


@contextlib.contextmanager
def called(place: Place) -> Iterator[None]:
    """Within this, in this thread, losses are called at `place`."""
    before, _here.called = _here.called, place
    try:
        yield
    finally:
        _here.called = before


@contextlib.contextmanager
def computed(loss: Any) -> Iterator[Place]:
    """Within this, `loss` is computed, and others that are called are within it.

    Yields:
        Where it was called.
    """
    before, _here.computed = _here.computed, _here.called
    # What is no mean takes no part: those within it do, as ever.
    takes = _here.called.is_part and not is_mean(loss)
    try:
        with called(OWN_STEP if takes else WITHIN):
            yield _here.computed
    finally:
        _here.computed = before


def is_mean(loss: Any) -> bool:
    """Whether a loss of either Keras is the mean over the rows, by its reduction."""
    return loss.reduction in _MEANS


def _compiled_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with called(COMPILED):
            return original(self, *args, **kwargs)

    return call


def _step(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, data: Any) -> Any:
        if current.in_replica() is None or not touch.is_keras_own(self.compute_loss):
            return original(self, data)
        with called(WITHIN):
            return original(self, data)

    return step
