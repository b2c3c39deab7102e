"""Input of one worker: datasets and iterators that know the global batch.

Three ways lead from a user's dataset to a worker's batches:

- *whole*: every worker runs the same pipeline of global batches and takes its
  rows of each when it fetches it. No word passes between workers, and the k-th
  global batch holds the same examples for any number of workers.
- *placed*: a pipeline that reads only this worker's rows and says where in the
  global batch they stand.
- *own*: each worker has a pipeline of its own (a dataset function, files
  shared out). The workers tell each other before each step how many rows they
  have; a worker that has run out goes on with empty batches until all have.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from drumbeat.data.position import starting_at
from drumbeat.data.rows import BatchRows, Span, as_int64, num_rows
from drumbeat.data.shares import cut
from drumbeat.errors import DataError
from drumbeat.tf_internals import IteratorSpec, OwnedIterator

_numbers = itertools.count()
# TensorFlow's stubs know these by half.
_Optional: Any = tf.experimental.Optional
_cond: Any = tf.cond


class Feed:
    """What the iterators of one strategy share, for one of the three ways.

    Attributes:
        rows: Where the span of each batch handed out is recorded.
        number: A type specification may hold only plain values: it names its feed by this.
    """

    numbered: ClassVar[MutableMapping[int, Any]] = weakref.WeakValueDictionary()

    def __init__(self, rows: BatchRows) -> None:
        self.rows = rows
        self.number = next(_numbers)
        self.numbered[self.number] = self

    def local_spec(self, element_spec: Any) -> Any:
        """Type specification of a local batch, for a pipeline of `element_spec`."""
        return tf.nest.map_structure(_any_rows, element_spec)


class WholeBatches(Feed):
    """For pipelines of global batches.

    Args:
        rows: See `Feed`.
        range_of: From the rows of a global batch, an int64 scalar, to the first row
            that is this worker's and the one after its last.
    """

    def __init__(self, rows: BatchRows, range_of: Callable[[Any], tuple[Any, Any]]) -> None:
        super().__init__(rows)
        self._range_of = range_of

    def take(self, batch: Any) -> tuple[Any, Span]:
        """This worker's rows of a global batch, and their span.

        Leaves have the rows as their first axis (dense, ragged and sparse tensors), but
        for scalars, which every worker gets as they are.
        """
        with tf.device("CPU:0"):
            total = as_int64(num_rows(batch))
            start, stop = self._range_of(total)
            local = tf.nest.map_structure(lambda leaf: rows_of(leaf, start, stop), batch)
            return local, Span(start, stop - start, total)


class PlacedBatches(Feed):
    """For pipelines of pairs: a local batch, and int64 `[start, rows, total]`."""

    def local_spec(self, element_spec: Any) -> Any:
        """Type specification of a local batch, for a pipeline of `element_spec`."""
        return super().local_spec(element_spec[0])

    def take(self, pair: Any) -> tuple[Any, Span]:
        """The two parts of an element."""
        return pair[0], Span(*tf.unstack(pair[1], num=3))


class OwnBatches(Feed):
    """For pipelines of local batches that only this worker knows.

    Args:
        rows: See `Feed`.
        agree: From the local rows, an int64 scalar, to the span, inside and outside of
            a graph. All workers call it at once.
    """

    def __init__(self, rows: BatchRows, agree: Callable[[Any], Span]) -> None:
        super().__init__(rows)
        self.agree = agree


AnyFeed = WholeBatches | PlacedBatches | OwnBatches


class DistributedDataset(tf.distribute.DistributedDataset):
    """A worker's view of a dataset; what `experimental_distribute_dataset` returns.

    Iterating it, in a tf.function or outside, yields this worker's local
    batches: plain tensors with the structure of the user's elements and a first axis
    of unknown length. All workers see the same number of batches; a batch may have no
    rows.
    """

    def __init__(self, dataset: tf.data.Dataset, feed: AnyFeed) -> None:
        """Args: a pipeline, and the strategy's feed for its kind.

        Raises:
            DataError: No leaf of an element has a first axis: the dataset isn't batched.
        """
        self._pipeline = without_autotuning(dataset)
        self._feed = feed
        _require_batches(self.element_spec)

    @property
    def element_spec(self) -> Any:
        """Type specification of one local batch."""
        return self._feed.local_spec(self._pipeline.element_spec)

    @property
    def cardinality(self) -> Any:
        """Number of batches, or tf.data's UNKNOWN or INFINITE, as a scalar."""
        if isinstance(self._feed, OwnBatches):
            # Only this worker's part is known; others may have more.
            return tf.constant(tf.data.UNKNOWN_CARDINALITY, tf.int64)
        return self._pipeline.cardinality()

    def __iter__(self) -> Iterator[Any]:
        return DistributedIterator(self._pipeline, feed=self._feed)

    @property
    def is_own(self) -> bool:
        """Whether each worker runs a pipeline of its own, whose data the others don't have."""
        return isinstance(self._feed, OwnBatches)

    @property
    def pipeline(self) -> tf.data.Dataset:
        """What this worker runs, and its batches come from."""
        return self._pipeline

    def iterator_at(self, batches: int) -> Iterator[Any]:
        """An iterator that begins behind the first `batches` batches of a pass.

        It has the type specification of any other, so nothing is traced anew. See
        `drumbeat.data.position.starting_at` for what is computed of those left out. A
        worker whose own data ends before gives empty batches, as it would have.
        """
        return DistributedIterator(starting_at(self._pipeline, batches), feed=self._feed)

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
        feed: AnyFeed,
        components: Any = None,
        element_spec: Any = None,
    ) -> None:
        super().__init__(dataset=dataset, components=components, element_spec=element_spec)
        self._feed = feed

    @property
    def element_spec(self) -> Any:
        """Type specification of one local batch."""
        return self._feed.local_spec(self._element_spec)

    @property
    def _type_spec(self) -> DistributedIteratorSpec:
        return DistributedIteratorSpec(self._element_spec, self._feed)

    def _next_internal(self) -> Any:
        if not isinstance(self._feed, OwnBatches):
            batch, span = self._feed.take(super()._next_internal())
            self._feed.rows.record(span)
            return batch
        batch = self.get_next_as_optional()
        if tf.executing_eagerly():
            if not batch.has_value():
                raise tf.errors.OutOfRangeError(None, None, "End of sequence on all workers")
            return batch.get_value()

        # An optional without a value raises InvalidArgument; loops wait for OutOfRange,
        # which this worker's exhausted iterator raises.
        def end_of_sequence() -> Any:
            super(DistributedIterator, self)._next_internal()
            return tf.constant(0, tf.int64)

        checked = tf.cond(batch.has_value(), lambda: tf.constant(0, tf.int64), end_of_sequence)
        with tf.control_dependencies([checked]):
            return batch.get_value()

    def get_next_as_optional(self) -> Any:
        """The next local batch as a `tf.experimental.Optional`, empty at the end on all workers."""
        # The base class would describe the optional by our public `element_spec`: ask an
        # iterator that has none of its own.
        iterator = OwnedIterator(
            components=(self._iterator_resource,), element_spec=self._element_spec
        )
        element = iterator.get_next_as_optional()
        if isinstance(self._feed, OwnBatches):
            return self._own(element, self._feed)
        take = self._feed.take
        span = tf.cond(
            element.has_value(),
            lambda: tf.stack([*take(element.get_value())[1]]),
            lambda: tf.zeros([3], tf.int64),
        )
        self._feed.rows.record(Span(*tf.unstack(span, num=3)))
        return tf.cond(
            element.has_value(),
            lambda: _Optional.from_value(take(element.get_value())[0]),
            lambda: _Optional.empty(self.element_spec),
        )

    def _own(self, element: Any, feed: OwnBatches) -> Any:
        batch = _cond(element.has_value(), element.get_value, self._no_rows)
        span = feed.agree(as_int64(num_rows(batch)))
        feed.rows.record(span)
        return tf.cond(
            span.total > 0,
            lambda: _Optional.from_value(batch),
            lambda: _Optional.empty(self.element_spec),
        )

    def _no_rows(self) -> Any:
        return tf.nest.map_structure(no_rows_of, self.element_spec)


class DistributedIteratorSpec(IteratorSpec):
    """Type specification of a `DistributedIterator`, for tf.function's cache.

    Two iterators over datasets of the same element type and the same strategy
    have equal specifications, so a new epoch does not trace anew.
    """

    __slots__ = ("_feed",)

    def __init__(self, element_spec: Any, feed: AnyFeed) -> None:
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


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` without the thread that tunes its iterators, unless its options ask for it.

    What is left to AUTOTUNE is as parallel as it is when tuning begins, by the number of
    cores. The thread sleeps twice as long each time, up to a minute, and an iterator that
    ends wakes it before it says why: on a core of their own it mostly goes on to sleep, and
    the epoch's end waits for it (TensorFlow 2.21, `Model::OptimizeLoop`; a third of the time
    of epochs of 0.3 s, and of any shorter than a minute).
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def in_one_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A pipeline of global batches, for workers that each run all of it."""
    options = tf.data.Options()
    # Workers cut the same batches only if every pipeline yields them in one order.
    options.deterministic = True
    return dataset.with_options(options).prefetch(2)


def split_batches(dataset: tf.data.Dataset, world_size: int) -> tf.data.Dataset:
    """Each batch of `dataset` as up to `world_size` batches of a `world_size`-th of the rows.

    For workers that have different data but the user's global batch size.
    """

    def pieces(*element: Any) -> tf.data.Dataset:
        batch = element[0] if len(element) == 1 else element
        total = as_int64(num_rows(batch))

        def piece(rank: Any) -> Any:
            start, stop = cut(rank, world_size, total), cut(rank + 1, world_size, total)
            return tf.nest.map_structure(lambda leaf: rows_of(leaf, start, stop), batch)

        count = tf.minimum(total, tf.constant(world_size, tf.int64))
        return tf.data.Dataset.range(count).map(piece)

    return dataset.flat_map(pieces).prefetch(2)


def joined(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """The rows of `count` consecutive batches of `dataset` as one batch; the last may have fewer.

    Axes of unknown length, but the first, are padded to the longest of the `count`.

    Raises:
        DataError: It has sparse tensors.
    """
    for spec in tf.nest.flatten(dataset.element_spec):
        if isinstance(spec, tf.SparseTensorSpec):
            raise DataError(
                f"A dataset function gives {count} batches for each step, one for each device, "
                f"but its sparse tensors ({spec}) can't be put together. Give a dataset of global "
                "batches to fit() or experimental_distribute_dataset() instead."
            )

    def join(*batches: Any) -> Any:
        whole = batches[0] if len(batches) == 1 else batches
        return tf.nest.map_structure(_joined, whole, dataset.element_spec)

    return dataset.ragged_batch(count).map(join)


def _joined(batches: Any, spec: Any) -> Any:
    """Batches, stacked by `ragged_batch`, end to end."""
    if _is_ragged(spec):
        return batches.values
    if spec.shape.rank == 0:
        return batches[0]
    if not isinstance(batches, tf.RaggedTensor):
        return tf.reshape(batches, tf.concat([[-1], tf.shape(batches)[2:]], 0))
    rows: Any = batches.values
    return rows.to_tensor() if isinstance(rows, tf.RaggedTensor) else rows


def _require_batches(element_spec: Any) -> None:
    if not any(_has_rows(spec) for spec in tf.nest.flatten(element_spec)):
        raise DataError(
            f"Received a dataset whose elements have no batch axis: {element_spec}. "
            "Expected batches: call dataset.batch(global_batch_size) before fit() or "
            "experimental_distribute_dataset()."
        )


def _has_rows(spec: Any) -> bool:
    shape = getattr(spec, "shape", None)
    return shape is not None and shape.rank != 0


def rows_of(leaf: Any, start: Any, stop: Any) -> Any:
    """The rows `[start, stop)` of a tensor or an array; a scalar, or what is neither, as it is."""
    if isinstance(leaf, np.ndarray):
        leaf = tf.convert_to_tensor(leaf)
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


def no_rows_of(spec: Any) -> Any:
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
