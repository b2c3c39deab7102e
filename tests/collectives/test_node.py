"""Sums in memory that processes share, and the order in which addends are combined."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from drumbeat.collectives.buckets import plan
from drumbeat.collectives.node import SLOT_BYTES, NodeMemory, combine, offer, opened, portions
from drumbeat.collectives.order import fold


def noise(seed: int, size: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal(size) * 10 ** random.uniform(-4, 4, size)).astype(np.float32)


@pytest.mark.parametrize("workers", range(2, 10))
def test_the_order_is_that_of_the_tree_however_arrays_are_cut(workers: int) -> None:
    parts = [noise(rank, 1000) for rank in range(workers)]
    expected = fold(
        (0, workers), lambda node: parts[node[0]] if node[1] - node[0] == 1 else None, np.add
    )
    for cut in (1, 3, 1000):
        out = np.empty_like(parts[0])
        for start in range(0, 1000, 1000 // cut):
            piece = slice(start, start + 1000 // cut)
            combine("sum", [part[piece] for part in parts], out[piece])
        assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("op", ["min", "max"])
def test_extremes_keep_what_is_not_a_number(op: str) -> None:
    parts = [np.float32([1, np.nan, -3]), np.float32([2, 0, -4]), np.float32([0, 5, np.inf])]
    out = np.empty(3, np.float32)
    combine(op, parts, out)
    expected = {"min": [0, np.nan, -4], "max": [2, np.nan, np.inf]}[op]
    np.testing.assert_array_equal(out, np.float32(expected))


def test_a_bucket_is_cut_to_slots_and_put_together_again() -> None:
    arrays = [noise(i, size) for i, size in enumerate((10, SLOT_BYTES // 2, 0, 7, 100_000))]
    (bucket,) = plan([("float32", len(a), 4) for a in arrays])
    flat = np.zeros(bucket.size_bytes, np.uint8).view(np.float32)
    slot = np.zeros(SLOT_BYTES, np.uint8)
    parts = portions(bucket)
    assert len(parts) == 3
    for part in parts:
        part.write(arrays, slot)
        part.of(flat)[:] = part.views([slot], np.float32)[0]
    for place, array in zip(bucket.slots, arrays, strict=True):
        start = place.offset_bytes // 4
        np.testing.assert_array_equal(flat[start : start + len(array)], array)


OTHER = """
import sys
import numpy as np
from drumbeat.collectives.node import NodeMemory, opened
fd = opened(np.array([int(text) for text in sys.argv[1:]], np.int64))
print("none" if fd is None else NodeMemory(fd, 2).next_turn()[1][:3].tolist())
"""


def seen_by_another_process(offered: np.ndarray) -> str:
    command = [sys.executable, "-c", OTHER, *map(str, offered.tolist())]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.mark.timeout(60)
def test_another_process_finds_the_memory_and_no_other_file() -> None:
    offered = offer()
    fd = opened(offered)
    if fd is None:
        pytest.skip("this system has no files without a name")
    slots = NodeMemory(fd, 2).next_turn()
    slots[1][:3] = [4, 5, 6]
    assert seen_by_another_process(offered) == "[4, 5, 6]"
    assert opened(offered + [0, 0, 1]) is not None  # its own: nothing to confuse
    assert seen_by_another_process(offered + [0, 0, 1]) == "none"
    assert opened(np.zeros(3, np.int64)) is None


def test_turns_alternate() -> None:
    fd = opened(offer())
    if fd is None:
        pytest.skip("this system has no files without a name")
    memory = NodeMemory(fd, 3)
    first, second, third = memory.next_turn(), memory.next_turn(), memory.next_turn()
    assert len(first) == 3
    first[2][0] = 9
    assert (second[2][0], third[2][0]) == (0, 9)
