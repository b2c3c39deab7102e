"""Keras's loops over workers that each run the next step as soon as they are free.

Keras asks for one step after the other. What it gets is the next step that is finished;
behind it others are under way, as many as keep all workers busy. They stay within the
epoch: at its end, and wherever `drain` has been called, nothing is under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from drumbeat.tf_internals import specs_of_iterators
from drumbeat.training.coordinated.steps import Steps, pack
from drumbeat.training.coordinated.window import Window

AHEAD = 2
"""Functions for each worker that are given out at a time: one that runs, and one that waits.

Measured with two workers and steps of 14 ms: with 1 they take 2 to 7% longer than with 1.5, 2
and 4, which differ by less than the noise. What waits delays a stop and a snapshot.
"""
_SURE = 6
"""So many functions for each worker that found no data in a row: then there is none anywhere.
Any worker may run a function, and which one does can't be chosen."""


class Pass:
    """One pass of Keras's over its data: the steps of an epoch, or of an evaluation.

    Args:
        window: Of the workers.
        workers: How many there are.

    Attributes:
        left: Executions that Keras will still ask for, the present one too; None if it
            doesn't know.
        total: Steps of the whole pass; None if Keras doesn't know.
        late: Updates between reading and updating, summed over all steps.
        steps: That were made and update the model.
        draining: Begin nothing new until all that is under way is finished.
    """

    def __init__(self, window: Window, workers: int) -> None:
        self.left: int | None = None
        self.total: int | None = None
        self.late = 0.0
        self.steps = 0
        self.draining = False
        self._window = window
        self._workers = workers
        self._numbers = 0
        self._done = 0
        self._is_out = False
        self._refused = 0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way."""
        return not len(self._window)

    def around(self, original: Iterator[Any], total: int | None, per_execution: int) -> Any:
        """Keras's generator of the pass, whose every turn says how many are left.

        Args:
            original: Keras's own.
            total: Its steps; None if unknown.
            per_execution: Steps that Keras asks for at once.
        """
        self.total = total
        for begin, end, iterator in original:
            if not self._done:
                self._done = begin  # made before a restart
            self.left = None if total is None else -(-(total - begin) // per_execution)
            yield begin, end, iterator

    def step(self, steps: Steps, iterator: Any, per_execution: int) -> Any:
        """What the next finished execution logs.

        Args:
            steps: What the workers run.
            iterator: Of batches in this process, or of those on the workers.
            per_execution: How many steps at once.

        Raises:
            StopIteration: The data is at its end.
        """
        logs = None
        while True:
            if self.is_quiet:
                self.draining = False
            self._fill(steps, iterator, per_execution)
            if self.is_quiet and logs is not None:
                return logs
            if self.is_quiet:
                raise StopIteration
            given, late, made = self._window.take().value
            if int(made):
                logs = given
                self._refused = 0
                self._count(late, made)
                self._done += int(made)
                if self.left == 1 and self._is_short(iterator):
                    continue  # workers' data ended within their executions
                return logs
            # A worker whose data is at its end: others may still have some.
            self._refused += 1
            if self.is_quiet and self._refused >= _SURE * self._workers:
                self._is_out = True

    def _is_short(self, iterator: Any) -> bool:
        """Whether steps are missing that Keras will not ask for."""
        if self.total is None or not is_of_workers(iterator) or self._is_out:
            return False
        return self._done < self.total

    def finish(self) -> None:
        """Waits for what is under way; what it logs is of no more use."""
        while not self.is_quiet:
            _, late, made = self._window.take().value
            self._count(late, made)

    def _count(self, late: Any, made: Any) -> None:
        if float(late) >= 0:
            self.late += float(late)
            self.steps += int(made)

    def _fill(self, steps: Steps, iterator: Any, per_execution: int) -> None:
        if self.draining or (self._refused and not self.is_quiet):
            return
        limit = AHEAD * self._workers
        if self.left is not None:
            limit = min(limit, self.left)
        if self.total is not None and is_of_workers(iterator):
            limit = min(AHEAD * self._workers, -(-(self.total - self._done) // per_execution))
        while len(self._window) < limit and not self._is_out:
            if is_of_workers(iterator):
                function = steps.on_iterator(*specs_of_iterators(iterator), per_execution)
                arguments: tuple[Any, ...] = (iterator,)
            else:
                batches = _take(iterator, per_execution)
                if not batches:
                    self._is_out = True
                    return
                spec = spec_of(iterator, batches[0])
                function = steps.on_batches(spec, len(batches))
                arguments = pack(batches, spec)
            self._window.put(self._numbers, function, arguments)
            self._numbers += 1


def is_of_workers(iterator: Any) -> bool:
    """Whether `iterator` stands for one on each worker."""
    return isinstance(iterator, tf.distribute.coordinator.PerWorkerValue)


def _take(iterator: Any, count: int) -> list[Any]:
    batches = []
    for _ in range(count):
        try:
            batches.append(without_optionals(next(iterator)))
        except (StopIteration, tf.errors.OutOfRangeError):
            break
    return batches


def without_optionals(batch: Any) -> Any:
    """`batch` with None where Keras has put an Optional for it into a dataset."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )


def spec_of(iterator: Any, batch: Any) -> Any:
    """Type specification of all batches of `iterator`, of which `batch` is one."""
    spec = getattr(iterator, "element_spec", None)
    if spec is None:
        return tf.nest.map_structure(_any_rows, batch)
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.OptionalSpec) else leaf, spec
    )


def _any_rows(leaf: Any) -> Any:
    if leaf is None:
        return None
    leaf = tf.convert_to_tensor(leaf)
    return tf.TensorSpec([None, *leaf.shape[1:]] if leaf.shape.rank else [], leaf.dtype)
