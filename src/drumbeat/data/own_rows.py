"""One worker's rows of each global batch, picked out of the examples before they are batched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from drumbeat.data.distributed import rows_of
from drumbeat.data.position import GoingOnDataset, starting_at

# From the rows of a global batch, an int or an int64 scalar tensor, to a half-open range of them.
RangeOf = Callable[[Any], tuple[Any, Any]]
_not_converted: Any = tf.autograph.experimental.do_not_convert
_zip: Any = tf.data.Dataset.zip
_range: Any = tf.data.Dataset.range


@dataclass(frozen=True)
class Cutting:
    """How a stream of examples is cut into batches, and which rows of each are a worker's.

    Attributes:
        batch_size: Examples in a global batch; the last may have fewer.
        drop_remainder: Whether such a last batch is left out.
        range_of: Which rows of a batch are the worker's.
        width: How many examples are taken of each whole batch: as many as are the worker's of a
            batch of any size, and at least one, so that batches of so many are the worker's.
        trims: Whether there are batches of which more are taken than the worker's.
    """

    batch_size: int
    drop_remainder: bool
    range_of: RangeOf
    width: int
    trims: bool

    @classmethod
    def of(cls, batch_size: int, drop_remainder: bool, range_of: RangeOf) -> Cutting:
        """For global batches of `batch_size`, of which `range_of` says the worker's rows."""
        totals = [batch_size] if drop_remainder else range(1, batch_size + 1)
        rows = [stop - start for start, stop in map(range_of, totals)]
        width = max(1, *rows)
        return cls(batch_size, drop_remainder, range_of, width, rows[-1] < width or 0 in rows)

    def taken(self, total: Any) -> tuple[Any, Any]:
        """The examples that are taken of a batch of `total`: the first, and how many.

        The worker's are among them.
        """
        start, stop = self.range_of(total)
        at_least_one = tf.maximum(stop - start, 1)
        whole = tf.equal(total, self.batch_size)
        count = tf.where(whole, tf.constant(self.width, tf.int64), at_least_one)
        return tf.minimum(start, total - count), count


class OwnRows(GoingOnDataset):
    """Of each global batch of a dataset of examples, those that a worker takes.

    No example is copied, and none has to have the shape of another. Elements are pairs:
    an example, and an int64 scalar that is the total of the batch for the first of each.

    Args:
        source: A dataset of examples, of plain tensors. Each worker runs all of it.
        cutting: See `Cutting`.
    """

    def __init__(self, source: tf.data.Dataset, cutting: Cutting) -> None:
        super().__init__(_own_rows(source, cutting), source)
        self.cutting = cutting

    def starting_at(self, elements: int) -> tf.data.Dataset | None:
        """Without what it gives of the first batches; None where it isn't of whole batches."""
        batches, rest = divmod(elements, self.cutting.width)
        if rest:
            return None
        return OwnRows(starting_at(self.source, batches * self.cutting.batch_size), self.cutting)


def _own_rows(source: Any, cutting: Cutting) -> tf.data.Dataset:
    @_not_converted
    def taken(*window: Any) -> tf.data.Dataset:
        columns = tf.nest.flatten(window)
        total = columns[0].cardinality()
        first, count = cutting.taken(total)
        examples = _zip(tf.nest.pack_sequence_as(source.element_spec, columns))
        return _zip((examples.skip(first).take(count), _range(total, total + count)))

    return source.window(cutting.batch_size, drop_remainder=cutting.drop_remainder).flat_map(taken)


def finish(cutting: Cutting) -> Callable[[Any, Any], tuple[Any, Any]]:
    """From a batch of what `OwnRows` gives to the worker's rows and where they stand.

    Returns:
        A function of a batch and the numbers beside its examples, to the batch of the worker's
        rows and int64 `[start, rows, total]`.
    """

    @_not_converted
    def finished(batch: Any, numbers: Any) -> tuple[Any, Any]:
        total = numbers[0]
        start, stop = cutting.range_of(total)
        if cutting.trims:
            first, _ = cutting.taken(total)
            batch = tf.nest.map_structure(
                lambda leaf: rows_of(leaf, start - first, stop - first), batch
            )
        return batch, tf.stack([start, stop - start, total])

    return finished


def is_plain(element_spec: Any) -> bool:
    """Whether elements are plain tensors, and at least one."""
    leaves = tf.nest.flatten(element_spec)
    return bool(leaves) and all(type(leaf) is tf.TensorSpec for leaf in leaves)
