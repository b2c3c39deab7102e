"""Slices and row counts of one process; what several agree on is in training/test_parity.py."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from drumbeat.collectives.local import LocalCommunicator
from drumbeat.data.distributed import (
    DistributedDataset,
    OwnBatches,
    PlacedBatches,
    WholeBatches,
    in_one_order,
    joined,
    split_batches,
)
from drumbeat.data.replay import iterator_at
from drumbeat.data.rows import BatchRows, Span, num_rows
from drumbeat.data.shares import Shares
from drumbeat.errors import DataError
from drumbeat.strategies.inputs import Inputs

pytestmark = pytest.mark.tensorflow


def numbers(rows: int, batch: int, **batching: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(rows).batch(batch, **batching)


def sliced(dataset: tf.data.Dataset, rank: int, size: int) -> tuple[DistributedDataset, BatchRows]:
    rows = BatchRows(rank, size)
    feed = WholeBatches(rows, lambda total: Shares.equal(size).rows_of(rank, total))
    return DistributedDataset(in_one_order(dataset), feed), rows


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_slices_put_together_are_the_batches(size: int, drop_remainder: bool) -> None:
    dataset = numbers(25, 10, drop_remainder=drop_remainder)
    parts = [[b.numpy().tolist() for b in sliced(dataset, r, size)[0]] for r in range(size)]
    whole = [sum(batch, []) for batch in zip(*parts, strict=True)]
    assert whole == [b.numpy().tolist() for b in dataset]


def test_a_local_batch_has_any_number_of_rows() -> None:
    dataset, _ = sliced(numbers(20, 10, drop_remainder=True), 0, 3)
    assert dataset.element_spec.shape == [None]
    assert int(dataset.cardinality) == 2


def test_no_thread_tunes_what_does_not_ask_for_it() -> None:
    # Or the end of an epoch waits for it to wake up.
    asks = tf.data.Options()
    asks.autotune.enabled = True
    for dataset, tuned in ((numbers(20, 10), False), (numbers(20, 10).with_options(asks), True)):
        alone = Inputs(LocalCommunicator(), Shares.equal(1)).distribute(dataset)
        for pipeline in (alone, sliced(dataset, 0, 2)[0].pipeline):
            assert pipeline.options().autotune.enabled is tuned


def test_where_each_batch_stands_is_recorded() -> None:
    dataset, rows = sliced(numbers(11, 10), 1, 2)
    seen = [rows.value.numpy().tolist() for _ in dataset]
    assert seen == [[5, 5, 10], [1, 0, 1]]


def ints(span: Span) -> list[int]:
    return [int(number) for number in span]


def test_a_batch_from_elsewhere_has_an_equal_share() -> None:
    rows = BatchRows(2, 4)
    rows.record(Span(3, 1, 10))
    assert ints(rows.span(1)) == ints(rows.span(None)) == [3, 1, 10]
    assert ints(rows.span(3)) == [6, 3, 12]
    rows.reset()
    assert ints(rows.span(None)) == [2, 1, 4]


def test_placed_batches_are_taken_as_they_are() -> None:
    rows = BatchRows(1, 2)
    pairs = tf.data.Dataset.from_tensor_slices(([[5, 6], [8, 9]], [[2, 2, 4], [6, 2, 8]]))
    pairs = pairs.map(lambda batch, span: (batch, tf.cast(span, tf.int64)))
    dataset = DistributedDataset(pairs, PlacedBatches(rows))
    assert dataset.element_spec.shape == [None]
    seen = [(b.numpy().tolist(), rows.value.numpy().tolist()) for b in dataset]
    assert seen == [([5, 6], [2, 2, 4]), ([8, 9], [6, 2, 8])]


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
        sliced(tf.data.Dataset.range(4), 0, 2)
    own = OwnBatches(BatchRows(0, 2), lambda rows: Span(0, rows, rows))
    with pytest.raises(DataError, match="no batch axis"):
        DistributedDataset(tf.data.Dataset.range(4), own)


@pytest.mark.parametrize(("batch", "expected"), [(4, [2, 2, 2, 2, 1, 1]), (1, [1] * 10)])
def test_split_batches(batch: int, expected: list[int]) -> None:
    pieces = [p.numpy().tolist() for p in split_batches(numbers(10, batch), 2)]
    assert sum(pieces, []) == list(range(10))
    assert [len(p) for p in pieces] == expected


def test_agreed_input_goes_on_with_empty_batches_until_all_have_ended() -> None:
    rows = BatchRows(0, 2)
    others = iter([3, 3, 0])  # another worker has rows for one step more than we
    feed = OwnBatches(rows, lambda mine: Span(0, mine, mine + next(others)))
    dataset = DistributedDataset(numbers(2, 2, drop_remainder=True), feed)
    assert dataset.element_spec.shape == [None]
    assert [b.numpy().tolist() for b in dataset] == [[0, 1], []]
    assert rows.value.numpy().tolist() == [0, 0, 0]


def test_a_worker_that_ran_out_before_stays_out() -> None:
    """Others go on, from their own third batch; the spans are as without the interruption."""
    rows = BatchRows(1, 2)
    others = iter([3, 2, 0])

    def agree(mine: Any) -> Span:
        theirs = next(others)
        return Span(theirs, mine, theirs + mine)

    feed = OwnBatches(rows, agree)
    iterator = iterator_at(DistributedDataset(numbers(4, 2), feed), 3)
    seen = [(next(iterator).numpy().tolist(), rows.value.numpy().tolist()) for _ in range(2)]
    assert seen == [([], [3, 0, 3]), ([], [2, 0, 2])]
    assert next(iterator, None) is None


def test_iterators_of_new_epochs_and_within_one_do_not_trace_anew() -> None:
    dataset, rows = sliced(numbers(8, 4), 0, 2)
    traces = []

    @tf.function(reduce_retracing=True)
    def take(iterator: Any) -> tf.Tensor:
        traces.append(1)
        return iterator.get_next()

    for _ in range(3):
        assert take(iter(dataset)).numpy().tolist() == [0, 1]
    within = iterator_at(dataset, 1)
    assert take(within).numpy().tolist() == [4, 5]
    assert rows.value.numpy().tolist() == [0, 2, 4]
    assert len(traces) == 1
    assert next(within, None) is None


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


def test_batches_are_joined_end_to_end() -> None:
    lists = tf.data.Dataset.from_tensor_slices(tf.ragged.range(tf.range(11)))
    batches = tf.data.Dataset.zip({"n": tf.data.Dataset.range(11), "list": lists}).batch(2)
    # One number for a batch, and an axis that is as long as the batch's number.
    wide = batches.map(lambda b: b | {"one": b["n"][0], "wide": tf.ones([2, b["n"][0] + 1])})
    whole = list(joined(batches, 3))
    assert [b["n"].numpy().tolist() for b in whole] == [list(range(6)), list(range(6, 11))]
    assert [b["list"].row_lengths().numpy().tolist() for b in whole] == [
        list(range(6)),
        list(range(6, 11)),
    ]
    shapes = [(int(b["one"]), b["wide"].shape.as_list()) for b in joined(wide, 2)]
    assert shapes == [(0, [4, 3]), (4, [4, 7]), (8, [4, 11])]


def test_sparse_batches_are_not_joined() -> None:
    sparse = tf.data.Dataset.from_tensors(tf.sparse.eye(2))
    with pytest.raises(DataError, match=r"3 batches for each step.*can't be put together"):
        joined(sparse, 3)
