from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.collectives.buckets import ALIGNMENT_BYTES, arrival_groups, plan

F = "float32"
I = "int64"  # noqa: E741


@pytest.mark.parametrize(
    ("items", "bucket_bytes", "expected"),
    [
        ([], None, []),
        ([(F, 10, 4)], None, [(F, 40, [(0, 0, 40)])]),
        # The second tensor starts at the next multiple of 64.
        ([(F, 10, 4), (F, 1, 4)], None, [(F, 68, [(0, 0, 40), (1, 64, 4)])]),
        ([(F, 16, 4), (F, 1, 4)], None, [(F, 68, [(0, 0, 64), (1, 64, 4)])]),
        # A bucket for each dtype, in the order of their first tensor.
        (
            [(F, 1, 4), (I, 1, 8), (F, 2, 4)],
            None,
            [(F, 72, [(0, 0, 4), (2, 64, 8)]), (I, 8, [(1, 0, 8)])],
        ),
        # Empty tensors take no room.
        ([(F, 0, 4)], None, [(F, 0, [(0, 0, 0)])]),
        ([(F, 0, 4), (F, 3, 4)], None, [(F, 12, [(0, 0, 0), (1, 0, 12)])]),
        # A limit: exactly full, over it, and a tensor larger than a bucket.
        ([(F, 16, 4), (F, 16, 4)], 128, [(F, 128, [(0, 0, 64), (1, 64, 64)])]),
        (
            [(F, 16, 4), (F, 17, 4)],
            128,
            [(F, 64, [(0, 0, 64)]), (F, 68, [(1, 0, 68)])],
        ),
        (
            [(F, 100, 4), (F, 1, 4), (F, 1, 4)],
            128,
            [(F, 400, [(0, 0, 400)]), (F, 68, [(1, 0, 4), (2, 64, 4)])],
        ),
    ],
)
def test_layout(items: list, bucket_bytes: int | None, expected: list) -> None:
    found = [
        (b.dtype, b.size_bytes, [(s.index, s.offset_bytes, s.size_bytes) for s in b.slots])
        for b in plan(items, bucket_bytes)
    ]
    assert found == expected


ITEMS = st.lists(
    st.tuples(st.sampled_from([(F, 4), (I, 8)]), st.integers(0, 300)).map(
        lambda pair: (pair[0][0], pair[1], pair[0][1])
    ),
    max_size=30,
)


@given(ITEMS, st.none() | st.integers(1, 4096))
def test_every_tensor_has_one_aligned_place_of_its_own(
    items: list, bucket_bytes: int | None
) -> None:
    buckets = plan(items, bucket_bytes)
    slots = sorted((s.index, b.dtype, s.size_bytes) for b in buckets for s in b.slots)
    assert slots == [(i, dtype, n * width) for i, (dtype, n, width) in enumerate(items)]
    for bucket in buckets:
        end = 0
        for slot in bucket.slots:
            assert slot.offset_bytes % ALIGNMENT_BYTES == 0
            assert slot.offset_bytes >= end
            end = slot.offset_bytes + slot.size_bytes
        assert bucket.size_bytes == end
        if bucket_bytes is not None and len(bucket.slots) > 1 and end > bucket_bytes:
            assert all(s.size_bytes == 0 for s in bucket.slots[1:])


@pytest.mark.parametrize(
    ("sizes", "group_bytes", "groups"),
    [
        ([], 10, ()),
        ([5], 10, ((0,),)),
        ([100, 1, 1], 10, ((0, 1, 2),)),
        ([1, 100, 1], 10, ((1, 2), (0,))),
        ([4, 4, 4, 4, 4], 8, ((3, 4), (1, 2), (0,))),
        ([0, 0], 1, ((0, 1),)),
    ],
)
def test_the_last_gradients_are_summed_first(
    sizes: list[int], group_bytes: float, groups: tuple[tuple[int, ...], ...]
) -> None:
    assert arrival_groups(sizes, group_bytes) == groups
