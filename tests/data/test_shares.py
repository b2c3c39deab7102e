from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.data.shares import share_of


@pytest.mark.parametrize(
    ("num_rows", "world_size", "expected"),
    [
        (10, 1, [(0, 10)]),
        (10, 2, [(0, 5), (5, 10)]),
        (10, 3, [(0, 4), (4, 7), (7, 10)]),
        (2, 3, [(0, 1), (1, 2), (2, 2)]),
        (0, 2, [(0, 0), (0, 0)]),
        (1, 1, [(0, 1)]),
    ],
)
def test_shares(num_rows: int, world_size: int, expected: list[tuple[int, int]]) -> None:
    assert [share_of(rank, num_rows, world_size) for rank in range(world_size)] == expected


@given(st.integers(0, 10**9), st.integers(1, 1000))
def test_shares_cover_all_rows_once_and_evenly(num_rows: int, world_size: int) -> None:
    shares = [share_of(rank, num_rows, world_size) for rank in range(world_size)]
    assert shares[0][0] == 0
    assert shares[-1][1] == num_rows
    assert all(a[1] == b[0] for a, b in zip(shares, shares[1:], strict=False))
    sizes = [stop - start for start, stop in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
