"""What is known of the rows of a dataset's batches before it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from drumbeat.data.ordered import OrderedDataset
from drumbeat.tf_internals import dataset_inputs, dataset_kind, dataset_number

# What hands on batches as they are, all of them or some.
_SAME_BATCHES = ("Cache", "Options", "Prefetch", "Repeat", "Shuffle", "Skip", "Take")
_MAPS = ("Map", "ParallelMap")
_BATCH = ("Batch", "ParallelBatch", "PaddedBatch")


def least_rows(dataset: Any) -> int:
    """The rows of the smallest batch, or fewer; 0 where nothing is known.

    Args:
        dataset: Of batches; nothing of it is run.
    """
    return _rows(dataset, _SAME_BATCHES, lambda own: own.least_rows, _of_batches)


def usual_rows(dataset: Any) -> int:
    """The rows of most batches; 0 where they aren't known."""
    kinds = (*_SAME_BATCHES, *_MAPS)
    return _rows(dataset, kinds, lambda own: own.batch_size, lambda _, batch_size: batch_size)


def _rows(
    dataset: Any,
    handing_on: Sequence[str],
    of_ordered: Callable[[OrderedDataset], int],
    of_batches: Callable[[Any, int], int],
) -> int:
    """See `usual_rows`.

    Args:
        dataset: Of batches.
        handing_on: Kinds of datasets that have the rows of those they read.
        of_ordered: The rows of drumbeat's own.
        of_batches: The rows of a dataset in batches of a size.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return 0
    if isinstance(dataset, OrderedDataset):
        return of_ordered(dataset)
    kind, always = dataset_kind(dataset), _rows_in_type(dataset)
    if always:
        return always
    if kind in handing_on:
        return _rows(dataset_inputs(dataset)[0], handing_on, of_ordered, of_batches)
    if kind in _BATCH:
        return of_batches(dataset_inputs(dataset)[0], dataset_number(dataset, "batch_size"))
    return 0


def _of_batches(rows: Any, batch_size: int) -> int:
    """Of `rows`, a dataset, in batches of `batch_size`."""
    count = int(rows.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        return batch_size
    if count < 1 or _is_only_said(rows):
        return 1  # A batch has at least one row.
    return count % batch_size or batch_size


def _is_only_said(dataset: Any) -> bool:
    """Whether the number of elements is what a user says, which shows only at the end."""
    if dataset_kind(dataset) in ("", "AssertCardinality"):
        return True
    return any(_is_only_said(source) for source in dataset_inputs(dataset))


def _rows_in_type(dataset: Any) -> int:
    """The rows of every batch, where they are a part of the elements' type; else 0."""
    for spec in tf.nest.flatten(dataset.element_spec):
        shape = getattr(spec, "shape", None)
        if shape is not None and shape.rank:
            return int(shape[0] or 0)
    return 0
