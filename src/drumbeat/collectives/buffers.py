"""Reusable aligned memory for collectives that never overwrites what is still read."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np

from drumbeat.collectives.buckets import ALIGNMENT_BYTES, Bucket

_KEPT_KEYS = 16
_KEPT_PER_KEY = 3


def _idle_references() -> int:
    # What getrefcount reports for an array that only a list and the loop over it
    # refer to: measured, as it differs among interpreters.
    return next(sys.getrefcount(owner) for owner in [np.empty(1, np.uint8)])


_IDLE = _idle_references()


def _aligned_part(owner: np.ndarray, size_bytes: int) -> np.ndarray:
    start = -owner.ctypes.data % ALIGNMENT_BYTES
    return owner[start : start + size_bytes]


def _new_owner(size_bytes: int) -> np.ndarray:
    return np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)


def aligned_empty(size_bytes: int) -> np.ndarray:
    """Zeroed bytes that start at a multiple of `ALIGNMENT_BYTES`; `.base` owns them."""
    return _aligned_part(_new_owner(size_bytes), size_bytes)


def parts_of(flat: np.ndarray, bucket: Bucket, like: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """The parts of a flat buffer that tensors have.

    Args:
        flat: As long as `bucket`.
        bucket: Where the tensors lie.
        like: Arrays of their dtypes and shapes, by position.

    Returns:
        Views in the order of the bucket, by position.
    """
    return {
        slot.index: flat[slot.offset_bytes : slot.offset_bytes + slot.size_bytes]
        .view(like[slot.index].dtype)
        .reshape(like[slot.index].shape)
        for slot in bucket.slots
    }


class BufferPool:
    """Hands out buffers and takes them back when nobody refers to them any more.

    TensorFlow takes an aligned array returned to it as its tensor's memory,
    without a copy, and keeps a reference to the array until the tensor is gone.
    All views of a buffer refer to one owner array, so the owner's reference
    count tells whether a tensor (or a caller) can still read the buffer. Only
    then is it handed out again. Memory that was touched before needs no page
    faults, which for 100 MB cost as much as the copy into it.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[Hashable, list[np.ndarray]] = OrderedDict()

    def take(self, key: Hashable, size_bytes: int) -> np.ndarray:
        """A buffer of `size_bytes` bytes that no one else can see.

        Args:
            key: Buffers are reused for the same key and size only, so the gaps
                of a layout keep the zeros they started with.
            size_bytes: Its size.
        """
        full_key = (key, size_bytes)
        owners = self._owners.setdefault(full_key, [])
        self._owners.move_to_end(full_key)
        owner = next((o for o in owners if sys.getrefcount(o) == _IDLE), None)
        if owner is None:
            owner = _new_owner(size_bytes)
            # A caller that keeps results for ever owns their memory; forget the oldest.
            owners[:] = [*owners[-(_KEPT_PER_KEY - 1) :], owner]
            while len(self._owners) > _KEPT_KEYS:
                self._owners.popitem(last=False)
        return _aligned_part(owner, size_bytes)

    @property
    def size_bytes(self) -> int:
        """Memory that the pool itself holds on to."""
        return sum(owner.nbytes for owners in self._owners.values() for owner in owners)
