"""What a graph says of the rows along the first axis of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from drumbeat.errors import DataError
from drumbeat.training import first_axis

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(60)]

WEIGHT = tf.Variable(tf.ones([4, 3]))


def entries(output: Callable[[Any], Any], rows: int, *, shape: tuple[int, ...]) -> Any:
    """The entries of each row of `output` for a batch of that shape, or None where unknown."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None] * len(shape))])
    def step(x: Any) -> Any:
        x = tf.ensure_shape(x, [None, *shape[1:]])
        found = first_axis.entries(output(x), tf.constant(rows, tf.int64))
        return found.of_each, found.are_known

    of_each, are_known = step(tf.ones(shape))
    return int(of_each) if are_known else None


def tokens(x: Any) -> Any:
    return tf.reshape(x, [-1, 4])


def flat_and_on(x: Any) -> Any:
    return tf.nn.silu(tokens(tf.cumsum(x)) @ WEIGHT)


def dense_of_three_axes(x: Any) -> Any:
    return tf.tensordot(x, WEIGHT, 1) + 1.0


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (lambda x: tf.cumsum(x), 1),
        (tokens, 5),
        (flat_and_on, 5),
        (dense_of_three_axes, 1),
        (lambda x: tf.reshape(dense_of_three_axes(x), [-1, 3]), 5),
        (lambda x: tf.reshape(dense_of_three_axes(x), [-1]), 15),
        (lambda x: tf.concat([x, x], 0), None),
        (lambda x: dense_of_three_axes(tf.concat([x, x], 0)), None),
        (lambda x: tf.tile(tokens(x), [2, 1]), None),
        (lambda x: tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, 4]), None),
        (lambda x: x[:1], None),
    ],
)
def test_rows_are_told_where_a_tensor_that_has_them_is_reshaped(output, expected):
    assert entries(output, 3, shape=(3, 5, 4)) == expected


def test_a_row_that_stands_in_for_none_counts_as_one():
    assert entries(tokens, 0, shape=(1, 5, 4)) == 5
    assert entries(lambda x: x, 0, shape=(1, 5, 4)) == 1
    assert entries(lambda x: x, 0, shape=(0, 5, 4)) == 1
    assert entries(lambda x: tf.concat([x, x], 0), 0, shape=(1, 5, 4)) is None


@pytest.mark.parametrize(
    "output",
    [
        lambda x: x @ tf.transpose(x),
        lambda x: 2.0 * tf.matmul(x, x, transpose_b=True),
        lambda x: tf.einsum("nd,md->nm", x, x),
        lambda x: x[:, :1] - tf.transpose(x[:, 1:2]),
        lambda x: tf.reduce_sum(tf.square(x[:, None] - x[None]), -1),
    ],
)
def test_rows_along_two_axes_are_refused(output):
    with pytest.raises(DataError, match=r"has shape \[rows, rows\].*-n 1"):
        entries(output, 3, shape=(3, 4))


def test_without_a_graph_there_has_to_be_one_entry_for_each_row():
    three = tf.constant(3, tf.int64)
    assert first_axis.entries(tf.ones([3, 2]), three).are_known
    found = first_axis.entries(tf.ones([6, 2]), three)
    assert not found.are_known
    with pytest.raises(DataError, match=r"^a loss .* 6 entries .* 3 rows .* -n 1\. Without run_e"):
        first_axis.check_all(found.are_known, found.count, three)
    assert first_axis.check_all(True, found.count, three) is None
