"""Files in one global order, as one worker sees them and as several would.

Real workers are in training/test_parity.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import drumbeat
from drumbeat.data.distributed import PlacedBatches
from drumbeat.data.epochs import Epochs
from drumbeat.data.order import Order
from drumbeat.data.ordered import DistributedOrderedDataset, OrderedDataset
from drumbeat.data.placed import Reading, placed_batches
from drumbeat.data.replay import iterator_at
from drumbeat.data.rows import BatchRows
from drumbeat.data.shares import Shares
from drumbeat.errors import DataError

pytestmark = pytest.mark.tensorflow

NUM_EXAMPLES = 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three TFRecord files with the numbers 0 to 22, and a text file for each of them."""
    folder = tmp_path_factory.mktemp("data")
    for file, numbers in enumerate((range(0, 5), range(5, 5), range(5, NUM_EXAMPLES))):
        with tf.io.TFRecordWriter(str(folder / f"{file}.tfrecord")) as writer:
            for number in numbers:
                writer.write(str(number).encode())
    (folder / "texts").mkdir()
    for number in range(NUM_EXAMPLES):
        (folder / "texts" / f"{number:02}.txt").write_text(str(number))
    return folder


def as_number(record: Any) -> Any:
    return tf.strings.to_number(record, tf.int64)


def read_number(path: Any) -> Any:
    return as_number(tf.io.read_file(path))


def records(folder: Path, map: Any = as_number, **more: Any) -> OrderedDataset:  # noqa: A002
    arguments = {"batch_size": 6, "map": map} | more
    return drumbeat.data.tfrecords(str(folder / "*.tfrecord"), **arguments)


def texts(folder: Path, map: Any = read_number, **more: Any) -> OrderedDataset:  # noqa: A002
    arguments = {"batch_size": 6, "map": map} | more
    return drumbeat.data.files(folder / "texts" / "*.txt", **arguments)


def ids(dataset: Any) -> list[list[int]]:
    return [batch.numpy().tolist() for batch in dataset]


def local(dataset: OrderedDataset, shares: Shares, rank: int) -> tf.data.Dataset:
    """The pipeline of one of several workers."""
    return dataset.local_batches(lambda total: shares.rows_of(rank, total))


@pytest.mark.parametrize("make", [records, texts])
def test_alone_it_is_a_dataset_of_all_batches(folder: Path, make: Any) -> None:
    dataset = make(folder)
    expected = list(range(NUM_EXAMPLES))
    assert ids(dataset) == [expected[i : i + 6] for i in range(0, NUM_EXAMPLES, 6)]
    assert len(dataset) == 4
    assert len(make(folder, drop_remainder=True)) == 3
    assert make(folder, drop_remainder=True).element_spec.shape == [6]
    assert dataset.element_spec.shape == [None]


@pytest.mark.parametrize(
    ("make", "units", "drop_remainder"),
    [
        (records, (1, 1), False),
        (records, (2, 1), True),
        (texts, (1, 1, 1), False),
        (texts, (1, 5, 1), True),
        (records, (1,) * 7, False),
    ],
)
def test_the_parts_of_all_workers_are_the_batches_of_one(
    folder: Path, make: Any, units: tuple[int, ...], drop_remainder: bool
) -> None:
    shares = Shares.of(units)
    whole = ids(make(folder, shuffle=5, drop_remainder=drop_remainder).repeat(2))
    dataset = make(folder, shuffle=5, drop_remainder=drop_remainder).repeat(2)
    parts = []
    for rank in range(len(units)):
        dataset.epoch = 0
        pairs = [(b.numpy().tolist(), s.numpy().tolist()) for b, s in local(dataset, shares, rank)]
        for (batch, span), all_rows in zip(pairs, whole, strict=True):
            start, stop = shares.rows_of(rank, len(all_rows))
            assert span == [start, stop - start, len(all_rows)]
            assert len(batch) == span[1]
        parts.append([batch for batch, _ in pairs])
    assert [sum(rows, []) for rows in zip(*parts, strict=True)] == whole


class Watched:
    """A source of the numbers from 0 on that knows what has been fetched."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.fetched: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._count

    def fetch(self, numbers: Any) -> Any:
        def note(numbers: np.ndarray) -> np.ndarray:
            self.fetched.update(numbers.tolist())
            return numbers

        return tf.ensure_shape(tf.numpy_function(note, [numbers], tf.int64), [None])

    def fingerprint(self) -> int:
        return 0


@pytest.mark.parametrize(("repeats", "count"), [(1, 9), (3, 7), (None, 8)])
def test_batches_left_out_at_the_beginning(folder: Path, repeats: int | None, count: int) -> None:
    """What is left is what a whole iterator gives, and the next one has the next order."""
    passes = ids(records(folder, shuffle=3).repeat(4))
    orders = [passes[i : i + 4] for i in range(0, 16, 4)]
    dataset = records(folder, shuffle=3)
    whole = dataset if repeats == 1 else dataset.repeat(repeats)
    rest = whole.skip(count)
    assert isinstance(rest, OrderedDataset)
    assert rest.element_spec == whole.element_spec
    expected = sum(orders[: repeats or 3], [])[count:]
    assert int(rest.cardinality()) == (len(expected) if repeats else tf.data.INFINITE_CARDINALITY)
    assert ids(rest.take(len(expected))) == expected
    if expected and repeats:
        assert dataset.epoch == repeats
        assert ids(whole)[:4] == orders[repeats]


def test_what_is_left_out_is_not_loaded_and_each_worker_has_its_rows(folder: Path) -> None:
    loaded: list[int] = []

    def load(record: Any) -> Any:
        number = as_number(record)
        note = tf.numpy_function(lambda n: loaded.append(int(n)) or n, [number], tf.int64)
        return tf.ensure_shape(note, [])

    dataset = records(folder, load, shuffle=3)
    expected = ids(dataset)[2:]
    loaded.clear()
    parts = []
    for rank in range(3):
        dataset.epoch = 0
        pairs = local(dataset.skip(2), Shares.equal(3), rank)
        parts.append([rows.numpy().tolist() for rows, _ in pairs])
    assert [sum(batch, []) for batch in zip(*parts, strict=True)] == expected
    assert sorted(loaded) == sorted(sum(expected, []))


# Row 64 of the field report: every worker read and decoded all the data.
@pytest.mark.parametrize("size", [2, 8])
def test_each_row_is_read_and_loaded_by_one_worker_only(size: int) -> None:
    count, order = 70, Order(70, 20, False, 1)
    loaded: Counter[int] = Counter()

    def load(example: Any, _: Any) -> Any:
        def note(number: np.ndarray) -> np.ndarray:
            loaded[int(number)] += 1
            return number

        return tf.ensure_shape(tf.numpy_function(note, [example], tf.int64), [])

    mine = []
    for rank in range(size):
        source = Watched(count)
        pairs = placed_batches(
            Reading(source, load, order, Epochs(0)),
            lambda total, rank=rank: Shares.equal(size).rows_of(rank, total),
            spans=True,
        )
        rows = [number for batch, _ in pairs for number in batch.numpy().tolist()]
        assert source.fetched == Counter(rows)
        mine += rows
    assert loaded == Counter(mine) == Counter(range(count))


def test_each_epoch_has_another_order_and_a_second_pass_goes_on(folder: Path) -> None:
    dataset = records(folder, shuffle=1)
    passes = [sum(ids(dataset), []) for _ in range(3)]
    assert all(sorted(numbers) == list(range(NUM_EXAMPLES)) for numbers in passes)
    assert len({tuple(numbers) for numbers in passes}) == 3
    assert dataset.epoch == 3
    dataset.epoch = 1
    assert sum(ids(dataset), []) == passes[1]
    assert sum(ids(records(folder, shuffle=1).repeat(3)), []) == sum(passes, [])
    assert sum(ids(texts(folder, shuffle=1)), []) == passes[0]
    assert sum(ids(records(folder, shuffle=2)), []) != passes[0]


def test_looking_at_the_first_batch_is_no_pass(folder: Path) -> None:
    dataset = records(folder, shuffle=1)
    iterator = iter(dataset)
    first = next(iterator).numpy().tolist()
    # Batches are read ahead meanwhile.
    time.sleep(0.5)
    assert dataset.epoch == 0
    assert next(iter(dataset)).numpy().tolist() == first
    next(iterator)
    assert dataset.epoch == 1


def test_distributed_passes_begin_with_the_chiefs_epoch(folder: Path) -> None:
    dataset = records(folder, shuffle=1)
    passes = [sum(ids(dataset), []) for _ in range(4)]
    chiefs = iter([0, 1, 2, 1])

    def gather(mine: Any) -> np.ndarray:
        return np.array([[*mine[:-1], next(chiefs)], mine], np.int64)

    feed = PlacedBatches(BatchRows(0, 1))
    distributed = DistributedOrderedDataset(dataset, lambda total: (0, total), feed, gather)
    assert int(distributed.cardinality) == 4
    assert dataset.epoch == 0
    assert sum(ids(distributed), []) == passes[1]
    assert dataset.epoch == 2
    # This worker has gone through the data alone in between.
    list(dataset)
    assert sum(ids(distributed), []) == passes[2]
    within = [batch.numpy().tolist() for batch in iterator_at(distributed, 1)]
    assert within == [passes[1][i : i + 6] for i in (6, 12, 18)]
    assert dataset.epoch == 2


@pytest.mark.parametrize("batches", [1, 4])
def test_a_pass_that_goes_on_counts_also_where_nothing_is_left(folder: Path, batches: int) -> None:
    dataset = records(folder, shuffle=1)
    following = [ids(dataset), ids(dataset)][1]
    for again in (dataset, dataset.map(lambda n: n)):
        dataset.epoch = 0
        iterator = iterator_at(again, batches)
        for _ in range(batches, 4):
            next(iterator)
        assert dataset.epoch == 1
        assert ids(again) == following


def test_map_may_branch_and_return_any_structure(folder: Path) -> None:
    def example(record: Any) -> Any:
        number = as_number(record)
        size = number
        if number > 10:
            size = tf.constant(0, tf.int64)
        return {"n": number, "row": tf.RaggedTensor.from_tensor(tf.ones([1, size]))}, number * 2

    dataset = records(folder, example, batch_size=4)
    (features, label), *_ = list(dataset)
    assert label.numpy().tolist() == [0, 2, 4, 6]
    assert [len(row) for row in features["row"].to_list()] == [1, 1, 1, 1]
    # The second of seven workers has no row of the last batch, of three.
    *_, ((features, label), span) = list(local(dataset, Shares.equal(7), 1))
    assert span.numpy().tolist() == [1, 0, 3]
    assert features["n"].shape == label.shape == [0]
    assert features["row"].nrows() == 0


def test_maps_with_a_seed_draw_alike_for_any_number_of_workers(folder: Path) -> None:
    def noisy(record: Any, seed: Any) -> Any:
        return tf.stack([tf.random.stateless_uniform([], seed), tf.strings.to_number(record)])

    def by_number(batches: Any) -> dict[int, float]:
        return {int(n): float(draw) for batch in batches for draw, n in batch.numpy().tolist()}

    dataset = records(folder, noisy, shuffle=3)
    first, second = by_number(dataset), by_number(dataset)
    assert len(set(first.values()) | set(second.values())) == 2 * NUM_EXAMPLES
    dataset.epoch = 0
    shares = Shares.equal(3)
    parts = []
    for rank in range(3):
        dataset.epoch = 0
        parts.append(by_number(batch for batch, _ in local(dataset, shares, rank)))
    assert parts[0] | parts[1] | parts[2] == first


def test_without_map_it_yields_paths_and_bytes(folder: Path) -> None:
    assert next(iter(records(folder, None)))[3].numpy() == b"3"
    assert next(iter(texts(folder, None)))[3].numpy().decode().endswith("03.txt")


def test_plain_keras_takes_it(folder: Path) -> None:
    def example(record: Any) -> Any:
        number = tf.strings.to_number(record)
        return tf.stack([number, 1.0]) / 10, number

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = records(folder, example, shuffle=1)
    history = model.fit(data, epochs=2, verbose=0, validation_data=records(folder, example))
    assert len(history.history["val_loss"]) == 2
    # Keras looks at a batch to build the model, and makes two iterators an epoch.
    assert data.epoch == 2
    assert np.isfinite(model.evaluate(data, verbose=0))
    assert model.predict(data, verbose=0).shape == (NUM_EXAMPLES, 1)


def test_prefetch_keeps_what_it_is(folder: Path) -> None:
    dataset = records(folder)
    assert dataset.prefetch(tf.data.AUTOTUNE) is dataset
    assert dataset.repeat().cardinality() == tf.data.INFINITE_CARDINALITY
    assert isinstance(dataset.repeat(2), OrderedDataset)
    assert len(dataset.repeat(2)) == 8
    assert ids(dataset.map(lambda batch: batch + 1).take(1)) == [[1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"paths": "nothing/*.tfrecord"}, r"no file matches 'nothing/\*\.tfrecord' \(seen from"),
        ({"paths": "nothing.tfrecord"}, "'nothing.tfrecord' doesn't exist"),
        ({"paths": ["0.tfrecord", "nothing"]}, "'nothing' doesn't exist"),
        ({"paths": "texts"}, r"'texts' is a folder; expected files.*'texts/\*'"),
        ({"paths": []}, r"got no paths: \[\]"),
        ({"paths": [3]}, r"got 3 \(int\) as a path"),
        ({"paths": "1.tfrecord"}, r"no records in 1\.tfrecord \(1 files\)"),
        ({"batch_size": 0}, "batch_size is 0; expected a whole number above 0"),
        ({"batch_size": 2.5}, r"batch_size is 2\.5"),
        ({"shuffle": True}, "shuffle is True; expected None, or a whole number as the seed"),
        ({"shuffle": "yes"}, "shuffle is 'yes'; expected None, or a whole number as the seed"),
        ({"shuffle": 0.5}, r"shuffle is 0\.5"),
        ({"map": 3}, "map is 3; expected a function"),
        ({"map": lambda a, b, c: a}, "map takes 3 arguments, a, b, c"),
        ({"batch_size": 24, "drop_remainder": True}, "23 examples are fewer than one batch of 24"),
    ],
)
def test_what_cannot_be_used_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(DataError, match=said):
        drumbeat.data.tfrecords(
            **{"paths": ["0.tfrecord", "2.tfrecord"], "batch_size": 4} | arguments
        )


def test_a_negative_epoch_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="epoch is -1"):
        records(folder).epoch = -1


def test_examples_of_different_shapes_are_refused(folder: Path) -> None:
    def ragged(record: Any) -> Any:
        return tf.zeros([as_number(record), 2])

    with pytest.raises(DataError, match=r"different shapes, \[\d,2\] and \[\d,2\]\. Expected"):
        list(records(folder, ragged))


def test_a_file_that_changes_meanwhile_is_named(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes((folder / "2.tfrecord").read_bytes())
    dataset = drumbeat.data.tfrecords(path, batch_size=50)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.tfrecord is shorter than when it was indexed"):
        list(dataset)


@pytest.mark.parametrize(
    ("position", "said"),
    [
        (0, "24 examples there, 23 on worker 0"),
        (1, "7 as batch_size there, 6 on worker 0"),
        (2, "1 as seed of shuffle there, 0 on worker 0"),
        (3, "as many examples, but other files"),
    ],
)
def test_workers_that_see_other_files_are_told(folder: Path, position: int, said: str) -> None:
    def gather(mine: Any) -> np.ndarray:
        other = list(mine)
        other[position] += 1
        return np.array([mine, mine, other], np.int64)

    with pytest.raises(DataError, match=f"Workers 0 and 2 don't read the same data: {said}"):
        records(folder).agree(gather)


def test_importing_drumbeat_imports_no_tensorflow() -> None:
    code = "import sys, drumbeat.data; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env=dict(os.environ))
