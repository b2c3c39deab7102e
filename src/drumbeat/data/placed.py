"""The pipeline of one worker's rows of each global batch, read in their global order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from drumbeat.data.distributed import no_rows_of
from drumbeat.data.epochs import Epochs
from drumbeat.data.order import Order
from drumbeat.data.sources import Source

# From the rows of a global batch to a half-open range of them.
RangeOf = Callable[[int], tuple[int, int]]

# Examples that are fetched in one call: enough to make the call cheap, few enough that
# several calls share the work of a batch.
_CHUNK = 64
_AHEAD = 2
_AUTOTUNE = tf.data.AUTOTUNE
_not_converted: Any = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Reading:
    """What an iterator reads.

    Attributes:
        source: Of the examples.
        load: From what the source fetches for one example, and its seed (int64 [2]), to
            the example. A tf.function, if AutoGraph is to convert it.
        order: Of the examples.
        epochs: Which pass an iterator begins with; moved on when it has given its second
            batch, or its only one.
        repeats: How many passes an iterator makes; -1 for no end.
        first: How many batches it leaves out at its beginning, which are neither fetched nor
            loaded. At most as many as there are.
    """

    source: Source
    load: Callable[[Any, Any], Any]
    order: Order
    epochs: Epochs
    repeats: int = 1
    first: int = 0


def placed_batches(reading: Reading, range_of: RangeOf, *, spans: bool) -> tf.data.Dataset:
    """Batches of the rows that `range_of` names, and where each stands.

    Examples are fetched and loaded in parallel, and two batches ahead.

    Args:
        reading: See `Reading`.
        range_of: See `RangeOf`.
        spans: Whether each batch comes with where it stands.

    Returns:
        A dataset of batches, or of pairs: a batch, and int64 `[start, rows, total]`.
    """
    order, epochs, repeats = reading.order, reading.epochs, reading.repeats
    steps = [
        _Steps(first, count, total, *range_of(total))
        for first, count, total in (
            (0, order.full_batches, order.batch_size),
            (order.full_batches, int(order.last_rows > 0), order.last_rows),
        )
        if count
    ]

    second = min(1, order.num_batches - 1)

    @_not_converted
    def give(batch: Any, step: Any, epoch: Any) -> Any:
        # Before its second step, an epoch that isn't later than the last.
        epochs.begun(tf.where(step >= second, epoch, -1))
        kinds = tf.constant([[kind.start, kind.rows, kind.total] for kind in steps], tf.int64)
        span = kinds[tf.cast(step >= steps[-1].first, tf.int32) * (len(steps) - 1)]
        return (batch, span) if spans else batch

    options = tf.data.Options()
    options.deterministic = True
    # Counts must not run ahead of the batches that are taken.
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False  # see `distributed.without_autotuning`
    passes = tf.data.Dataset.range(1).flat_map(_not_converted(lambda _: _passes(reading, steps)))
    batches = passes.prefetch(_AHEAD).map(give)
    total = (
        order.num_batches * repeats - reading.first
        if repeats >= 0
        else tf.data.INFINITE_CARDINALITY
    )
    return batches.apply(tf.data.experimental.assert_cardinality(total)).with_options(options)


@dataclass(frozen=True)
class _Steps:
    """Steps of an epoch in which this worker takes the same range of rows.

    Attributes:
        first: Number of the first.
        count: How many.
        total: Rows of each over all workers.
        start: The first row that is this worker's.
        stop: The one after its last.
    """

    first: int
    count: int
    total: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Rows of each that are this worker's."""
        return self.stop - self.start


def _from(step: int, steps: Sequence[_Steps]) -> list[_Steps]:
    """What of `steps` is left from number `step` on."""
    left = [(max(own.first, step), own.first + own.count, own) for own in steps]
    return [replace(own, first=first, count=end - first) for first, end, own in left if first < end]


def _passes(reading: Reading, steps: Sequence[_Steps]) -> tf.data.Dataset:
    """All passes of an iterator: triples of a batch, its step and the epoch."""
    now = reading.epochs.read()

    def whole(number: Any) -> tf.data.Dataset:
        return _epoch(reading, now + number, steps)

    if reading.repeats == 1 and not reading.first:
        return whole(0)
    done, begun = divmod(reading.first, reading.order.num_batches)
    later = tf.data.Dataset.range(
        done + (begun > 0), reading.repeats if reading.repeats >= 0 else tf.int64.max
    ).flat_map(whole)
    if not begun:
        return later
    rest = _epoch(reading, now + done, _from(begun, steps))
    return rest if reading.repeats == 1 else rest.concatenate(later)


def _epoch(reading: Reading, epoch: Any, steps: Sequence[_Steps]) -> tf.data.Dataset:
    """One pass, from the first of `steps` on: triples of a batch, its step and the epoch."""
    order = reading.order
    # A stream of examples that is cut into batches of one length may have a shorter rest.
    as_one = 0 < steps[-1].rows <= steps[0].rows
    streams = [steps] if as_one else [[own] for own in steps]
    batches = [_batches(reading, epoch, stream) for stream in streams]
    whole = batches[0] if len(batches) == 1 else batches[0].concatenate(batches[1])
    numbers = tf.data.Dataset.range(steps[0].first, order.num_batches)
    return tf.data.Dataset.zip(whole, numbers, tf.data.Dataset.from_tensors(epoch).repeat())


def _batches(reading: Reading, epoch: Any, steps: Sequence[_Steps]) -> tf.data.Dataset:
    """This worker's batches of `steps`, all of which but the last have as many rows."""
    source, load, order = reading.source, reading.load, reading.order
    # Without rows there is no example to read, but it says what a batch looks like.
    width = max(steps[0].rows, 1)
    num_rows = sum(own.rows * own.count for own in steps)

    def read(chunk: Any) -> tuple[Any, Any]:
        row = tf.range(chunk * _CHUNK, tf.minimum((chunk + 1) * _CHUNK, num_rows))
        step = steps[0].first + row // width
        start = tf.where(step < steps[-1].first, steps[0].start, steps[-1].start)
        positions = step * order.batch_size + tf.cast(start, tf.int64) + row % width
        numbers = order.examples_at(positions, epoch)
        return source.fetch(numbers), order.seeds_of(numbers, epoch)

    chunks = tf.data.Dataset.range(-(-num_rows // _CHUNK))
    examples = (
        chunks.map(read, num_parallel_calls=_AUTOTUNE, deterministic=True)
        .unbatch()
        .map(load, num_parallel_calls=_AUTOTUNE, deterministic=True)
    )
    batches = examples.batch(width, drop_remainder=order.drop_remainder)
    if num_rows:
        return batches
    spec = batches.element_spec
    return tf.data.Dataset.range(steps[0].count).map(
        lambda _: tf.nest.map_structure(no_rows_of, spec)
    )
