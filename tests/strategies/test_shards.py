"""Variables in parts: gradients cut and put together again."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from drumbeat.strategies import shards
from drumbeat.tf_internals import ShardedVariable

pytestmark = pytest.mark.tensorflow


def in_parts(rows: int, parts: int) -> tuple[ShardedVariable, np.ndarray]:
    whole = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    return ShardedVariable([tf.Variable(part) for part in np.array_split(whole, parts)]), whole


@pytest.mark.parametrize(("rows", "parts"), [(2, 2), (7, 3), (13, 5), (4, 1)])
@pytest.mark.parametrize("indices", [[], [0], [1, 0, 1], "all"])
def test_rows_go_to_the_part_that_they_are_of(rows: int, parts: int, indices: object) -> None:
    variable, whole = in_parts(rows, parts)
    numbers = np.arange(rows)[::-1] if indices == "all" else np.array(indices, np.int64)
    values = np.random.default_rng(1).normal(size=(len(numbers), 2)).astype(np.float32)
    given = tf.IndexedSlices(values, tf.constant(numbers, tf.int64))
    expected = whole.copy()
    np.add.at(expected, numbers, values)

    split = shards.split(given, variable)
    for part, of_part in zip(shards.parts_of(variable), split, strict=True):
        part.scatter_add(of_part)
    np.testing.assert_allclose(tf.concat(shards.parts_of(variable), 0), expected, rtol=1e-6)

    joined = shards.join(split, shards.starts_of(variable))
    again = np.zeros_like(whole)
    np.add.at(again, joined.indices.numpy(), joined.values.numpy())
    np.testing.assert_allclose(again, expected - whole, rtol=1e-5, atol=1e-5)


def test_dense_gradients_and_parts_without_any() -> None:
    variable, whole = in_parts(5, 2)
    split = shards.split(tf.constant(whole), variable)
    assert [tuple(part.shape) for part in split] == [(3, 2), (2, 2)]
    starts = shards.starts_of(variable)
    np.testing.assert_array_equal(shards.join(split, starts), whole)
    half = shards.join([None, split[1]], starts)
    np.testing.assert_array_equal(half, np.concatenate([np.zeros((3, 2)), whole[3:]]))
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))
    mixed = shards.join([rows, split[1]], starts)
    np.testing.assert_array_equal(mixed[1], [1.0, 1.0])
    assert shards.join([None, None], starts) is None


def test_what_is_not_of_the_shape_of_the_whole_stays_as_it_is() -> None:
    variable, _ = in_parts(4, 2)
    rate = tf.constant(0.1)
    assert all(part is rate for part in shards.split(rate, variable))
    assert shards.split(None, variable) == [None, None]


def test_a_part_is_at_hand_only_within_its_update() -> None:
    assert shards.current() is None
    with shards.at(1):
        assert shards.current() == 1
        with shards.at(0):
            assert shards.current() == 0
        assert shards.current() == 1
    assert shards.current() is None


def test_a_part_knows_its_whole() -> None:
    variable, _ = in_parts(4, 2)
    assert shards.whole_of(variable.variables[1]) is variable
    alone = tf.Variable(1.0)
    assert shards.whole_of(alone) is alone
