"""Input at the source: each worker runs the maps of a pipeline for its own rows only.

A pipeline of global batches is taken apart into where its examples come from, what is computed
for each, how they are batched, and what becomes of the batches. All workers run the first part;
the second begins with a worker's rows of each batch. The batches are those of the pipeline as
it is, put together in the order of the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from drumbeat.data.elementwise import (
    Lifted,
    asserting_like,
    has_maps,
    lift,
    options_like,
    prefetch_like,
)
from drumbeat.data.own_rows import Cutting, OwnRows, RangeOf, finish, is_plain
from drumbeat.tf_internals import dataset_inputs, dataset_kind, dataset_number, dataset_parallelism


class NotAtSource(Exception):
    """A pipeline can't be shared out before its maps.

    The text says why; it is empty where there is no map to share.
    """


def at_source(dataset: Any, rank: int, range_of: RangeOf) -> tf.data.Dataset:
    """What one worker runs of a pipeline of global batches.

    Args:
        dataset: Of global batches.
        rank: The worker.
        range_of: From the rows of a global batch to a half-open range of them, the worker's. It
            always is the same for as many rows.

    Returns:
        A dataset of pairs, as many as there are batches: the worker's rows, also where there are
        none, and int64 `[start, rows, total]`.

    Raises:
        NotAtSource: It wouldn't be exact, or there is nothing to gain.
    """
    if not has_maps(dataset):
        raise NotAtSource("")
    return _shared(dataset, rank, range_of)


def _shared(dataset: Any, rank: int, range_of: RangeOf, limit: int = -1) -> Any:
    """See `at_source`; of no more than `limit` batches anything is used."""
    kind = dataset_kind(dataset)
    if kind in ("Batch", "ParallelBatch"):
        return _batches(dataset, lift(dataset_inputs(dataset)[0], rank), range_of, limit)
    over = _OF_BATCHES.get(kind)
    if over is None:
        raise NotAtSource(_obstacle(kind))
    below = _limit_below(dataset, limit)
    return over(
        dataset, *(_shared(source, rank, range_of, below) for source in dataset_inputs(dataset))
    )


_OF_BATCHES: dict[str, Callable[..., tf.data.Dataset]] = {
    "AssertCardinality": asserting_like,
    "Concatenate": lambda dataset, first, second: first.concatenate(second),
    "Options": lambda dataset, source: options_like(dataset)(source),
    "Prefetch": lambda dataset, source: prefetch_like(dataset)(source),
    "Repeat": lambda dataset, source: source.repeat(dataset_number(dataset, "count")),
    "Skip": lambda dataset, source: source.skip(dataset_number(dataset, "count")),
    "Take": lambda dataset, source: source.take(dataset_number(dataset, "count")),
}


def _limit_below(dataset: Any, limit: int) -> int:
    """How many batches are used of what `dataset` reads, if `limit` of its own are; -1: any."""
    kind = dataset_kind(dataset)
    if kind == "Take":
        counts = (limit, dataset_number(dataset, "count"))
        return min((count for count in counts if count >= 0), default=-1)
    return limit if kind in ("Options", "Prefetch") else -1


def _batches(dataset: Any, lifted: Lifted, range_of: RangeOf, limit: int) -> tf.data.Dataset:
    """A worker's part of `dataset`, of kind Batch or ParallelBatch."""
    if not lifted.has_calls:
        raise NotAtSource(lifted.obstacle)
    if not is_plain(lifted.source.element_spec):
        raise NotAtSource("what the first map() gets are not plain tensors")
    drop_remainder = bool(dataset_number(dataset, "drop_remainder"))
    cutting = Cutting.of(dataset_number(dataset, "batch_size"), drop_remainder, range_of)
    source = lifted.source
    if limit >= 0:
        # Maps that run ahead of what is taken would move on a shuffle that is repeated.
        source = source.take(limit * cutting.batch_size)
    rows: Any = OwnRows(source, cutting)
    for step in lifted.steps:
        rows = step.over(rows)
    given = {"drop_remainder": drop_remainder, **dataset_parallelism(dataset)}
    batches = rows.batch(cutting.width, **given).map(finish(cutting))
    count = int(dataset.take(limit).cardinality())
    if count == tf.data.UNKNOWN_CARDINALITY:
        return batches
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def _obstacle(kind: str) -> str:
    """Why a pipeline with a dataset of this kind behind its batches is not shared out."""
    if kind in ("Map", "ParallelMap"):
        return "map() stands behind batch(), where it may mix rows; put it before"
    if kind in ("Cache", "Filter", "Shuffle"):
        return f"{kind.lower()}() stands behind batch()"
    if kind in ("PaddedBatch", "RaggedBatch"):
        return "padded_batch() and ragged_batch() look at all examples of a batch"
    return f"its batches aren't made by batch() (but by {kind or 'a dataset of another class'})"
