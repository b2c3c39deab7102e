"""Writing away from the event loop, with real pipes and a full disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from drumbeat.launch.streams import HIGH_WATER_BYTES, DescriptorSink, FileSink, Writer


def test_what_is_put_is_written_in_order(tmp_path):
    writer = Writer(on_problem=lambda sink, error: pytest.fail(str(error)))
    sink = FileSink(tmp_path / "new" / "output.log")
    writer.start()
    for number in range(1000):
        writer.put(sink, b"%d\n" % number)
    assert writer.close(10)
    written = (tmp_path / "new" / "output.log").read_text().split()
    assert written == [str(number) for number in range(1000)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_once_and_the_rest_goes_on(tmp_path):
    problems: list[str] = []
    writer = Writer(on_problem=lambda sink, error: problems.append(str(error)))
    full, good = FileSink(Path("/dev/full")), FileSink(tmp_path / "good")
    writer.start()
    for _ in range(5):
        writer.put(full, b"x")
        writer.put(good, b"y")
    assert writer.close(10)
    assert len(problems) == 1
    assert "No space left" in problems[0]
    assert (tmp_path / "good").read_bytes() == b"yyyyy"


def test_a_reader_that_does_not_read_is_noticed_and_not_waited_for():
    read, write = os.pipe()
    writer = Writer(on_problem=lambda sink, error: None)
    writer.start()
    room = threading.Event()
    try:
        assert writer.when_room(room.set)
        writer.put(DescriptorSink(write), b"x" * HIGH_WATER_BYTES)
        writer.put(DescriptorSink(write), b"x")
        assert not writer.when_room(room.set)
        assert not writer.close(0.2)
        assert not room.is_set()
        left = HIGH_WATER_BYTES + 1
        while left:
            left -= len(os.read(read, 1 << 20))
        assert room.wait(5)
    finally:
        os.close(read)
        assert writer.close(5)
        os.close(write)


def test_a_descriptor_that_does_not_block_is_written_completely():
    read, write = os.pipe()
    os.set_blocking(write, False)
    writer = Writer(on_problem=lambda sink, error: pytest.fail(str(error)))
    writer.start()
    writer.put(DescriptorSink(write), b"z" * 1_000_000)
    total = 0
    while total < 1_000_000:
        total += len(os.read(read, 1 << 16))
    assert writer.close(5)
    os.close(read)
    os.close(write)
