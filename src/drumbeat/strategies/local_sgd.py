"""Local SGD: workers make steps of their own, and average their weights every few of them.

Each worker takes steps by the mean gradient of its own rows; nothing crosses processes in
them. After `every` steps, each weight becomes the weighted mean of the workers', by the rows
that each has trained on since: Stich 2019, and Lin et al. 2020, who name the optimizers' state
as each worker's own, as it is here. With an outer optimizer, the way from the weights before
those steps to that mean is taken as a gradient, to which Nesterov's momentum is applied:
Douillard et al. 2023 (DiLoCo).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.cluster.averaging import Averaging
from drumbeat.collectives.communicator import Communicator
from drumbeat.data.rows import Span


class Round:
    """The steps of one optimizer since its weights were alike on all workers.

    Attributes:
        weights: What the optimizer updates.
        starts: What they were before the first of these steps.
        momenta: What the outer optimizer remembers of each; alike on all workers.
        steps: How many there were; int64 scalar variable.
        rows: How many rows this worker had in them; int64.
        total: How many all workers had; int64.
        settings: How often weights are averaged, and how.
    """

    def __init__(self, optimizer: Any, settings: Averaging) -> None:
        self.weights = touch.trained_by(optimizer)
        with tf.init_scope():
            self.starts = [_like(weight, "start") for weight in self.weights]
            has_momentum = settings.momentum > 0
            self.momenta = [_like(w, "momentum") for w in self.weights if has_momentum]
            self.steps, self.rows, self.total = (
                tf.Variable(tf.zeros([], tf.int64), trainable=False, name=f"round_{name}")
                for name in ("steps", "rows", "total")
            )
        self.settings = settings

    @property
    def alike(self) -> list[Any]:
        """Of what it keeps, that which is the same on all workers: all but `rows`."""
        return [*self.starts, *self.momenta, self.steps, self.total]

    @property
    def is_open(self) -> bool:
        """Whether workers have made steps of their own; alike on all of them."""
        return bool(self.steps.numpy() > 0)

    def begin(self) -> None:
        """Notes where the weights start, before the first step."""
        for start, weight in zip(self.starts, self.weights, strict=True):
            start.assign(_value(weight))

    def count(self, span: Span) -> None:
        """One more step, on rows of that span."""
        self.steps.assign_add(1)
        self.rows.assign_add(span.rows)
        self.total.assign_add(span.total)

    def average(self, communicator: Communicator) -> None:
        """Gives all workers the same weights; the next step begins anew."""
        share = tf.cast(self.rows, tf.float64) / tf.cast(self.total, tf.float64)
        ways = [
            (start - _value(weight)) * tf.cast(share, start.dtype)
            for start, weight in zip(self.starts, self.weights, strict=True)
        ]
        means = communicator.all_reduce(ways, name="weights since their last average")
        for number, (start, way) in enumerate(zip(self.starts, means, strict=True)):
            self.weights[number].assign(start - self._outer(number, way))
        for counter in (self.steps, self.rows, self.total):
            counter.assign(tf.zeros([], tf.int64))

    def _outer(self, number: int, way: Any) -> Any:
        """The step of the outer optimizer, of which `way` is the gradient."""
        settings = self.settings
        if self.momenta:
            momentum = self.momenta[number]
            momentum.assign(settings.momentum * momentum + way)
            way = way + settings.momentum * momentum
        return way if settings.rate == 1 else settings.rate * way


def _like(weight: Any, name: str) -> Any:
    zeros = tf.zeros(weight.shape, weight.dtype)
    return tf.Variable(zeros, trainable=False, name=f"{weight.name}_{name}")


def _value(weight: Any) -> Any:
    return tf.convert_to_tensor(weight)


_rounds: weakref.WeakKeyDictionary[Any, Round] = weakref.WeakKeyDictionary()


def round_of(optimizer: Any) -> Round | None:
    """The round that `optimizer` is in; None where it has made no steps of local SGD."""
    return _rounds.get(optimizer)


def is_own(optimizer: Any, variable: Any) -> bool:
    """Whether each worker has its own value in that variable of `optimizer`'s."""
    path = str(getattr(variable, "path", ""))
    return round_of(optimizer) is not None and path.rpartition("/")[2] != "learning_rate"


class LocalSgd:
    """Makes the steps, and averages.

    Args:
        communicator: Of the workers.
        settings: How often, and how.
    """

    def __init__(self, communicator: Communicator, settings: Averaging) -> None:
        self.settings = settings
        self._communicator = communicator

    def prepare(self, optimizer: Any, variables: Sequence[Any] | None = None) -> Round:
        """The round of `optimizer`, made if it isn't there; all workers must call this."""
        found = _rounds.get(optimizer)
        if found is None:
            if not optimizer.built:
                # As its `apply` would do next.
                with keras.name_scope(optimizer.name), tf.init_scope():
                    optimizer.build(variables)
            found = _rounds[optimizer] = Round(optimizer, self.settings)
        return found

    def step(
        self,
        optimizer: Any,
        variables: Sequence[Any] | None,
        gradients: Sequence[Any],
        update: Callable[[list[Any]], Any],
        span: Span,
        absent: Any,
    ) -> None:
        """One step of this worker's own; with the other workers' if it is the last of a round.

        Args:
            optimizer: See `update`.
            variables: That it updates; None for those that it was built with.
            gradients: Of this worker's part of the loss; may be None.
            update: Lets the optimizer apply what it is given for the gradients.
            span: This worker's rows of the global batch.
            absent: Whether it has none, and so makes no step: a bool tensor; None for no.
        """
        round_ = self.prepare(optimizer, variables)
        tf.cond(tf.equal(round_.steps, 0), lambda: _done(round_.begin), _nothing)
        # The loss is this worker's part of the mean over the global batch.
        rows, total = (tf.cast(number, tf.float64) for number in (span.rows, span.total))
        own = [_times(tf.math.divide_no_nan(total, rows), gradient) for gradient in gradients]
        if absent is None:
            update(own)
        else:
            tf.cond(absent, lambda: _done(_count_step, optimizer), lambda: _done(update, own))
        round_.count(span)
        tf.cond(
            round_.steps >= self.settings.every,
            lambda: _done(round_.average, self._communicator),
            _nothing,
        )

    def finish(self, optimizers: Sequence[Any]) -> None:
        """Averages what is not alike on all workers; outside of steps, and on all of them."""
        for optimizer in optimizers:
            found = _rounds.get(optimizer)
            if found is not None and found.is_open:
                found.average(self._communicator)


def _times(factor: Any, gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = _times(factor, gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _count_step(optimizer: Any) -> None:
    """A step that is none, but counts for schedules of the learning rate."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for each in getattr(inner, "_inner_optimizers", [inner]):
        each.iterations.assign_add(1)


def _done(function: Callable[..., Any], *args: Any) -> Any:
    """For a branch: what `function` returns is of no interest."""
    function(*args)
    return tf.constant(True)


def _nothing() -> Any:
    return tf.constant(False)
