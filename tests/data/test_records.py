"""Random access to TFRecord files that TensorFlow has written."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from drumbeat.data.records import RecordFiles, checksums_fit, record_starts
from drumbeat.errors import DataError

pytestmark = pytest.mark.tensorflow


def write(path: Path, records: list[bytes], compression: str | None = None) -> str:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


RECORDS = [b"first", b"", b"x" * 70_000, b"\x00\xff", b"last"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write(tmp_path / "a.tfrecord", RECORDS)


def test_starts_are_where_records_are(path: str) -> None:
    sizes = [len(record) + 16 for record in RECORDS]
    assert record_starts(path).tolist() == [0, *np.cumsum(sizes).tolist()]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_reads_any_records_of_several_files(path: str, tmp_path: Path, scheme: str) -> None:
    empty = write(tmp_path / "empty.tfrecord", [])
    other = write(tmp_path / "b.tfrecord", [b"one", b"two"])
    records = RecordFiles.of([scheme + p for p in (empty, path, empty, other, path)])
    expected = [*RECORDS, b"one", b"two", *RECORDS]
    assert len(records) == len(expected)
    numbers = np.random.default_rng(1).permutation(len(expected))
    assert records.read(numbers).tolist() == [expected[n] for n in numbers]
    assert records.read(np.array([6, 6, 0])).tolist() == [b"two", b"two", b"first"]


def test_more_files_than_may_be_open_are_read_by_many_threads(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}", [str(i).encode()]) for i in range(100)]
    records = RecordFiles.of(paths)
    wrong: list[object] = []

    def read(seed: int) -> None:
        numbers = np.random.default_rng(seed).integers(0, 100, 300)
        if records.read(numbers).tolist() != [str(n).encode() for n in numbers]:
            wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not wrong


def test_every_damage_of_a_length_is_found(path: str) -> None:
    header = np.frombuffer(Path(path).read_bytes()[:12], np.uint8)
    assert checksums_fit(header[None]).tolist() == [True]
    damaged = np.repeat(header[None], 96, 0)
    for bit in range(96):
        damaged[bit, bit // 8] ^= np.uint8(1 << bit % 8)
    assert not checksums_fit(damaged).any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d[:-1], r"cut short: its record at byte \d+ goes beyond the file's end"),
        (lambda d: d[:-25], r"cut short: its record at byte \d+ goes beyond"),
        (lambda d: d[:28], "cut short: its record at byte 21 goes beyond the file's end at byte"),
        (lambda d: d[:21] + b"\x07" + d[22:], "is damaged: the length of the record at byte 21"),
        (lambda d: b"not records at all, but a text", "is no uncompressed TFRecord file"),
        (lambda d: gzip.compress(d), r"is compressed \(gzip\).*gunzip it"),
    ],
    ids=["a byte", "a record", "a header", "a length", "a text", "gzip"],
)
def test_files_that_are_not_whole_are_refused(path: str, change: object, said: str) -> None:
    Path(path).write_bytes(change(Path(path).read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=said) as caught:
        record_starts(path)
    assert path in str(caught.value)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files_are_refused(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a", RECORDS, compression)
    with pytest.raises(DataError, match=r"compress"):
        record_starts(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"can't read .*nowhere: No such file"):
        record_starts(str(tmp_path / "nowhere"))


def test_a_file_that_shrinks_later_is_named(path: str) -> None:
    records = RecordFiles.of([path])
    Path(path).write_bytes(Path(path).read_bytes()[:-6])
    with pytest.raises(DataError, match=r"a\.tfrecord is shorter than when it was indexed"):
        records.read(np.array([4]))
