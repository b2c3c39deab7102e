"""The pipeline of one worker's rows of each global batch, read in their global order."""

from __future__ import annotations

from collections.abc import Callable
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


def placed_batches(
    source: Source,
    load: Callable[[Any, Any], Any],
    order: Order,
    epochs: Epochs,
    repeats: int,
    range_of: RangeOf,
    *,
    spans: bool,
) -> tf.data.Dataset:
    """Batches of the rows that `range_of` names, and where each stands.

    Examples are fetched and loaded in parallel, and two batches ahead.

    Args:
        source: Of the examples.
        load: From what the source fetches for one example, and its seed (int64 [2]), to
            the example.
        order: Of the examples.
        epochs: Which pass an iterator begins with; moved on when it has given its second
            batch, or its only one.
        repeats: How many passes an iterator makes; -1 for no end.
        range_of: See `RangeOf`.
        spans: Whether each batch comes with where it stands.

    Returns:
        A dataset of batches, or of pairs: a batch, and int64 `[start, rows, total]`.
    """

    def passes(_: Any) -> tf.data.Dataset:
        first = epochs.read()
        numbers = tf.data.Dataset.range(repeats if repeats >= 0 else tf.int64.max)
        return numbers.flat_map(lambda n: _epoch(source, load, order, first + n, range_of))

    second = min(1, order.num_batches - 1)

    def count(batch: Any, span: Any, mark: Any) -> Any:
        # Outside of the first two steps, an epoch that isn't later than the last.
        epochs.begun(tf.where(mark[1] >= second, mark[0], -1))
        return (batch, span) if spans else batch

    options = tf.data.Options()
    options.deterministic = True
    # Counts must not run ahead of the batches that are taken.
    options.experimental_optimization.inject_prefetch = False
    batches = tf.data.Dataset.range(1).flat_map(passes).prefetch(_AHEAD).map(count)
    total = order.num_batches * repeats if repeats >= 0 else tf.data.INFINITE_CARDINALITY
    return batches.apply(tf.data.experimental.assert_cardinality(total)).with_options(options)


def _epoch(
    source: Source, load: Callable[[Any, Any], Any], order: Order, epoch: Any, range_of: RangeOf
) -> tf.data.Dataset:
    """One pass: triples of a batch, its span, and `[epoch, step]`."""
    size = order.batch_size
    batches = [
        _steps(source, load, order, epoch, step, count, total, range_of(total))
        for step, count, total in (
            (0, order.full_batches, size),
            (order.full_batches, int(order.last_rows > 0), order.last_rows),
        )
        if count
    ]
    return batches[0] if len(batches) == 1 else batches[0].concatenate(batches[1])


def _steps(
    source: Source,
    load: Callable[[Any, Any], Any],
    order: Order,
    epoch: Any,
    first: int,
    count: int,
    total: int,
    rows: tuple[int, int],
) -> tf.data.Dataset:
    """The steps from `first` on, `count` of them, each of `total` rows over all workers."""
    start, stop = rows
    own = stop - start
    # Without rows there is no example to read, but it says what a batch looks like.
    width, num_rows = max(own, 1), own * count

    def read(chunk: Any) -> tuple[Any, Any]:
        row = tf.range(chunk * _CHUNK, tf.minimum((chunk + 1) * _CHUNK, num_rows))
        positions = (first + row // width) * order.batch_size + start + row % width
        numbers = order.examples_at(positions, epoch)
        return source.fetch(numbers), order.seeds_of(numbers, epoch)

    chunks = tf.data.Dataset.range(-(-num_rows // _CHUNK))
    examples = (
        chunks.map(read, num_parallel_calls=_AUTOTUNE, deterministic=True)
        .unbatch()
        .map(load, num_parallel_calls=_AUTOTUNE, deterministic=True)
    )
    batches = examples.batch(width, drop_remainder=order.drop_remainder)
    if not own:
        spec = batches.element_spec
        batches = tf.data.Dataset.range(count).map(
            lambda _: tf.nest.map_structure(no_rows_of, spec)
        )
    span = tf.constant([start, own, total], tf.int64)
    steps = tf.data.Dataset.range(first, first + count)
    return tf.data.Dataset.zip(batches, steps).map(
        lambda batch, step: (batch, span, tf.stack([epoch, step]))
    )
