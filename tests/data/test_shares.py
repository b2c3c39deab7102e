from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.data.shares import Shares, cut


@pytest.mark.parametrize(
    ("units", "num_rows", "expected"),
    [
        ((1,), 10, [(0, 10)]),
        ((1, 1), 10, [(0, 5), (5, 10)]),
        ((1, 1, 1), 10, [(0, 4), (4, 7), (7, 10)]),
        ((1, 1, 1), 2, [(0, 1), (1, 2), (2, 2)]),
        ((1, 1), 0, [(0, 0), (0, 0)]),
        ((1,), 1, [(0, 1)]),
        ((2, 1), 9, [(0, 6), (6, 9)]),
        ((1, 3), 8, [(0, 2), (2, 8)]),
        ((1000, 1), 5, [(0, 5), (5, 5)]),
    ],
)
def test_rows_of_each_worker(
    units: tuple[int, ...], num_rows: int, expected: list[tuple[int, int]]
) -> None:
    shares = Shares(units)
    assert [shares.rows_of(rank, num_rows) for rank in range(len(units))] == expected


@given(st.integers(0, 10**9), st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_all_rows_once_in_proportion(num_rows: int, units: list[int]) -> None:
    shares = Shares(tuple(units))
    ranges = [shares.rows_of(rank, num_rows) for rank in range(len(units))]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_rows
    assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))
    for (start, stop), unit in zip(ranges, units, strict=True):
        assert abs((stop - start) - num_rows * unit / sum(units)) < 1


@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 20))
def test_finer_cuts_nest_in_coarser_ones(num_rows: int, parts: int, factor: int) -> None:
    for part in range(parts + 1):
        assert cut(part, parts, num_rows) == cut(part * factor, parts * factor, num_rows)


def test_units_without_their_common_divisor() -> None:
    assert Shares.of([4, 2, 2]) == Shares((2, 1, 1))
    assert Shares.equal(3) == Shares((1, 1, 1))
