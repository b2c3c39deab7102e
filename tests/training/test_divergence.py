"""How variables that differ between workers are told apart and described."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from drumbeat.training import divergence

pytestmark = pytest.mark.tensorflow

INF = float("inf")
NAN = float("nan")


@pytest.mark.parametrize(
    ("mine", "chiefs", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 3.0], [1.0, 2.0], 0.5),
        ([1.0, -4.0], [1.0, 2.0], 3.0),
        ([1.0, 0.0], [0.0, 0.0], INF),
        ([0.0, -0.0], [0.0, 0.0], 0.0),
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([NAN, 1.0], [1.0, 1.0], INF),
        ([1.0, 1.0], [INF, 1.0], INF),
        ([INF, 1.0], [INF, 1.0], 0.0),
        ([], [], 0.0),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", ml_dtypes.bfloat16])
def test_gap(mine: list[float], chiefs: list[float], expected: float, dtype: Any) -> None:
    assert divergence.gap(np.array(mine, dtype), np.array(chiefs, dtype)) == expected


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_whole_numbers_differ_or_not(dtype: str) -> None:
    assert divergence.gap(np.array([1, 0], dtype), np.array([1, 0], dtype)) == 0.0
    assert divergence.gap(np.array([1, 1], dtype), np.array([1, 0], dtype)) == INF


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16, "int64", "uint8"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (64, 33), (0, 4)])
def test_fingerprint_tells_bytes_apart(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).uniform(1, 100, shape).astype(dtype)
    print_of = divergence.fingerprint
    assert 0 <= print_of(array) < 2**62
    assert print_of(array) == print_of(array.copy())
    for position in range(array.size):
        other = array.copy().reshape(-1)
        other[position] += np.asarray(1, dtype)
        assert print_of(other.reshape(shape)) != print_of(array)


def test_describe() -> None:
    paths = ["a/kernel", "a/bias", "b/kernel"]
    rounding = np.array([[0, 0, 0], [1e-6, 0, 1e-5]])
    assert divergence.describe(paths, rounding) == ""
    assert divergence.describe([], np.zeros([3, 0])) == ""
    one = np.array([[0, 0, 0], [0, 0, 0], [1e-6, 0.25, 0]])
    assert divergence.describe(paths, one) == (
        "a/bias (by up to 0.25 of its largest value), on worker 2"
    )
    several = np.array([[0, 0, 0], [INF, 0, 1], [0, 0, 1]])
    assert divergence.describe(paths, several) == "a/kernel and 1 more, on workers 1, 2"
