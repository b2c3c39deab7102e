"""Sums through memory that the workers of one machine share.

MPI moves every byte between two processes through its own buffers, and adds after
that. Here each worker writes its addends where the others read them, all wait until
all have written, and each adds for itself: one copy, one wait, one pass.

Measured on 2 cores of an AMD EPYC (Zen 4), 2 workers, against MPI_Iallreduce with the
same wait before it: 30 and 77 µs for 217 kB, 81 and 220 µs for 1 MB, 14.5 and 61 ms for
100 MB.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from drumbeat.collectives.buckets import Bucket
from drumbeat.collectives.order import split

SLOT_BYTES = 1 << 20
"""What a worker writes at a time. Half, twice and four times of it took 9, 11 and 59%
longer for 100 MB: small enough for a core's cache, large enough for few waits."""

_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class NodeMemory:
    """Two sets of slots, a slot for each worker of a machine, that take turns.

    Whoever has waited for all to write their slots of a turn knows that all have read
    those of the turn before. So with two sets nobody overwrites what is still read.

    A file without a name (memfd_create(2)): nothing is left behind, and the size of
    /dev/shm is no limit.
    """

    def __init__(self, fd: int, workers: int) -> None:
        """Args: descriptor of the file, how many share it."""
        size_bytes = 2 * workers * SLOT_BYTES
        if os.fstat(fd).st_size < size_bytes:
            os.ftruncate(fd, size_bytes)
        whole = np.frombuffer(mmap.mmap(fd, size_bytes), np.uint8)
        slots = whole.reshape(2, workers, SLOT_BYTES)
        self._sets = [list(slots[0]), list(slots[1])]
        self._turn = 0

    def next_turn(self) -> list[np.ndarray]:
        """The slots of the next turn, by rank."""
        self._turn ^= 1
        return self._sets[self._turn]


def offer() -> np.ndarray:
    """How the others find a new file of this process: its pid, descriptor and inode.

    Zeros if the system has no such files.
    """
    if not hasattr(os, "memfd_create"):
        return np.zeros(3, np.int64)
    try:
        fd = os.memfd_create("drumbeat-collectives")
    except OSError:
        return np.zeros(3, np.int64)
    return np.array([os.getpid(), fd, os.fstat(fd).st_ino], np.int64)


def opened(offered: np.ndarray) -> int | None:
    """Descriptor of the file that a process has offered; None if it can't be had."""
    pid, fd, inode = offered.tolist()
    if not inode:
        return None
    if pid == os.getpid():
        return fd
    try:
        mine = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    # Another process has this number where the two don't see the same processes.
    if os.fstat(mine).st_ino == inode:
        return mine
    os.close(mine)
    return None


def combine(op: str, parts: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Combines arrays element by element, in the order of `collectives.order`.

    It depends on their number alone: not on their sizes, on how they were cut, nor on
    who does it.

    Args:
        op: "sum", "min" or "max".
        parts: At least two, alike in dtype and shape.
        out: Where the result goes; none of the parts.
    """
    with np.errstate(all="ignore"):
        _combine(_UFUNCS[op], parts, out)


def _combine(ufunc: np.ufunc, parts: Sequence[np.ndarray], out: np.ndarray) -> None:
    (_, middle), (_, end) = split((0, len(parts)))
    left, right = parts[:middle], parts[middle:end]
    if middle == 1:
        ufunc(left[0], right[0], out=out)
        return
    _combine(ufunc, left, out)
    if len(right) == 1:
        ufunc(out, right[0], out=out)
        return
    other = np.empty_like(out)
    _combine(ufunc, right, other)
    ufunc(out, other, out=out)


class Portion:
    """A part of a bucket that fits a slot.

    Args:
        bucket: Where the tensors lie in a flat buffer.
        first: Of its bytes, the first one in this part.
        size_bytes: Of the part.
    """

    def __init__(self, bucket: Bucket, first: int, size_bytes: int) -> None:
        self.first, self.end = first, first + size_bytes
        self.size_bytes = size_bytes
        self._pieces: list[tuple[int, int, int, int]] = []
        for slot in bucket.slots:
            start = max(first, slot.offset_bytes)
            stop = min(self.end, slot.offset_bytes + slot.size_bytes)
            if start < stop:
                at = start - first
                own = start - slot.offset_bytes
                self._pieces.append((slot.index, at, own, stop - start))

    def write(self, arrays: Sequence[Any], slot: np.ndarray) -> None:
        """Copies the part's elements from where `arrays`, flat, have them."""
        for index, at, own, size_bytes in self._pieces:
            array = arrays[index]
            width = array.itemsize
            part = slot[at : at + size_bytes].view(array.dtype)
            np.copyto(part, array[own // width : (own + size_bytes) // width])

    def views(self, slots: Sequence[np.ndarray], dtype: Any) -> list[np.ndarray]:
        """What each of `slots` has of the part."""
        return [slot[: self.size_bytes].view(dtype) for slot in slots]

    def of(self, flat: np.ndarray) -> np.ndarray:
        """The part of a flat array of the whole bucket."""
        return flat[self.first // flat.itemsize : self.end // flat.itemsize]


def portions(bucket: Bucket) -> tuple[Portion, ...]:
    """The bucket cut to what fits slots, in order."""
    starts = range(0, bucket.size_bytes, SLOT_BYTES)
    return tuple(Portion(bucket, s, min(SLOT_BYTES, bucket.size_bytes - s)) for s in starts)
