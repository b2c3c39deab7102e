"""What is known of the rows of batches before a dataset runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from drumbeat.data.batch_rows import least_rows, usual_rows

pytestmark = pytest.mark.tensorflow


def rows(count: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((np.zeros((count, 3)), np.zeros(count)))


def said(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "short last batch": (lambda: rows(70).batch(32), 6),
    "all alike": (lambda: rows(64).batch(32), 32),
    "one short batch": (lambda: rows(5).batch(32), 5),
    "in parallel": (lambda: rows(70).batch(32, num_parallel_calls=2), 6),
    "padded": (lambda: rows(70).padded_batch(33), 4),
    "cached and so on": (
        lambda: rows(70).shuffle(9).batch(32).cache().shuffle(3).prefetch(2).repeat(2).take(3),
        6,
    ),
    "without the last": (lambda: rows(70).batch(32, drop_remainder=True).map(lambda a, b: a), 32),
    "endless": (lambda: rows(70).repeat().batch(32), 32),
    "unknown number": (lambda: rows(70).filter(lambda a, b: True).batch(32), 1),
    "a number that is only said": (lambda: said(rows(70), 70).map(lambda a, b: a).batch(32), 1),
    "batches changed": (lambda: rows(70).batch(32).map(lambda a, b: (a[:0], b[:0])), 0),
    "batches left out": (lambda: rows(70).batch(32).filter(lambda a, b: True), 0),
    "no dataset": (lambda: np.zeros(5), 0),
    "numbers without a batch": (lambda: tf.data.Dataset.range(5), 0),
}


@pytest.mark.parametrize("case", CASES)
def test_least_rows(case: str) -> None:
    make, least = CASES[case]
    assert least_rows(make()) == least


@pytest.mark.parametrize(
    ("make", "usual"),
    [
        (lambda: rows(70).batch(32).map(lambda a, b: (a + 1, b)).cache().prefetch(2), 32),
        (lambda: rows(70).padded_batch(33), 33),
        (lambda: rows(64).batch(32, drop_remainder=True), 32),
        (lambda: rows(70).batch(32).filter(lambda a, b: True), 0),
        (lambda: np.zeros(5), 0),
    ],
)
def test_usual_rows(make: Callable[[], Any], usual: int) -> None:
    assert usual_rows(make()) == usual
