"""What keeps rows apart is told from what mixes them, by the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from drumbeat.training.rowwise import is_rowwise, is_rowwise_function

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(120)]

Loss = Callable[[Any, Any], Any]
WEIGHT = tf.Variable(tf.ones([3, 3]))


@tf.function
def _by_a_function_of_its_own(a: Any, b: Any) -> Any:
    return tf.reduce_mean(tf.abs(a - b), -1)


def _masked(a: Any, b: Any) -> Any:
    mask = tf.cast(a > 0, b.dtype)
    return tf.reduce_sum(tf.square(a - b) * mask, -1) / tf.maximum(tf.reduce_sum(mask, -1), 1.0)


def _of_pixels(a: Any, b: Any) -> Any:
    rows = tf.shape(b)[0]
    a, b = tf.reshape(a, [rows, -1]), tf.reshape(b, [rows, -1])
    return 1 - 2 * tf.reduce_sum(a * b, 1) / (tf.reduce_sum(a + b, 1) + 1.0)


def _of_tokens(a: Any, b: Any) -> Any:
    labels = tf.cast(a[..., 0], tf.int32)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, b)
    return tf.reduce_sum(each, 1) / tf.cast(tf.shape(b)[1], b.dtype)


def _triplet(_: Any, b: Any) -> Any:
    near = tf.reduce_sum(tf.square(b[:, 0] - b[:, 1]), -1)
    return tf.maximum(0.0, 1 + near - tf.reduce_sum(tf.square(b[:, 0] - b[:, 2]), -1))


def _quantile(a: Any, b: Any) -> Any:
    error = a - b
    return tf.reduce_mean(tf.where(error > 0, 0.9 * error, -0.1 * error), -1)


def _with_keras(a: Any, b: Any) -> Any:
    return keras.losses.huber(a, b) + keras.ops.mean(keras.ops.square(a - b), axis=-1)


def _with_weights(_: Any, b: Any) -> Any:
    return tf.reduce_sum(tf.einsum("nd,de->ne", b, WEIGHT) * (b @ WEIGHT), -1)


def _in_pieces(a: Any, b: Any) -> Any:
    first, rest = tf.split(b, [1, 2], -1)
    stacked = tf.stack([first[:, 0], rest[:, 0]], -1)
    found = tf.gather(tf.constant([1.0, 2.0, 3.0]), tf.argmax(b, -1))
    return found * tf.reduce_sum(tf.concat([stacked, a], -1), -1) * tf.ones([tf.shape(b)[0]])


FLAT = (3,)
ROWWISE: list[tuple[Loss, tuple[int | None, ...]]] = [
    (lambda a, b: tf.reduce_mean(tf.square(a - b), axis=-1), FLAT),
    (lambda a, b: tf.reduce_mean(tf.square(a - b), axis=[1, 2]), (4, 3)),
    (lambda a, b: tf.nn.softmax_cross_entropy_with_logits(a, b), FLAT),
    (lambda a, b: tf.nn.softmax_cross_entropy_with_logits(a, b), (None, 3)),
    (lambda a, b: tf.nn.sigmoid_cross_entropy_with_logits(a, b), FLAT),
    (lambda a, b: -tf.linalg.diag_part(tf.stack([a, b], 1) @ tf.stack([a, b], 2)), FLAT),
    (keras.losses.binary_crossentropy, FLAT),
    (keras.losses.categorical_crossentropy, FLAT),
    (keras.losses.cosine_similarity, FLAT),
    (_by_a_function_of_its_own, FLAT),
    (_masked, FLAT),
    (_of_pixels, (4, 3)),
    (_of_pixels, (None, 3)),
    (_of_tokens, (None, 3)),
    (_of_tokens, (5, 3)),
    (_triplet, (3, 2)),
    (_quantile, FLAT),
    (_with_keras, FLAT),
    (_with_weights, FLAT),
    (_in_pieces, FLAT),
]


def _in_batch(a: Any, b: Any) -> Any:
    logits = tf.matmul(b, a, transpose_b=True)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(logits)[0]), logits)


def _counts(a: Any, b: Any) -> Any:
    return tf.reduce_mean(tf.abs(a - b), -1) / tf.cast(tf.shape(b)[0], b.dtype)


def _remembers(a: Any, b: Any) -> Any:
    WEIGHT.assign_add(tf.ones([3, 3]))
    return tf.reduce_mean(tf.abs(a - b), -1)


def _makes_a_variable(a: Any, b: Any) -> Any:
    return tf.reduce_mean(tf.abs(a - b) * tf.Variable(1.0), -1)


def _folds(a: Any, b: Any) -> Any:
    return tf.reduce_sum(tf.reshape(a - b, [-1, 6]), -1)


def _raises(a: Any, b: Any) -> Any:
    raise ValueError


MIXES: list[Loss] = [
    lambda a, b: tf.reduce_mean(tf.square(a - b)),
    lambda a, b: tf.reduce_mean(tf.square(a - b), 0),
    lambda a, b: tf.reduce_mean(tf.square(a - b), -1) - tf.reduce_mean(b),
    lambda a, b: tf.reduce_mean(tf.square(a - tf.reduce_mean(b, 0)), -1),
    lambda a, b: tf.reduce_mean(a[:, 0][None] - b[:, :1], -1),
    lambda a, b: tf.reduce_mean(tf.nn.softmax(b, 0), -1),
    lambda a, b: tf.reduce_mean(tf.nn.l2_normalize(b, 0), -1),
    lambda a, b: tf.reduce_mean(tf.sort(b, 0), -1),
    lambda a, b: tf.reduce_mean(b[::-1], -1),
    lambda a, b: tf.reduce_mean(b[1:], -1),
    lambda a, b: tf.reduce_mean(tf.concat([a, b], 0), -1),
    lambda a, b: tf.cumsum(b)[:, 0],
    lambda a, b: tf.reduce_mean(tf.gather(b, tf.cast(a[:, 0], tf.int32)), -1),
    lambda a, b: tf.reduce_mean(tf.transpose(a) * tf.transpose(b), -1),
    lambda a, b: tf.reduce_mean(tf.boolean_mask(b, a[:, 0] > 0), -1),
    lambda a, b: tf.reduce_mean(b + tf.random.normal(tf.shape(b)), -1),
    lambda a, b: tf.reduce_mean(b + tf.random.stateless_normal(tf.shape(b), [1, 2]), -1),
    lambda a, b: tf.reduce_mean(tf.reshape(b, [3, -1]), -1),
    lambda a, b: tf.reshape(b, [-1]),
    lambda a, b: tf.numpy_function(lambda each: each, [b[:, 0]], tf.float32),
    lambda a, b: tf.constant([1.0, 2.0]),
    tf.function(lambda a, b: tf.reduce_mean(b, 0)),
    _in_batch,
    _counts,
    _remembers,
    _makes_a_variable,
    _folds,
    _raises,
]


def _told(loss: Loss, rest: tuple[int | None, ...]) -> bool:
    told: list[bool] = []

    @tf.function(autograph=False)
    def step(a: Any, b: Any) -> None:
        told.append(is_rowwise_function(loss, (a, b)))

    step.get_concrete_function(*[tf.TensorSpec([None, *rest])] * 2)
    return told[0]


@pytest.mark.parametrize("number", range(len(ROWWISE)))
def test_what_keeps_rows_apart_is_known(number: int) -> None:
    assert _told(*ROWWISE[number])


@pytest.mark.parametrize("number", range(len(MIXES)))
def test_what_may_mix_rows_is_known(number: int) -> None:
    before = WEIGHT.numpy()
    assert not _told(MIXES[number], FLAT)
    assert (before == WEIGHT.numpy()).all()


def test_a_function_is_traced_once_and_beside_the_graph() -> None:
    calls = []

    def loss(a: Any, b: Any) -> Any:
        calls.append(a)
        return tf.reduce_mean(tf.abs(a - b), -1)

    @tf.function(autograph=False)
    def step(a: Any, b: Any) -> None:
        before = tf.compat.v1.get_default_graph().as_graph_def().ByteSize()
        assert is_rowwise_function(loss, (a, b))
        assert tf.compat.v1.get_default_graph().as_graph_def().ByteSize() == before

    step.get_concrete_function(*[tf.TensorSpec([None, 3])] * 2)
    assert len(calls) == 1
    assert not is_rowwise_function(loss, (tf.ones([2, 3]), tf.ones([2, 3])))  # No graph.
    assert len(calls) == 1


def test_tensors_within_a_graph_are_followed_from_where_the_rows_are() -> None:
    @tf.function(autograph=False)
    def step(x: Any) -> None:
        rows = tf.cumsum(x)
        assert is_rowwise([rows * 2.0, tf.reduce_sum(rows, -1)], [rows])
        assert not is_rowwise([rows * 2.0], [x])
        assert not is_rowwise([], [x])

    step.get_concrete_function(tf.TensorSpec([None, 3]))
