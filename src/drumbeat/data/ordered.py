"""Datasets of files in one global order, of which each worker reads its own rows only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat.data.distributed import DistributedDataset, DistributedIterator, PlacedBatches
from drumbeat.data.epochs import Epochs
from drumbeat.data.failures import data_error
from drumbeat.data.order import Order
from drumbeat.data.placed import RangeOf, Reading, placed_batches
from drumbeat.data.records import RecordFiles
from drumbeat.data.sources import Paths, PathSource, RecordSource, Source, resolve
from drumbeat.errors import DataError
from drumbeat.tf_internals import OwnedIterator, WrappedDataset

Map = Callable[..., Any]
# From whole numbers of every worker to all of them, as many of each: [workers, n], by rank.
Gather = Callable[[Sequence[int]], np.ndarray]


class OrderedIterator(OwnedIterator):
    """Iterator of an `OrderedDataset`; raises `DataError` for what is wrong with the data."""

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except tf.errors.OpError as error:
            own = data_error(error)
            if own is None:
                raise
            raise own from error


class OrderedDataset(WrappedDataset):
    """A `tf.data.Dataset` of global batches that can be read row by row.

    What `drumbeat.data.files` and `drumbeat.data.tfrecords` return. Alone, in plain Keras
    or under another strategy it is a dataset like any other. Given to `fit`, `evaluate`,
    `predict` or `experimental_distribute_dataset` under drumbeat's strategy, each worker
    reads its own rows of each global batch and no others.

    Guarantees: the k-th global batch of an epoch holds the same examples, in the same
    order, for any number of workers. With `shuffle`, each pass over the data has an order
    of its own; a second `fit` goes on where the first ended. An iterator that gives only
    its first batch, to look at it, doesn't count as a pass.

    What `map`, `take` and the other methods of `tf.data.Dataset` return is a dataset of
    global batches that each worker reads in full; `prefetch`, `repeat` and `skip` keep what
    this class promises.
    """

    def __init__(self, dataset: tf.data.Dataset, reading: Reading, fingerprint: int) -> None:
        """Stores; use `drumbeat.data.files` and `drumbeat.data.tfrecords`."""
        super().__init__(dataset)
        self._reading = reading
        self._fingerprint = fingerprint

    def __iter__(self) -> Any:
        return OrderedIterator(self)

    @property
    def epoch(self) -> int:
        """The number of the pass that begins next, from 0; it decides the shuffled order.

        Set it to go on with a training that was interrupted, on all workers:
        `data.epoch = initial_epoch`. Under drumbeat's strategy, `fit` does.
        """
        return self._reading.epochs.value

    @epoch.setter
    def epoch(self, number: int) -> None:
        if number < 0:
            raise DataError(f"epoch is {number}; expected the number of a pass, from 0.")
        self._reading.epochs.value = number

    @property
    def batch_size(self) -> int:
        """Rows of a global batch, but for the last one."""
        return self._reading.order.batch_size

    @property
    def least_rows(self) -> int:
        """The rows of the smallest batch, or fewer."""
        order = self._reading.order
        return order.num_examples % order.batch_size or order.batch_size

    def prefetch(self, buffer_size: Any, name: str | None = None) -> Any:
        """This dataset: batches are read ahead anyway."""
        del buffer_size, name
        return self

    def repeat(self, count: Any = None, name: str | None = None) -> Any:
        """The passes of `count` epochs one after another, each in its own order; None: endless."""
        del name
        times, already = -1 if count is None else int(count), self._reading.repeats
        if self._reading.first:
            # Each repetition leaves out its first batches.
            return super().repeat(times)
        endless = times < 0 or already < 0
        return self._changed(repeats=-1 if endless and times else times * already)

    def skip(self, count: Any, name: str | None = None) -> Any:
        """This dataset without its first `count` batches, which are not read; -1 leaves out all.

        To go on in the middle of an epoch in a loop of one's own:

            data.epoch = epoch
            for batch in data.skip(steps_done):
                ...

        What is left of the pass counts in `epoch` like a whole one.
        """
        del name
        left = int(self.cardinality())
        if int(count) < 0:
            return self._changed(repeats=0, first=0)
        more = int(count) if left < 0 else min(int(count), left)
        return self._changed(first=self._reading.first + more)

    def _changed(self, **reading: int) -> OrderedDataset:
        return _dataset(replace(self._reading, **reading), self._fingerprint)

    def agree(self, gather: Gather) -> None:
        """Make sure that all workers read the same data, and go on with the chief's epoch.

        A worker that went through the data alone would be ahead.

        Args:
            gather: See `Gather`.

        Raises:
            DataError: The workers don't see the same files.
        """
        everyones = gather([*self._facts(), self.epoch])
        _require_same(everyones[:, :-1].tolist())
        self.epoch = int(everyones[0, -1])

    def local_batches(self, range_of: RangeOf) -> tf.data.Dataset:
        """One worker's pipeline, for a `PlacedBatches` feed.

        Args:
            range_of: From the rows of a global batch to the first that is this worker's and
                the one after its last.

        Returns:
            A dataset of pairs: the local batch, and int64 `[start, rows, total]`.
        """
        return placed_batches(self._reading, range_of, spans=True)

    def _facts(self) -> tuple[int, ...]:
        order = self._reading.order
        return (order.num_examples, order.batch_size, order.seed or 0, self._fingerprint)


class DistributedOrderedDataset(DistributedDataset):
    """A worker's rows of an `OrderedDataset`.

    All workers make its iterators at the same time, as they begin by agreeing on the epoch.

    Attributes:
        whole: The dataset of global batches.
    """

    def __init__(
        self, dataset: OrderedDataset, range_of: RangeOf, feed: PlacedBatches, gather: Gather
    ) -> None:
        """Args: the dataset, what of it is this worker's, the strategy's feed, and see `Gather`."""
        super().__init__(dataset.local_batches(range_of), feed)
        self.whole = dataset
        self._range_of = range_of
        self._gather = gather
        dataset.agree(gather)

    def __iter__(self) -> Any:
        if tf.executing_eagerly():
            self.whole.agree(self._gather)
        return super().__iter__()

    def iterator_at(self, batches: int) -> Iterator[Any]:
        """See `DistributedDataset.iterator_at`; takes no time. All workers call it."""
        self.whole.agree(self._gather)
        rest = self.whole.skip(batches).local_batches(self._range_of)
        return DistributedIterator(rest, feed=self._feed)


def files(
    paths: Paths,
    *,
    batch_size: int,
    map: Map | None = None,  # noqa: A002  (the word of tf.data)
    shuffle: int | None = None,
    drop_remainder: bool = False,
) -> OrderedDataset:
    """A dataset of global batches, one example a file, such as images.

    Each worker opens the files of its own rows only. No shuffle buffer: the order of an
    epoch is computed.

    Args:
        paths: A path or pattern, or several: `"images/*/*.jpg"`. Patterns are expanded in
            the order of names; lists are taken as they stand. gs://, s3:// and other
            file systems of TensorFlow and fsspec as well.
        batch_size: Rows of a global batch, over all workers.
        map: From a path, a string scalar, to an example: a tensor or a structure of
            them, such as `(image, label)`, with one shape for all examples. It is
            traced as in `tf.data.Dataset.map` and runs for several examples at once.
            With two parameters it gets `(path, seed)`: an int64 vector of 2 for
            `tf.random.stateless_*` and `tf.image.stateless_*`, another for each example
            and epoch and the same for any number of workers. None: the path itself.
        shuffle: A seed: each epoch has another order, which depends on the seed, the epoch
            and the number of examples alone. None: the order of `paths`, always.
        drop_remainder: Leave out a last batch of fewer rows.

    Raises:
        DataError: No such files, a folder instead of files, or an argument that can't be
            used.
    """
    found = resolve(paths, "drumbeat.data.files")
    return _first(PathSource(found), map, _order(len(found), batch_size, drop_remainder, shuffle))


def tfrecords(
    paths: Paths,
    *,
    batch_size: int,
    map: Map | None = None,  # noqa: A002  (the word of tf.data)
    shuffle: int | None = None,
    drop_remainder: bool = False,
) -> OrderedDataset:
    """A dataset of global batches of the records of TFRecord files.

    Walks through the record lengths of all files first, which takes about 2 µs a record
    in the system's cache, and 8 bytes of memory each; then every worker reads the records
    of its own rows only. Shuffling is over all records of all files.

    The checksums of the lengths are verified, those of the data are not. Compressed files
    are refused.

    Args:
        paths: As for `files`.
        batch_size: Rows of a global batch, over all workers.
        map: From a record, a string scalar, to an example; all else as for `files`.
            None: the record's bytes.
        shuffle: As for `files`.
        drop_remainder: Leave out a last batch of fewer rows.

    Raises:
        DataError: No such files, one that is compressed, damaged or cut short, no records at
            all, or an argument that can't be used.
    """
    found = resolve(paths, "drumbeat.data.tfrecords")
    records = RecordFiles.of(found)
    if not len(records):
        raise DataError(
            f"there are no records in {', '.join(found[:3])}{' ...' if len(found) > 3 else ''} "
            f"({len(found)} files). Expected at least one."
        )
    order = _order(len(records), batch_size, drop_remainder, shuffle)
    return _first(RecordSource(records), map, order)


def _is_whole(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _order(examples: int, batch_size: int, drop_remainder: bool, shuffle: int | None) -> Order:
    if not _is_whole(batch_size) or batch_size < 1:
        raise DataError(f"batch_size is {batch_size!r}; expected a whole number above 0.")
    if not (shuffle is None or _is_whole(shuffle)):
        raise DataError(
            f"shuffle is {shuffle!r}; expected None, or a whole number as the seed of the order, "
            "such as shuffle=1."
        )
    order = Order(
        num_examples=examples,
        batch_size=int(batch_size),
        drop_remainder=drop_remainder,
        seed=None if shuffle is None else int(shuffle),
    )
    if not order.num_batches:
        raise DataError(
            f"{examples} examples are fewer than one batch of {batch_size}, and "
            "drop_remainder=True leaves out what doesn't fill one. Expected a smaller "
            "batch_size, or drop_remainder=False."
        )
    return order


def _first(source: Source, map_: Map | None, order: Order) -> OrderedDataset:
    reading = Reading(source, _load(map_), order, Epochs(0))
    return _dataset(reading, source.fingerprint())


def _dataset(reading: Reading, fingerprint: int) -> OrderedDataset:
    whole = placed_batches(reading, lambda total: (0, total), spans=False)
    return OrderedDataset(whole, reading, fingerprint)


def _load(map_: Map | None) -> Callable[[Any, Any], Any]:
    """`map_` as a function of an example and its seed."""
    if map_ is None:
        return lambda example, seed: example
    if not callable(map_):
        raise DataError(
            f"map is {map_!r}; expected a function from one example to what the model gets."
        )
    # A tf.function also where the pipeline around it is not converted by AutoGraph.
    function: Any = tf.function(map_)
    if _takes_seed(map_):
        return function
    return lambda example, seed: function(example)


def _takes_seed(function: Map) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is p.empty]
    if len(required) > 2:
        raise DataError(
            f"map takes {len(required)} arguments, {', '.join(p.name for p in required)}; "
            "expected (example) or (example, seed)."
        )
    return len(required) == 2


def _require_same(facts: list[list[int]]) -> None:
    """Each worker's examples, batch size, seed and fingerprint."""
    for rank, (theirs, chiefs) in enumerate(zip(facts, facts[:1] * len(facts), strict=True)):
        if theirs == chiefs:
            continue
        names = ("examples", "as batch_size", "as seed of shuffle")
        differing = [
            f"{t} {name} there, {c} on worker 0"
            for t, c, name in zip(theirs, chiefs, names, strict=False)
            if t != c
        ]
        what = "; ".join(differing) or "as many examples, but other files"
        raise DataError(
            f"Workers 0 and {rank} don't read the same data: {what}. Expected the same files, in "
            "the same order, on every worker: put them where all can read them, or copy all of "
            "them to each machine."
        )
