"""Sketches stand for tensors: linear, and as far apart as they are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from drumbeat.cluster.recording import SKETCH_SIZE
from drumbeat.training.sketch import checksum, norm, ragged_rows, row_digests, sketch

RANDOM = np.random.default_rng(0)


def test_a_small_tensor_is_kept_as_it_is():
    array = RANDOM.normal(size=(4, 16)).astype(np.float32)
    assert sketch(array) == tuple(array.astype(np.float64).reshape(-1))
    assert sketch(np.array(2.5, ml_dtypes.bfloat16)) == (2.5,)


@pytest.mark.parametrize("size", [SKETCH_SIZE + 1, 1000, 65_536])
def test_a_sketch_is_linear(size):
    a, b = RANDOM.normal(size=(2, size))
    assert np.allclose(sketch(3 * a - b), 3 * np.array(sketch(a)) - np.array(sketch(b)))
    assert len(sketch(a)) == SKETCH_SIZE


@pytest.mark.parametrize("change", ["everywhere", "one entry", "one row"])
def test_the_distance_of_sketches_is_that_of_the_tensors(change):
    a = RANDOM.normal(size=(300, 70))
    b = a.copy()
    where = {"everywhere": np.s_[:], "one entry": np.s_[7, 8], "one row": np.s_[9]}[change]
    b[where] += 1e-6 * RANDOM.normal(size=b[where].shape)
    estimate = np.linalg.norm(np.subtract(sketch(a), sketch(b)))
    assert estimate == pytest.approx(np.linalg.norm(a - b), rel=0.4)


def test_norm_and_checksum():
    array = np.array([[3.0, 4.0]], np.float32)
    assert norm(array) == 5
    assert checksum(array) == checksum(array.copy())
    assert checksum(array) != checksum(np.nextafter(array, np.float32(9)))


def test_rows_have_one_digest_each_over_all_leaves():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    y = np.array([b"a", b"b", b"a", b"a"], object)
    digests = row_digests([x, y])
    assert len(set(digests)) == 4
    assert row_digests([x[1:3], y[1:3]]) == digests[1:3]
    assert row_digests([x, y[::-1]])[1] != digests[1]
    assert row_digests([x[:0], y[:0]]) == ()


def test_ragged_rows_have_digests_of_their_own():
    """Rows [[a, b], [c]], [[a], [b, c]], [] and the first one again."""
    flat = np.array([b"a", b"b", b"c", b"a", b"b", b"c", b"a", b"b", b"c"], object)
    splits = [np.array([0, 2, 4, 4, 6]), np.array([0, 2, 3, 4, 6, 8, 9])]
    digests = row_digests([ragged_rows(flat, splits)])
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3
    last = ragged_rows(flat[6:], [np.array([0, 2]), np.array([0, 2, 3])])
    assert row_digests([last]) == digests[3:]
