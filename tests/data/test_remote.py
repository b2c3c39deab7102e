"""Files by URL through fsspec, for the schemes that TensorFlow does not know."""

from __future__ import annotations

import fsspec
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from drumbeat.data import files, remote, tfrecords  # noqa: E402
from drumbeat.errors import DataError  # noqa: E402

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def folder(tmp_path):
    """Two TFRecord files of 5 records each, in fsspec's memory."""
    memory = fsspec.filesystem("memory")
    for number in range(2):
        path = tmp_path / f"part-{number}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in range(5):
                writer.write(f"{number}{record}".encode())
        memory.pipe_file(f"/data/part-{number}", path.read_bytes())
    yield "memory://data"
    memory.store.clear()


def records(dataset):
    return [each for batch in dataset for each in batch.numpy().tolist()]


def test_records_are_read_in_order_and_by_pattern(folder):
    expected = [f"{number}{record}".encode() for number in range(2) for record in range(5)]
    assert records(tfrecords(f"{folder}/part-*", batch_size=4)) == expected
    assert records(tfrecords(f"{folder}/part-1", batch_size=4)) == expected[5:]
    shuffled = records(tfrecords(f"{folder}/part-*", batch_size=4, shuffle=3))
    assert sorted(shuffled) == expected
    assert shuffled != expected


def test_patterns_and_kinds(folder):
    assert [each.rpartition("/")[2] for each in sorted(remote.matching(f"{folder}/*"))] == [
        "part-0",
        "part-1",
    ]
    assert remote.kind(f"{folder}/part-0") == "file"
    assert remote.kind(folder) == "folder"
    assert remote.kind(f"{folder}/nothing") == "nothing"
    with remote.open_file(f"{folder}/part-0") as file:
        assert remote.size_bytes(f"{folder}/part-0") == len(file.read())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("memory://data/nothing", "does not exist|doesn't exist"),
        ("memory://data", "is a folder"),
        ("memory://data/*.none", "no file matches"),
        ("nowhere://bucket/file", "nowhere://bucket/file can't be read"),
    ],
)
def test_what_is_not_there_is_explained(folder, path, message):
    for make in (tfrecords, files):
        with pytest.raises(DataError, match=message):
            make(path, batch_size=1)


def test_a_drivers_own_error_is_explained(folder, monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    def refused(self, path, **_):
        raise RuntimeError("403 forbidden")

    monkeypatch.setattr(MemoryFileSystem, "isfile", refused)
    with pytest.raises(DataError, match="RuntimeError: 403 forbidden"):
        tfrecords(f"{folder}/part-0", batch_size=1)


def test_a_missing_driver_is_explained(monkeypatch):
    def missing(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(DataError, match="Install s3fs"):
        tfrecords("s3://bucket/part", batch_size=1)


def test_a_damaged_file_is_explained(folder):
    memory = fsspec.filesystem("memory")
    data = bytearray(memory.cat_file("/data/part-0"))
    data[0] ^= 1
    memory.pipe_file("/data/broken", bytes(data))
    with pytest.raises(DataError, match="memory://data/broken"):
        tfrecords(f"{folder}/broken", batch_size=1)
