"""Where each tensor lies in the flat buffers that a collective works on. Pure.

One big all-reduce is cheaper than many small ones, so tensors of a dtype are
laid out one after another. Every tensor starts at a multiple of 64 bytes:
TensorFlow takes over a NumPy array without copying only if it is so aligned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Place of one tensor: its position in the caller's list, its bytes in the bucket."""

    index: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A flat buffer of one dtype, holding tensors in the caller's order."""

    dtype: str
    size_bytes: int
    slots: tuple[Slot, ...]


def plan(
    items: Sequence[tuple[str, int, int]], bucket_bytes: int | None = None
) -> tuple[Bucket, ...]:
    """Lays tensors out in buckets.

    Args:
        items: For each tensor its dtype, its number of elements and the bytes of one.
        bucket_bytes: A bucket takes further tensors only up to this size; a larger
            tensor gets a bucket of its own. None: one bucket for each dtype.

    Returns:
        Buckets in the order of their first tensor. Empty tensors have a slot of
        size 0. Deterministic, so equal input gives equal buckets on every worker.
    """
    filling: dict[str, list[Slot]] = {}
    ends: dict[str, int] = {}
    order: list[tuple[str, list[Slot]]] = []
    for index, (dtype, num_elements, element_bytes) in enumerate(items):
        size = num_elements * element_bytes
        start = _aligned(ends.get(dtype, 0))
        full = bucket_bytes is not None and start + size > bucket_bytes and dtype in filling
        if dtype not in filling or full:
            filling[dtype] = []
            order.append((dtype, filling[dtype]))
            start = 0
        filling[dtype].append(Slot(index=index, offset_bytes=start, size_bytes=size))
        ends[dtype] = start + size
    return tuple(
        Bucket(
            dtype=dtype,
            size_bytes=slots[-1].offset_bytes + slots[-1].size_bytes,
            slots=tuple(slots),
        )
        for dtype, slots in order
    )


def arrival_groups(sizes_bytes: Sequence[int], group_bytes: float) -> tuple[tuple[int, ...], ...]:
    """Which gradients to sum together, the last ones first, as the backward pass makes them.

    Args:
        sizes_bytes: Of each.
        group_bytes: A group is complete when it has as much.

    Returns:
        For each group positions in `sizes_bytes`, in the caller's order.
    """
    groups: list[tuple[int, ...]] = []
    filling: list[int] = []
    for index in reversed(range(len(sizes_bytes))):
        filling.insert(0, index)
        if sum(sizes_bytes[i] for i in filling) >= group_bytes:
            groups.append(tuple(filling))
            filling = []
    if filling:
        groups.append(tuple(filling))
    return tuple(groups)


def _aligned(offset_bytes: int) -> int:
    return -(-offset_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
