"""Going on in the middle of a pass: the same pipeline from its k-th element on.

What has been taken already is left out as near to the source as it can be, so that
it is neither read nor computed again. Nothing is traced anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from drumbeat.tf_internals import (
    WrappedDataset,
    dataset_inputs,
    dataset_kind,
    dataset_number,
    dataset_tensors,
    rebuilt,
    resliced,
    stateful_ops,
    zip_structure,
)

# Operations that count as having state, and yet give what follows the same results whether
# they run for an element or not. What calls other functions is looked into.
HARMLESS = frozenset(
    {
        *("Assert", "Print", "PrintV2"),
        *("ReadVariableOp", "VarIsInitializedOp", "ResourceGather", "ResourceGatherNd"),
        *("LookupTableFind", "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2"),
        *("StatefulPartitionedCall", "If", "While", "Case"),
    }
)
# Rows of tensors are slices of the same memory where each is a multiple of this long.
_ALIGNED_BYTES = 64
_FEW_BYTES = 2**24


class GoingOnDataset(WrappedDataset):
    """A dataset of our own that knows how to begin later.

    Args:
        dataset: What yields the elements.
        source: What that reads from. Apart from where it stands in it, there is no state.
    """

    def __init__(self, dataset: tf.data.Dataset, source: tf.data.Dataset) -> None:
        self.source = source
        super().__init__(dataset)

    def _inputs(self) -> list[Any]:
        return [self.source]

    def starting_at(self, elements: int) -> tf.data.Dataset | None:
        """Without its first `elements`, at least 1; None where they have to be run through."""
        raise NotImplementedError


def starting_at(dataset: tf.data.Dataset, batches: int) -> tf.data.Dataset:
    """`dataset` without its first elements, which are not computed where that makes no difference.

    The elements are exactly those of `dataset.skip(batches)`, with the same `element_spec`.

    - Through `prefetch`, `with_options`, `batch`, `padded_batch`, `zip`, `enumerate`, `take`,
      `skip` and `assert_cardinality` it goes on to what they read.
    - What `map` calls doesn't run for the elements left out, unless it has state:
      random operations, `tf.py_function`, `numpy_function` and variables that it assigns go on
      from element to element, so they run.
    - `from_tensor_slices` and `range` begin later.
    - `concatenate` and `repeat` leave out whole passes where nothing in them has state.
    - All else, such as `shuffle`, `filter`, `cache` or `interleave`, is run through, with what it
      reads.

    Args:
        dataset: Any pipeline, with the batches of a pass as its elements.
        batches: How many elements to leave out, from 0. With more than there are,
            nothing is left.
    """
    if batches == 0:
        return dataset
    if isinstance(dataset, GoingOnDataset):
        moved = dataset.starting_at(batches)
    else:
        later = _LATER.get(dataset_kind(dataset))
        moved = None if later is None else later(dataset, batches)
    if moved is None or moved.element_spec != dataset.element_spec:
        return dataset.skip(batches)
    return moved


def _without_state(dataset: Any) -> bool:
    """Whether each iterator of `dataset` yields the same, and leaves nothing behind."""
    known = dataset_kind(dataset) in _LATER or isinstance(dataset, GoingOnDataset)
    if not known or not _calls_alike(dataset):
        return False
    return all(_without_state(source) for source in dataset_inputs(dataset))


def _calls_alike(dataset: Any) -> bool:
    """Whether the functions that `dataset` calls give the same for an element in any order."""
    return stateful_ops(dataset) <= HARMLESS


def _source(dataset: Any, count: int) -> tf.data.Dataset:
    return starting_at(dataset_inputs(dataset)[0], count)


def _prefetch(dataset: Any, count: int) -> tf.data.Dataset:
    return _source(dataset, count).prefetch(dataset_number(dataset, "buffer_size"))


def _options(dataset: Any, count: int) -> tf.data.Dataset:
    return _source(dataset, count).with_options(dataset.options())


def _map(dataset: Any, count: int) -> tf.data.Dataset | None:
    return rebuilt(dataset, _source(dataset, count)) if _calls_alike(dataset) else None


def _batch(dataset: Any, count: int) -> tf.data.Dataset:
    # A shorter last batch stays the last: nothing is left behind it.
    return rebuilt(dataset, _source(dataset, count * dataset_number(dataset, "batch_size")))


def _zip(dataset: Any, count: int) -> tf.data.Dataset:
    later = [starting_at(source, count) for source in dataset_inputs(dataset)]
    return tf.data.Dataset.zip(zip_structure(dataset, later))


def _take(dataset: Any, count: int) -> tf.data.Dataset | None:
    limit = dataset_number(dataset, "count")
    if 0 <= limit <= count:
        # To take nothing makes no iterator, for which a shuffle would draw an order.
        return None
    return _source(dataset, count).take(limit if limit < 0 else limit - count)


def _skip(dataset: Any, count: int) -> tf.data.Dataset | None:
    already = dataset_number(dataset, "count")
    return None if already < 0 else _source(dataset, already + count)


def _range(dataset: Any, count: int) -> tf.data.Dataset | None:
    start, stop, step = (dataset_number(dataset, name) for name in ("start", "stop", "step"))
    first = start + count * step
    if not -(2**62) < first < 2**62:
        return None
    return tf.data.Dataset.range(first, stop, step, output_type=dataset.element_spec.dtype)


def _slices(dataset: Any, count: int) -> tf.data.Dataset | None:
    tensors = dataset_tensors(dataset)
    if sum(_copied_bytes(tensor) for tensor in tensors) > _FEW_BYTES:
        return None
    return resliced(dataset, [tensor[count:] for tensor in tensors])


def _copied_bytes(tensor: Any) -> int:
    """How much memory a slice of the rows of `tensor` takes at most."""
    row_bytes = tensor.dtype.size * math.prod(tensor.shape[1:])
    shared = tensor.shape.rank > 1 and row_bytes % _ALIGNED_BYTES == 0
    return 0 if shared else row_bytes * tensor.shape[0]


def _assert_cardinality(dataset: Any, count: int) -> tf.data.Dataset | None:
    expected = dataset_number(dataset, "expected_cardinality")
    left = expected if expected < 0 else max(expected - count, 0)
    return _source(dataset, count).apply(tf.data.experimental.assert_cardinality(left))


def _concatenate(dataset: Any, count: int) -> tf.data.Dataset | None:
    first, second = dataset_inputs(dataset)
    size = int(first.cardinality())
    if size < 0 or not _without_state(first):
        return None
    if count < size:
        return starting_at(first, count).concatenate(second)
    return starting_at(second, count - size)


def _repeat(dataset: Any, count: int) -> tf.data.Dataset | None:
    (source,) = dataset_inputs(dataset)
    size, passes = int(source.cardinality()), dataset_number(dataset, "count")
    if size <= 0 or not _without_state(source):
        return None
    whole, rest = divmod(count, size)
    left = -1 if passes < 0 else max(passes - whole, 0)
    if rest == 0 or left == 0:
        return source.repeat(left)
    return starting_at(source, rest).concatenate(source.repeat(left if left < 0 else left - 1))


_LATER: dict[str, Callable[[Any, int], tf.data.Dataset | None]] = {
    "AssertCardinality": _assert_cardinality,
    "Batch": _batch,
    "Concatenate": _concatenate,
    "Map": _map,
    "Options": _options,
    "PaddedBatch": _batch,
    "ParallelBatch": _batch,
    "ParallelMap": _map,
    "Prefetch": _prefetch,
    "Range": _range,
    "Repeat": _repeat,
    "Skip": _skip,
    "Take": _take,
    "Tensor": lambda dataset, count: None,
    "TensorSlice": _slices,
    "Zip": _zip,
}
