"""Layers that take the rows of a batch together are told, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from drumbeat.training import divergence, row_marks, row_mixing

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(120)]
Call = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    row_mixing._said.clear()
    divergence._said_of_drift.clear()
    yield
    row_mixing._said.clear()
    divergence._said_of_drift.clear()


class Own(keras.layers.Layer):
    """A layer of a user's own; some have a `count`, a `state` or a meter."""

    def __init__(self, function: Any) -> None:
        super().__init__(name="own")
        self.built = True
        self.function = function
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
        self.state = tf.Variable(tf.zeros([4]), trainable=False)
        self.meter = keras.metrics.Mean(name="meter")
        self.norm = keras.layers.BatchNormalization()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs: Any) -> Any:
        return self.function(self, inputs)


def said_of(layer: Any, caplog: pytest.LogCaptureFixture, *before: Any) -> str:
    inputs = keras.Input((4,))
    outputs = inputs
    for each in (*before, layer, keras.layers.Flatten(), keras.layers.Dense(2)):
        outputs = each(outputs)
    model = keras.Model(inputs, outputs)

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        outputs = model(x, training=True)
        row_mixing.look(model, [outputs])
        return outputs

    with caplog.at_level("WARNING", "drumbeat"):
        step.get_concrete_function(tf.TensorSpec([None, 4], tf.float32))
    return caplog.text


def _by_a_function(_: Any, z: Any) -> Any:
    return tf.function(lambda z: z - tf.reduce_mean(z, 0))(z)


@pytest.mark.parametrize(
    "function",
    [
        lambda _, z: z - tf.reduce_mean(z, 0, keepdims=True),
        lambda _, z: z / tf.reduce_max(tf.abs(z)),
        lambda _, z: z * tf.nn.softmax(z, axis=0),
        lambda _, z: (z - tf.nn.moments(z, [0])[0]) * 2,
        lambda _, z: tf.nn.softmax(tf.matmul(z, z, transpose_b=True)) @ z,
        lambda _, z: z @ tf.matmul(z, z, transpose_a=True),
        lambda _, z: z + tf.random.shuffle(z),
        _by_a_function,
        lambda _, z: z - keras.ops.mean(z, axis=0),
    ],
)
def test_what_takes_rows_together_is_told(function: Call, caplog):
    assert "The layer own takes the rows of a batch together" in said_of(Own(function), caplog)


@pytest.mark.parametrize(
    "layer", [keras.layers.Softmax(axis=0, name="own"), keras.layers.MixUp(name="own")]
)
def test_keras_layers_that_are_told_to_do_so(layer: Any, caplog):
    before = [keras.layers.Reshape((2, 2, 1))] if isinstance(layer, keras.layers.MixUp) else []
    assert "The layer own takes the rows" in said_of(layer, caplog, *before)


def _counts(own: Any, z: Any) -> Any:
    own.count.assign_add(tf.cast(tf.shape(z)[0], "float32"))
    return z


def _follows(own: Any, z: Any) -> Any:
    own.state.assign(0.9 * own.state + 0.1 * tf.reduce_mean(z, 0))
    return z


@pytest.mark.parametrize(("function", "path"), [(_counts, "own/count"), (_follows, "own/state")])
def test_variables_that_follow_the_rows_are_told(function: Call, path: str, caplog):
    assert f"{path} is worked out from each worker's own rows" in said_of(Own(function), caplog)


@pytest.mark.parametrize(
    "draw",
    [
        lambda z: tf.random.normal(tf.shape(z), seed=7),
        lambda z: tf.random.uniform([tf.shape(z)[0], 4]),
        lambda z: tf.random.stateless_normal(tf.shape(z), [1, 2]),
        lambda z: tf.nn.dropout(z, 0.5),
    ],
)
def test_numbers_that_tensorflow_draws_for_rows_are_told(draw: Call, caplog):
    said = said_of(Own(lambda _, z: z + draw(z)), caplog)
    assert "The layer own draws random numbers for the rows of a batch" in said


def _metered(own: Any, z: Any) -> Any:
    own.meter.update_state(tf.abs(z))
    own.count.assign_add(1.0)
    return own.norm(z)


def _adds(own: Any, z: Any) -> Any:
    own.add_loss(tf.reduce_sum(tf.reduce_mean(z, 0) ** 2))
    # As drumbeat has Keras draw.
    shape = (tf.shape(z)[0], 4)
    return z + row_marks.drawn(lambda: keras.random.normal(shape, seed=own.seeds))


def _attends(_: Any, z: Any) -> Any:
    z = tf.reshape(z, [tf.shape(z)[0], 2, 2])
    weights = tf.nn.softmax(tf.matmul(z, z, transpose_b=True))
    return tf.transpose(tf.matmul(weights, tf.transpose(z, [0, 2, 1])), [0, 2, 1])


@pytest.mark.parametrize(
    "function",
    [
        _metered,
        _adds,
        _attends,
        lambda _, z: z - tf.reduce_mean(z, -1, keepdims=True),
        lambda _, z: z * tf.reduce_sum(tf.random.normal([3, 4]), 0),
        lambda _, z: tf.ensure_shape(z, [None, 4])[:, ::2],
        lambda _, z: z * tf.cast(tf.sequence_mask(tf.cast(z[:, 0], "int32"), 4), "float32"),
        lambda _, z: tf.concat([z, tf.zeros([tf.shape(z)[0], 1])], 1),
    ],
)
def test_nothing_is_said_of_what_keeps_them_apart(function: Call, caplog):
    assert not said_of(Own(function), caplog)


@pytest.mark.parametrize(
    "layers",
    [
        [keras.layers.BatchNormalization(), keras.layers.Dropout(0.1), keras.layers.Softmax()],
        [keras.layers.Reshape((2, 2)), keras.layers.MultiHeadAttention(2, 2, name="a")],
        [keras.layers.Reshape((2, 2)), keras.layers.LSTM(2, dropout=0.1, recurrent_dropout=0.1)],
        [keras.layers.Reshape((2, 2, 1)), keras.layers.RandomFlip(), keras.layers.Conv2D(2, 2)],
        [keras.layers.Reshape((4, 1)), keras.layers.LayerNormalization()],
        [keras.layers.GaussianNoise(0.1), keras.layers.Lambda(lambda z: tf.nn.softmax(z))],
    ],
)
def test_nothing_is_said_of_keras_layers(layers: Any, caplog):
    *before, last = layers
    if isinstance(last, keras.layers.MultiHeadAttention):
        attention = last
        last = Own(lambda own, z: attention(z, z))
        last.attention = attention
    assert not said_of(last, caplog, *before)


@pytest.mark.parametrize(
    "name",
    [
        "MobileNetV3Small",
        pytest.param("ResNet50", marks=pytest.mark.slow),
        pytest.param("EfficientNetV2B0", marks=pytest.mark.slow),
        pytest.param("ConvNeXtTiny", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_said_of_applications(name: str, caplog):
    model = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=2)

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        outputs = model(x, training=True)
        row_mixing.look(model, [outputs])
        return outputs

    step.get_concrete_function(tf.TensorSpec([None, 32, 32, 3], tf.float32))
    assert not caplog.text


def test_nothing_is_said_of_words(caplog):
    words = keras.layers.TextVectorization(output_sequence_length=3, vocabulary=["a", "b"])
    layers = [words, keras.layers.Embedding(5, 2), keras.layers.GRU(2), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model(np.array([["a b"]]))

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        outputs = model(x, training=True)
        row_mixing.look(model, [outputs])
        return outputs

    step.get_concrete_function(tf.TensorSpec([None, 1], tf.string))
    assert not caplog.text
