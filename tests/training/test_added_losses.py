"""What layers add to the loss is told by the graph: means and sums over rows, and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from drumbeat.training import added_losses, step_rows
from drumbeat.training.added_losses import MEAN, SUM
from drumbeat.training.replaying import NotRepeatable, Replay, again

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(120)]

Added = Callable[[Any], Any]
WEIGHT = tf.Variable(tf.ones([3, 3]))


def rows_of(z: Any) -> Any:
    return tf.cast(tf.shape(z)[0], z.dtype)


@tf.function
def _sum_elsewhere(z: Any) -> Any:
    return 0.1 * tf.reduce_sum(tf.square(z))


def meaning(added: Added) -> str | None:
    spec = tf.TensorSpec([None, 3], tf.float32)
    graph = tf.function(added, autograph=False).get_concrete_function(spec).graph
    rows = step_rows.of(graph, step_rows.Layers(()))
    strategy: Any = None  # is asked for values only
    return added_losses._meaning(graph.outputs[0], Replay(rows, strategy))


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (lambda z: 0.1 * tf.reduce_mean(tf.square(z)), MEAN),
        (lambda z: tf.reduce_sum(tf.square(WEIGHT)), MEAN),
        (lambda z: tf.reduce_sum(z * z) / rows_of(z), MEAN),
        (lambda z: tf.reduce_sum(z * z / rows_of(z)), MEAN),
        (lambda z: tf.math.divide_no_nan(tf.reduce_sum(z), tf.maximum(rows_of(z), 1)), MEAN),
        (lambda z: tf.reduce_sum(z) / tf.cast(tf.size(z), z.dtype), MEAN),
        (lambda z: -tf.reduce_mean(tf.reduce_sum(z @ WEIGHT, -1)) / 2, MEAN),
        (lambda z: tf.reduce_sum(tf.reduce_mean(z, 0)), MEAN),
        (lambda z: tf.reduce_mean(z) + 0.1 * tf.reduce_sum(WEIGHT), MEAN),
        (lambda z: 0.1 * tf.reduce_sum(tf.square(z)), SUM),
        (lambda z: tf.nn.l2_loss(z @ WEIGHT), SUM),
        (lambda z: tf.reduce_sum(z) - tf.reduce_sum(tf.abs(z)), SUM),
        (lambda z: tf.reduce_mean(tf.reduce_sum(z, 0)), SUM),
        (lambda z: tf.reduce_sum(tf.reshape(z, [-1])), SUM),
        (_sum_elsewhere, SUM),
        (lambda z: tf.reduce_sum(z) + tf.reduce_mean(z), None),
        (lambda z: tf.reduce_sum(tf.nn.softmax(z, 0) * z), None),
        (lambda z: tf.reduce_sum(tf.reduce_mean(z, 0) ** 2), None),
        (lambda z: tf.reduce_sum(z * tf.reduce_mean(z, 0)), None),
        (lambda z: tf.reduce_sum(z) * rows_of(z), None),
        (lambda z: tf.norm(z), None),
        (lambda z: tf.reduce_max(z), None),
        (lambda z: tf.reduce_sum(z) / tf.reduce_sum(tf.abs(z)), None),
    ],
)
def test_means_and_sums_are_told_from_others(added, expected):
    assert meaning(added) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: tf.concat([a, b], 1),
        lambda a, b: tf.squeeze(a[:, :1], 1) + b[:, 0],
        lambda a, b: tf.add_n([a, b, a]),
        lambda a, b: tf.stack(tf.split(a, 3, 1)) + tf.one_hot(tf.argmax(b, 1), 1, 2.0),
        lambda a, b: tf.where(a > b, a, b)[..., ::2],
        lambda a, b: tf.einsum("ij,kj->ik", a, b) + tf.matmul(a, b, transpose_b=True),
        lambda a, b: tf.transpose(tf.cumsum(a, 1, reverse=True)) + tf.reduce_max(b),
        lambda a, b: tf.gather(a, [1, 0], axis=1) - tf.nn.top_k(b, 2).values,
    ],
)
def test_what_is_done_once_more_is_the_same(function):
    a, b = tf.random.normal([4, 3]), tf.random.normal([4, 3])

    @tf.function
    def twice(a: Any, b: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(a)
            first = function(a, b)
        done: dict[str, Any] = {}
        with tf.GradientTape() as second_tape:
            second_tape.watch(a)
            for operation in first.graph.get_operations():
                inputs = [done.get(each.name, each) for each in operation.inputs]
                if operation.type in ("Const", "Placeholder"):
                    continue
                made = again(operation, inputs)
                for before, after in zip(operation.outputs, made, strict=True):
                    done[before.name] = after
                if first.name in done:
                    break
            second = done[first.name]
        return (first, tape.gradient(first, a)), (second, second_tape.gradient(second, a))

    for one, two in zip(*twice(a, b), strict=True):
        tf.debugging.assert_equal(one, two)


def test_what_draws_or_has_a_state_is_not_done_once_more():
    graph = tf.function(lambda: tf.random.normal([2])).get_concrete_function().graph
    operation = next(each for each in graph.get_operations() if "Random" in each.type)
    with pytest.raises(NotRepeatable):
        again(operation, list(operation.inputs))
