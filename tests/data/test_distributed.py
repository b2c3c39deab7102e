"""Slices and row counts of one process; what several agree on is in training/test_parity.py."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from drumbeat.data.distributed import (
    DistributedDataset,
    Feed,
    count_rows,
    slice_batches,
    split_batches,
)
from drumbeat.data.rows import BatchRows, num_rows
from drumbeat.errors import DataError

pytestmark = pytest.mark.tensorflow


def numbers(rows: int, batch: int, **batching: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(rows).batch(batch, **batching)


def sliced(dataset: tf.data.Dataset, rank: int, size: int) -> tuple[DistributedDataset, BatchRows]:
    rows = BatchRows(size)
    return DistributedDataset(slice_batches(dataset, rank, size), Feed(rows)), rows


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_slices_put_together_are_the_batches(size: int, drop_remainder: bool) -> None:
    dataset = numbers(25, 10, drop_remainder=drop_remainder)
    parts = [[b.numpy().tolist() for b in sliced(dataset, r, size)[0]] for r in range(size)]
    whole = [sum(batch, []) for batch in zip(*parts, strict=True)]
    assert whole == [b.numpy().tolist() for b in dataset]


def test_a_static_batch_gives_a_static_slice() -> None:
    dataset, _ = sliced(numbers(20, 10, drop_remainder=True), 0, 3)
    assert dataset.element_spec.shape == [4]
    assert int(dataset.cardinality) == 2


def test_rows_are_recorded_with_every_batch() -> None:
    dataset, rows = sliced(numbers(11, 10), 1, 2)
    seen = []
    for _ in dataset:
        seen.append((rows.value.numpy().tolist(), float(rows.fraction(None))))
    assert seen == [([5, 10], 0.5), ([0, 1], 0.0)]


def test_fraction_of_a_batch_from_elsewhere_is_an_equal_share() -> None:
    rows = BatchRows(4)
    rows.record([1, 10])
    assert float(rows.fraction(1)) == pytest.approx(0.1)
    assert float(rows.fraction(3)) == 0.25
    rows.reset()
    assert float(rows.fraction(None)) == 0.25


def test_ragged_sparse_scalars_and_strings() -> None:
    ragged = tf.ragged.constant([[1], [2, 3], [], [4]])
    sparse = tf.sparse.from_dense([[1, 0], [0, 2], [3, 0], [0, 4]])
    words = tf.constant(["a", "b", "c", "d"])
    dataset = tf.data.Dataset.from_tensors({"r": ragged, "s": sparse, "w": words, "k": 7})
    (first,) = list(sliced(dataset, 0, 2)[0])
    (second,) = list(sliced(dataset, 1, 2)[0])
    assert first["r"].to_list() == [[1], [2, 3]]
    assert second["r"].to_list() == [[], [4]]
    assert tf.sparse.to_dense(second["s"]).numpy().tolist() == [[3, 0], [0, 4]]
    assert second["w"].numpy().tolist() == [b"c", b"d"]
    assert int(first["k"]) == int(second["k"]) == 7


def test_unbatched_data_is_refused() -> None:
    with pytest.raises(DataError, match=r"no batch axis.*dataset\.batch\(global_batch_size\)"):
        slice_batches(tf.data.Dataset.range(4), 0, 2)
    with pytest.raises(DataError, match="no batch axis"):
        count_rows(tf.data.Dataset.range(4))


@pytest.mark.parametrize(("batch", "expected"), [(4, [2, 2, 2, 2, 1, 1]), (1, [1] * 10)])
def test_split_batches(batch: int, expected: list[int]) -> None:
    pieces = [p.numpy().tolist() for p in split_batches(numbers(10, batch), 2)]
    assert sum(pieces, []) == list(range(10))
    assert [len(p) for p in pieces] == expected


def test_agreed_input_goes_on_with_empty_batches_until_all_have_ended() -> None:
    rows = BatchRows(2)
    others = iter([3, 3, 0])  # another worker has rows for one step more than we
    feed = Feed(rows, lambda mine: mine + next(others))
    dataset = DistributedDataset(count_rows(numbers(2, 2, drop_remainder=True)), feed)
    assert dataset.element_spec.shape == [None]
    assert [b.numpy().tolist() for b in dataset] == [[0, 1], []]
    assert rows.value.numpy().tolist() == [0, 0]


def test_iterators_of_new_epochs_do_not_trace_anew() -> None:
    dataset, _ = sliced(numbers(8, 4), 0, 2)
    traces = []

    @tf.function(reduce_retracing=True)
    def take(iterator: Any) -> tf.Tensor:
        traces.append(1)
        return iterator.get_next()

    for _ in range(3):
        assert take(iter(dataset)).numpy().tolist() == [0, 1]
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("structure", "rows"),
    [((), None), (3.0, None), ([[1, 2, 3]], 1), ({"a": 1.0, "b": [1, 2]}, 2)],
)
def test_num_rows(structure: Any, rows: int | None) -> None:
    tensors = (
        tf.nest.map_structure(tf.constant, structure)
        if not isinstance(structure, dict)
        else {k: tf.constant(v) for k, v in structure.items()}
    )
    if isinstance(structure, list):
        tensors = tf.constant(structure)
    assert num_rows(tensors) == rows
