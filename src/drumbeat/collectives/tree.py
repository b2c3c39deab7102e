"""Sums in one fixed order, wherever the summands live.

Floating-point addition is not associative: a sum over two workers' sums differs in
its last bits from the sum over four. Here every leaf (a virtual shard) has its place
in one binary tree, and each worker adds up the subtrees that lie within its own
leaves; the rest of the tree is the same work on every worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from drumbeat.collectives.buckets import plan
from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.order import Range, fold, subtrees


def tree_sum(
    communicator: Communicator, shards: Sequence[Sequence[Any]], leaves: int, *, name: str = ""
) -> list[Any]:
    """The sum of each tensor over all virtual shards of all workers, in one fixed order.

    Args:
        communicator: Its workers hold equally many leaves each, in rank order.
        shards: For each leaf of this worker, the same list of tensors or
            `tf.IndexedSlices`, alike in dtype and shape on all leaves.
        leaves: How many all workers have together.
        name: Label for error messages.

    Returns:
        The same bytes for any number of workers. Half types are summed in float32 and
        rounded once; IndexedSlices come with the rows of all shards, in order.

    Raises:
        CollectiveError: See `Communicator`.
    """
    results = list(shards[0])
    dense = [i for i, v in enumerate(results) if not isinstance(v, tf.IndexedSlices)]
    sparse = [i for i, v in enumerate(results) if isinstance(v, tf.IndexedSlices)]
    for group in _of_one_dtype([results[i] for i in dense]):
        indices = [dense[i] for i in group]
        flat = [_flatten([shard[i] for i in indices]) for shard in shards]
        total = _flat_sum(communicator, flat, leaves, name)
        for i, value in zip(indices, _unflatten(total, [results[i] for i in indices]), strict=True):
            results[i] = value
    own = [_joined([shard[i] for shard in shards]) for i in sparse]
    for i, value in zip(sparse, communicator.all_reduce(own, name=name), strict=True):
        results[i] = value
    return results


def _of_one_dtype(tensors: list[Any]) -> list[list[int]]:
    buckets = plan([(tensor.dtype.name, 1, 1) for tensor in tensors])
    return [[slot.index for slot in bucket.slots] for bucket in buckets]


def _flat_sum(communicator: Communicator, own: list[Any], leaves: int, name: str) -> Any:
    """The sum of all leaves' vectors."""
    root = (0, leaves)
    first = communicator.rank * len(own)
    values: dict[Range, Any] = {(first + i, first + i + 1): v for i, v in enumerate(own)}
    mine = subtrees((first, first + len(own)), root)
    sums = [fold(node, values.get, tf.add) for node in mine]
    if communicator.size == 1:
        return sums[0]
    everyones = communicator.all_gather(tf.stack(sums), name=name or "tree sum")
    nodes = [
        node
        for rank in range(communicator.size)
        for node in subtrees((rank * len(own), (rank + 1) * len(own)), root)
    ]
    rows = dict(zip(nodes, tf.unstack(everyones, num=len(nodes)), strict=True))
    return fold(root, rows.get, tf.add)


def _flatten(tensors: list[Any]) -> Any:
    wide = [
        tf.cast(t, tf.float32) if t.dtype.size == 2 and t.dtype.is_floating else t for t in tensors
    ]
    return tf.concat([tf.reshape(t, [-1]) for t in wide], 0)


def _unflatten(flat: Any, like: list[Any]) -> list[Any]:
    sizes = [tf.size(t) if t.shape.num_elements() is None else t.shape.num_elements() for t in like]
    pieces = tf.split(flat, sizes, num=len(like))
    return [
        tf.cast(tf.ensure_shape(tf.reshape(piece, tf.shape(t)), t.shape), t.dtype)
        for piece, t in zip(pieces, like, strict=True)
    ]


def _joined(slices: list[Any]) -> Any:
    """The rows of one `tf.IndexedSlices` after the other."""
    return tf.IndexedSlices(
        tf.concat([s.values for s in slices], 0),
        tf.concat([s.indices for s in slices], 0),
        slices[0].dense_shape,
    )
