"""The fewest rows that any batch of a dataset has, as far as that is sure before it runs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from drumbeat.data.ordered import OrderedDataset
from drumbeat.tf_internals import dataset_inputs, dataset_kind, dataset_number

# What hands on batches as they are, all of them or some.
_SAME_BATCHES = ("Cache", "Options", "Prefetch", "Repeat", "Shuffle", "Skip", "Take")
_BATCH = ("Batch", "ParallelBatch", "PaddedBatch")


def least_rows(dataset: Any) -> int:
    """The rows of the smallest batch, or fewer; 0 where nothing is known.

    Args:
        dataset: Of batches; nothing of it is run.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return 0
    if isinstance(dataset, OrderedDataset):
        return dataset.least_rows
    for spec in tf.nest.flatten(dataset.element_spec):
        shape = getattr(spec, "shape", None)
        if shape is not None and shape.rank:
            if shape[0] is not None:
                return int(shape[0])
            break
    kind = dataset_kind(dataset)
    if kind in _SAME_BATCHES:
        return least_rows(dataset_inputs(dataset)[0])
    if kind in _BATCH:
        return _of_batches(dataset_inputs(dataset)[0], dataset_number(dataset, "batch_size"))
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
