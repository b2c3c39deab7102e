"""A dataset as another process left it: after so many iterators, and within one of them.

What an iterator yields depends on those made before it from the same dataset: `shuffle`
draws a new order each time it begins, `cache` is filled by the first whole pass. In a
new process the iterators before are made up for, without computing what they gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from drumbeat.data.distributed import DistributedDataset
from drumbeat.data.ordered import OrderedDataset
from drumbeat.data.position import GoingOnDataset, starting_at
from drumbeat.tf_internals import dataset_inputs, dataset_kind

AnyDataset = tf.data.Dataset | DistributedDataset
# Kinds that make iterators over their inputs as they go, not when they begin.
_LATE = ("Cache", "Concatenate", "Repeat", "Shuffle", "ShuffleAndRepeat")
# Kinds that have read their input to its end when they come to theirs.
_TO_THE_END = frozenset(
    {
        *("Batch", "ParallelBatch", "PaddedBatch", "Map", "ParallelMap", "Filter", "FlatMap"),
        *("AssertCardinality", "Options", "Prefetch", "Repeat", "Shuffle"),
    }
)
_DRAWING = ("Shuffle", "ShuffleAndRepeat", "Random")


def iterator_at(dataset: AnyDataset, batches: int) -> Iterator[Any]:
    """An iterator over `dataset` that begins behind the first `batches` batches of a pass.

    The same batches follow as from `iter(dataset)`, and the iterator has the same type
    specification. What is computed for those left out: see
    `drumbeat.data.position.starting_at`; nothing in datasets of `drumbeat.data`, and only
    row numbers in those that Keras makes of arrays.

    Not exact, as it depends on more than the pipeline:
    - Python code in the pipeline (generators, `PyDataset`, `tf.py_function`) runs again for the
      batches left out. It gives the same if it finds what it found when the pass
      began: `random`, `numpy.random` and its own objects are to be put back first. With
      several threads or processes of a `PyDataset`, draws in `__getitem__` are not in any order.
    - Variables that a `map` changes, such as those of `tf.random.Generator` or of random Keras
      layers, go on from what they are, and `map` runs ahead of the training.
    - A random `map` with several parallel calls, and `deterministic=False`, differ from run to
      run anyway.
    """
    if batches and _length(dataset) == batches:
        # Nobody may ask it for more, and a pass counts in `drumbeat.data` by being read.
        iterator = iterator_at(dataset, batches - 1)
        next(iterator)
        return iterator
    if isinstance(dataset, DistributedDataset):
        return dataset.iterator_at(batches)
    return iter(starting_at(dataset, batches))


def _length(dataset: AnyDataset) -> int:
    if isinstance(dataset, DistributedDataset):
        return int(dataset.cardinality)
    return int(dataset.cardinality())


def pass_over(dataset: AnyDataset, taken: Sequence[int]) -> None:
    """Leave `dataset` as if iterators had been made from it that gave so many batches each.

    Usually it is enough to make them. Below `repeat`, `cache` and the second part of
    `concatenate`, and in datasets of `drumbeat.data`, it matters how far they went: then it is
    gone through again, without computing what can be left out. Not exact: tf.data runs some
    steps ahead of an iterator, so how far one went that was broken off isn't known.

    Args:
        dataset: Just made: no iterator of it has been used.
        taken: For each iterator, from the first on, how many batches it gave.
    """
    for _ in passing_over(dataset, taken):
        pass


def passing_over(dataset: AnyDataset, taken: Sequence[int]) -> Iterator[None]:
    """What `pass_over` does, one iterator at a time: for datasets that share a shuffle."""
    pipeline = dataset.pipeline if isinstance(dataset, DistributedDataset) else dataset
    drawing = list(_drawing(pipeline))
    for count in taken:
        if not any(late for _, late in drawing):
            for source, _ in drawing:
                iter(source)
        elif not count:
            iter(pipeline)
        elif _go_through(pipeline, count, to_end=count == max(taken)):
            drawing = list(_drawing(pipeline, is_over=True))
        yield


def have_a_source_in_common(one: AnyDataset, other: AnyDataset) -> bool:
    """Whether a step of the pipeline `one` is one of the pipeline `other`, too."""
    return not _steps(one).keys().isdisjoint(_steps(other))


def _steps(dataset: AnyDataset) -> dict[int, Any]:
    """All steps of a pipeline, by their identity."""
    found: dict[int, Any] = {}
    to_visit: list[Any] = [dataset]
    while to_visit:
        step = to_visit.pop()
        pipeline = step.pipeline if isinstance(step, DistributedDataset) else step
        if id(pipeline) not in found:
            found[id(pipeline)] = pipeline
            to_visit += dataset_inputs(pipeline)
    return found


def _drawing(
    dataset: Any, *, is_over: bool = False, late: bool = False
) -> Iterator[tuple[tf.data.Dataset, bool]]:
    """What of a pipeline an iterator changes for the next one, and whether it does so late.

    If it is late, not by being made but as it goes.

    Args:
        dataset: A pipeline.
        is_over: Whether one iterator has come to its end: caches that have been filled don't
            read any more.
        late: Whether what reads from `dataset` makes its iterator as it goes.
    """
    kind = dataset_kind(dataset)
    if isinstance(dataset, OrderedDataset):
        yield dataset, True
        return
    if kind in _DRAWING:
        yield dataset.with_options(_bare()), late
    if kind == "Cache" and is_over:
        return
    is_over = is_over and (kind in _TO_THE_END or isinstance(dataset, GoingOnDataset))
    for source in dataset_inputs(dataset):
        yield from _drawing(source, is_over=is_over, late=late or kind in _LATE)


def _bare() -> tf.data.Options:
    """Iterators that are only made are made 20 times as fast."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return options


def _go_through(dataset: Any, count: int, *, to_end: bool) -> bool:
    """Take `count` batches; returns whether the end was seen.

    Args:
        dataset: A pipeline.
        count: At least 1.
        to_end: Look for the end behind them, if it isn't known how many there are.
    """
    # Only the last of them is looked at.
    iterator = iter(starting_at(dataset, count - 1))
    next(iterator, None)
    cardinality = _length(dataset)
    if cardinality == count or (to_end and cardinality == tf.data.UNKNOWN_CARDINALITY):
        return next(iterator, None) is None
    return False
