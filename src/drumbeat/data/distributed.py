"""Input of one worker: datasets and iterators that know the global batch.

Two ways lead from a user's dataset to a worker's batches:

- *sliced*: every worker runs the same pipeline of global batches and takes its
  rows of each (`slice_batches`). No word passes between workers, and the k-th
  global batch holds the same examples for any number of workers.
- *agreed*: each worker has a pipeline of its own (a dataset function, files
  shared out). The workers tell each other before each step how many rows they
  have; a worker that has run out goes on with empty batches until all have.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, ClassVar

import tensorflow as tf

from drumbeat.data.rows import BatchRows, as_int64, num_rows
from drumbeat.data.shares import start_of
from drumbeat.errors import DataError
from drumbeat.tf_internals import IteratorSpec, OwnedIterator

_numbers = itertools.count()
# TensorFlow's stubs know these by half.
_Optional: Any = tf.experimental.Optional
_cond: Any = tf.cond


class Feed:
    """What the iterators of one strategy share.

    Args:
        rows: Where each batch handed out is recorded.
        sum_rows: For agreed input: all-reduces an int64 scalar, inside and
            outside of a graph. None for sliced input.
    """

    # A type specification may hold only plain values: it names its feed by number.
    numbered: ClassVar[MutableMapping[int, Feed]] = weakref.WeakValueDictionary()

    def __init__(self, rows: BatchRows, sum_rows: Callable[[Any], Any] | None = None) -> None:
        self.rows = rows
        self.sum_rows = sum_rows
        self.number = next(_numbers)
        self.numbered[self.number] = self


class DistributedDataset(tf.distribute.DistributedDataset):
    """A worker's view of a dataset; what `experimental_distribute_dataset` returns.

    Iterating it, in a tf.function or outside, yields this worker's local
    batches: plain tensors with the structure of the user's elements. All workers
    see the same number of batches; a batch may have no rows.
    """

    def __init__(self, pairs: tf.data.Dataset, feed: Feed) -> None:
        """Args: a dataset made by `slice_batches` or `count_rows`, and the strategy's feed."""
        self._pairs = pairs
        self._feed = feed

    @property
    def element_spec(self) -> Any:
        """Type specification of one local batch."""
        pair: Any = self._pairs.element_spec
        spec = pair[0]
        return spec if self._feed.sum_rows is None else tf.nest.map_structure(_any_rows, spec)

    @property
    def cardinality(self) -> Any:
        """Number of batches, or tf.data's UNKNOWN or INFINITE, as a scalar."""
        if self._feed.sum_rows is not None:
            # Only this worker's part is known; others may have more.
            return tf.constant(tf.data.UNKNOWN_CARDINALITY, tf.int64)
        return self._pairs.cardinality()

    def __iter__(self) -> Iterator[Any]:
        return DistributedIterator(self._pairs, feed=self._feed)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Fold `reduce_func(state, batch)` over all batches; AutoGraph's `for` uses it."""
        iterator = iter(self)
        batch = iterator.get_next_as_optional()

        def body(batch: Any, state: Any) -> tuple[Any, Any]:
            state = reduce_func(state, batch.get_value())
            return iterator.get_next_as_optional(), state

        _, state = tf.while_loop(
            lambda batch, _: batch.has_value(), body, [batch, initial_state], parallel_iterations=1
        )
        return state


class DistributedIterator(OwnedIterator):
    """Iterator of a `DistributedDataset`; a `tf.data.Iterator` that records each batch's rows."""

    def __init__(
        self,
        dataset: tf.data.Dataset | None = None,
        *,
        feed: Feed,
        components: Any = None,
        element_spec: Any = None,
    ) -> None:
        super().__init__(dataset=dataset, components=components, element_spec=element_spec)
        self._feed = feed

    @property
    def element_spec(self) -> Any:
        """Type specification of one local batch."""
        spec = self._element_spec[0]
        return spec if self._feed.sum_rows is None else tf.nest.map_structure(_any_rows, spec)

    @property
    def _type_spec(self) -> DistributedIteratorSpec:
        return DistributedIteratorSpec(self._element_spec, self._feed)

    def _next_internal(self) -> Any:
        if self._feed.sum_rows is None:
            data, rows = super()._next_internal()
            self._feed.rows.record(rows)
            return data
        batch = self.get_next_as_optional()
        if tf.executing_eagerly():
            if not batch.has_value():
                raise tf.errors.OutOfRangeError(None, None, "End of sequence on all workers")
            return batch.get_value()

        # An optional without a value raises InvalidArgument; loops wait for OutOfRange,
        # which this worker's exhausted iterator raises.
        def end_of_sequence() -> Any:
            return super(DistributedIterator, self)._next_internal()[1][0]

        checked = tf.cond(batch.has_value(), lambda: tf.constant(0, tf.int64), end_of_sequence)
        with tf.control_dependencies([checked]):
            return batch.get_value()

    def get_next_as_optional(self) -> Any:
        """The next local batch as a `tf.experimental.Optional`, empty at the end on all workers."""
        spec = self.element_spec
        # The base class would describe the optional by our public `element_spec`, which
        # leaves out the row counts: ask an iterator that has none of its own.
        pairs = OwnedIterator(
            components=(self._iterator_resource,), element_spec=self._element_spec
        )
        pair = pairs.get_next_as_optional()
        if self._feed.sum_rows is None:
            rows = tf.cond(
                pair.has_value(), lambda: pair.get_value()[1], lambda: tf.constant([0, 0], tf.int64)
            )
            self._feed.rows.record(rows)
            return tf.cond(
                pair.has_value(),
                lambda: _Optional.from_value(pair.get_value()[0]),
                lambda: _Optional.empty(spec),
            )
        data, rows = _cond(pair.has_value(), pair.get_value, self._no_rows)
        return tf.cond(
            self._agree(rows) > 0,
            lambda: _Optional.from_value(data),
            lambda: _Optional.empty(spec),
        )

    def _agree(self, rows: Any) -> Any:
        """Rows of all workers' next batches together; records this worker's share."""
        sum_rows: Any = self._feed.sum_rows
        total = sum_rows(rows[0])
        self._feed.rows.record(tf.stack([rows[0], total]))
        return total

    def _no_rows(self) -> tuple[Any, Any]:
        return tf.nest.map_structure(_empty, self.element_spec), tf.constant([0, 0], tf.int64)


class DistributedIteratorSpec(IteratorSpec):
    """Type specification of a `DistributedIterator`, for tf.function's cache.

    Two iterators over datasets of the same element type and the same strategy
    have equal specifications, so a new epoch does not trace anew.
    """

    __slots__ = ("_feed",)

    def __init__(self, element_spec: Any, feed: Feed) -> None:
        super().__init__(element_spec)
        self._feed = feed

    @property
    def value_type(self) -> type:
        """The class this specifies."""
        return DistributedIterator

    def _serialize(self) -> tuple[Any, ...]:
        return (self._element_spec, self._feed.number)

    @classmethod
    def _deserialize(cls, serialization: tuple[Any, ...]) -> DistributedIteratorSpec:
        element_spec, number = serialization
        return cls(element_spec, Feed.numbered[number])

    def _from_components(self, components: Any) -> DistributedIterator:
        return DistributedIterator(
            feed=self._feed, components=components, element_spec=self._element_spec
        )


def slice_batches(dataset: tf.data.Dataset, rank: int, world_size: int) -> tf.data.Dataset:
    """The rows of `rank` of each global batch of `dataset`, with the global row count.

    Args:
        dataset: A dataset of global batches: each leaf has the rows as its first
            axis, but for scalars, which every worker gets as they are. Dense, ragged
            and sparse tensors.
        rank: This worker, from 0.
        world_size: Number of workers.

    Returns:
        A dataset of pairs for `DistributedDataset`: the local batch, and the int64
        tensor `[local rows, global rows]`.

    Raises:
        DataError: No leaf of an element has a first axis: the dataset isn't batched.
    """
    _require_batches(dataset)

    def cut(*element: Any) -> tuple[Any, Any]:
        batch = element[0] if len(element) == 1 else element
        total = num_rows(batch)
        start, stop = start_of(rank, total, world_size), start_of(rank + 1, total, world_size)
        local = tf.nest.map_structure(lambda leaf: _rows_of(leaf, start, stop), batch)
        return local, tf.stack([as_int64(stop - start), as_int64(total)])

    options = tf.data.Options()
    # Workers cut the same batches only if every pipeline yields them in one order.
    options.deterministic = True
    return dataset.with_options(options).map(cut, num_parallel_calls=1).prefetch(2)


def split_batches(dataset: tf.data.Dataset, world_size: int) -> tf.data.Dataset:
    """Each batch of `dataset` as up to `world_size` batches of a `world_size`-th of the rows.

    For workers that have different data but the user's global batch size.
    """

    def pieces(*element: Any) -> tf.data.Dataset:
        batch = element[0] if len(element) == 1 else element
        total = as_int64(num_rows(batch))

        def piece(rank: Any) -> Any:
            start = start_of(rank, total, world_size)
            stop = start_of(rank + 1, total, world_size)
            return tf.nest.map_structure(lambda leaf: _rows_of(leaf, start, stop), batch)

        count = tf.minimum(total, tf.constant(world_size, tf.int64))
        return tf.data.Dataset.range(count).map(piece)

    return dataset.flat_map(pieces).prefetch(2)


def count_rows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Pairs of each batch of a worker's own `dataset` and its row count, twice.

    Raises:
        DataError: The dataset isn't batched.
    """
    _require_batches(dataset)

    def pair(*element: Any) -> tuple[Any, Any]:
        batch = element[0] if len(element) == 1 else element
        local = as_int64(num_rows(batch))
        return batch, tf.stack([local, local])

    return dataset.map(pair, num_parallel_calls=1)


def _require_batches(dataset: tf.data.Dataset) -> None:
    if not any(_has_rows(spec) for spec in tf.nest.flatten(dataset.element_spec)):
        raise DataError(
            f"Received a dataset whose elements have no batch axis: {dataset.element_spec}. "
            "Expected batches: call dataset.batch(global_batch_size) before fit() or "
            "experimental_distribute_dataset()."
        )


def _has_rows(spec: Any) -> bool:
    shape = getattr(spec, "shape", None)
    return shape is not None and shape.rank != 0


def _rows_of(leaf: Any, start: Any, stop: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        start, stop = tf.cast(start, tf.int64), tf.cast(stop, tf.int64)
        rest = leaf.dense_shape[1:]
        return tf.sparse.slice(
            leaf,
            tf.concat([[start], tf.zeros_like(rest)], 0),
            tf.concat([[stop - start], rest], 0),
        )
    if not tf.is_tensor(leaf) or leaf.shape.rank == 0:
        return leaf
    return leaf[start:stop]


def _any_rows(spec: Any) -> Any:
    """`spec` with the first axis of unknown length, so that an empty batch fits it."""
    if _is_ragged(spec):
        return tf.RaggedTensorSpec(
            [None, *spec.shape[1:]], spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    if isinstance(spec, tf.SparseTensorSpec) and spec.shape.rank:
        return tf.SparseTensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


def _empty(spec: Any) -> Any:
    """A value of `spec` with no rows; other unknown axes have length 0."""
    if _is_ragged(spec):
        flat = tf.zeros([0, *_known(spec.shape[spec.ragged_rank + 1 :])], spec.dtype)
        splits = [tf.zeros([1], spec.row_splits_dtype)] * spec.ragged_rank
        ragged: Any = tf.RaggedTensor
        return ragged.from_nested_row_splits(flat, splits)
    if isinstance(spec, tf.SparseTensorSpec):
        shape = [0, *_known(spec.shape[1:])]
        return tf.SparseTensor(
            tf.zeros([0, len(shape)], tf.int64),
            tf.zeros([0], spec.dtype),
            tf.constant(shape, tf.int64),
        )
    return tf.zeros([0, *_known(spec.shape[1:])] if spec.shape.rank else [], spec.dtype)


def _is_ragged(spec: object) -> bool:
    return isinstance(spec, tf.RaggedTensorSpec)


def _known(shape: tf.TensorShape) -> list[int]:
    return [0 if size is None else size for size in shape]
