"""A node's snapshots: complete or absent, and unharmed by whatever ends their writer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from drumbeat.errors import StateError
from drumbeat.state.format import HEADER_BYTES, State, checksum, pack, size_of, unpack
from drumbeat.state.memory import FDS_VARIABLE, SnapshotMemory


def a_state(step: int, size: int = 1000) -> State:
    rng = np.random.default_rng(step)
    return State(
        step,
        {"epoch": step // 10, "logs": {"loss": 0.5}},
        {
            "kernel": rng.random((size, 3), np.float32),
            "bytes": np.frombuffer(b"abc", np.uint8),
            "empty": np.zeros([0, 4], np.float64),
            "scalar": np.array(7, np.int64),
            "half": np.ones([3], ml_dtypes.bfloat16),
            "transposed": rng.random((4, 5)).T,
        },
    )


def same(one: State, other: State) -> bool:
    return (
        one.step == other.step
        and dict(one.meta) == dict(other.meta)
        and list(one.arrays) == list(other.arrays)
        and all(
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in zip(one.arrays.values(), other.arrays.values(), strict=True)
        )
    )


@pytest.fixture
def memory() -> Iterator[SnapshotMemory]:
    made = SnapshotMemory.create()
    yield made
    made.close()


def test_a_state_comes_back_as_it_was() -> None:
    state = a_state(37)
    packed = pack(state)
    assert len(packed) == size_of(state)
    assert same(unpack(packed), state)


@pytest.mark.parametrize("at", [0, 9, 20, 40, HEADER_BYTES + 5, -100, -3000])
def test_a_changed_byte_is_found(at: int) -> None:
    packed = bytearray(pack(a_state(1)))
    packed[at] ^= 4
    with pytest.raises(StateError):
        unpack(packed)


@pytest.mark.parametrize("kept", [0, 10, HEADER_BYTES, HEADER_BYTES + 100, -1])
def test_a_cut_off_state_is_found(kept: int) -> None:
    with pytest.raises(StateError, match="cut off"):
        unpack(pack(a_state(1))[:kept])


def test_the_checksum_tells_blocks_apart() -> None:
    data = np.arange(2**19, dtype=np.int64)  # four blocks
    moved = np.roll(data.reshape(4, -1), 1, axis=0).reshape(-1)
    assert checksum(data) != checksum(moved)


def test_buffers_take_turns(memory: SnapshotMemory) -> None:
    assert memory.steps() == []
    for step in (10, 20, 30):
        memory.write(a_state(step, size=1000 * step))
    assert memory.steps() == [30, 20]
    assert same(memory.read(30), a_state(30, 30000))
    assert same(memory.read(20), a_state(20, 20000))
    with pytest.raises(StateError, match="step 10"):
        memory.read(10)


def test_a_writer_killed_in_the_middle_leaves_the_snapshot_before(memory: SnapshotMemory) -> None:
    memory.write(a_state(1))
    memory.write(a_state(2))
    memory.write(a_state(3))
    big = State(4, {}, {"big": np.ones(2**27, np.uint8)})
    pid = os.fork()
    if pid == 0:
        memory.write(big)
        os._exit(0)
    deadline = time.monotonic() + 30
    while 2 in memory.steps():  # until it has begun to write
        assert time.monotonic() < deadline
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it was done before the kill"
    assert memory.steps() == [3]
    assert same(memory.read(3), a_state(3))


def test_the_descriptors_are_all_another_process_needs(memory: SnapshotMemory) -> None:
    memory.write(a_state(5))
    fds = ",".join(map(str, memory.fds))
    other = SnapshotMemory.from_env({FDS_VARIABLE: fds})
    assert other is not None
    assert same(other.read(5), a_state(5))
    other.write(a_state(6, size=50000))
    assert same(memory.read(6), a_state(6, 50000))
    assert SnapshotMemory.from_env({}) is None


def test_a_snapshot_travels_to_another_node(memory: SnapshotMemory) -> None:
    memory.write(a_state(5))
    memory.archive_append(a_state(3))
    other = SnapshotMemory.create()
    try:
        other.write(a_state(9))
        other.write(a_state(8, size=9000))
        other.archive_append(a_state(1, size=5000))
        other.put(memory.packed(5))
        other.put_archive(memory.archive_bytes())
        assert other.steps() == [9, 5]
        assert same(other.read(5), a_state(5))
        assert [state.step for state in other.archive()] == [3]
        with pytest.raises(StateError):
            other.put(memory.packed(5)[:-70])
    finally:
        other.close()


def test_the_archive_keeps_all_and_can_forget_arrays(memory: SnapshotMemory) -> None:
    assert memory.archive() == []
    assert memory.newest_step() == -1
    memory.write(a_state(2))
    assert memory.newest_step() == 2
    for step in (1, 2, 3):
        memory.archive_append(a_state(step, size=50000))
    assert all(same(s, a_state(s.step, 50000)) for s in memory.archive())
    before = os.fstat(memory.fds[2]).st_blocks
    memory.archive_drop(1)
    assert os.fstat(memory.fds[2]).st_blocks < before * 0.75
    first, second, third = memory.archive()
    assert same(first, a_state(1, 50000))
    assert same(third, a_state(3, 50000))
    assert (second.step, second.meta, second.arrays) == (2, a_state(2).meta, {})
    assert [size > 0 for size in memory.archive_sizes()] == [True, False, True]
    assert memory.newest_step() == 3
    memory.archive_drop(2)
    assert memory.newest_step() == 2
