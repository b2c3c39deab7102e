"""The networks in Keras, for any of its generations and backends."""

from __future__ import annotations

import time
from typing import Any

from workloads import (
    BLOCKS,
    FEATURES,
    HEADS,
    LENGTH,
    SEEN,
    STAGES,
    TABLE_ROWS,
    TABLE_WIDTH,
    VOCABULARY,
    WIDTH,
    WORKLOADS,
    FirstWeights,
)

BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}


def cnn(keras: Any) -> Any:
    """TensorFlow's multi-worker tutorial, with 8 filters."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def dense(keras: Any) -> Any:
    layers = keras.layers
    hidden = [layers.Dense(width, activation="relu") for width in (4096, 4096, 1200)]
    return keras.Sequential(
        [layers.Input((28, 28, 1)), layers.Flatten(), *hidden, layers.Dense(10)]
    )


def resnet(keras: Any) -> Any:
    """ResNet-50 (He et al. 2016), with the stride in the middle of a block."""
    layers = keras.layers

    def convolution(x: Any, filters: int, size: int, stride: int) -> Any:
        if size > 1:
            x = layers.ZeroPadding2D(size // 2)(x)
        x = layers.Conv2D(filters, size, stride, use_bias=False)(x)
        return layers.BatchNormalization(**BATCH_NORM)(x)

    def bottleneck(x: Any, filters: int, stride: int) -> Any:
        y = layers.ReLU()(convolution(x, filters, 1, 1))
        y = layers.ReLU()(convolution(y, filters, 3, stride))
        y = convolution(y, 4 * filters, 1, 1)
        if x.shape[-1] != 4 * filters:
            x = convolution(x, 4 * filters, 1, stride)
        return layers.ReLU()(layers.Add()([x, y]))

    inputs = layers.Input((SEEN, SEEN, 3))
    x = layers.ReLU()(convolution(inputs, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for filters, blocks, stride in STAGES:
        for block in range(blocks):
            x = bottleneck(x, filters, stride if block == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(1000)(x))


def transformer(keras: Any) -> Any:
    """Predicts each next word; normalises before each part of a block."""
    layers = keras.layers

    class Positions(layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(
                name="positions", shape=(LENGTH, WIDTH), initializer="zeros"
            )
            super().build(shape)

        def call(self, x: Any) -> Any:
            return x + self.table

    inputs = layers.Input((LENGTH,), dtype="int32")
    x = Positions()(layers.Embedding(VOCABULARY, WIDTH)(inputs))
    for _ in range(BLOCKS):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        x = layers.Add()([x, attention(y, y, use_causal_mask=True)])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="relu")(y))
        x = layers.Add()([x, y])
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(inputs, layers.Dense(VOCABULARY)(x))


def recommender(keras: Any) -> Any:
    layers = keras.layers
    inputs = layers.Input((FEATURES,), dtype="int32")
    found = [
        layers.Embedding(TABLE_ROWS, TABLE_WIDTH)(inputs[:, feature]) for feature in range(FEATURES)
    ]
    x = layers.Dense(64, activation="relu")(layers.Concatenate()(found))
    return keras.Model(inputs, layers.Dense(1)(x))


def images(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((SEEN, SEEN, 3)),
            layers.Conv2D(16, 3, 2, activation="relu"),
            layers.Conv2D(32, 3, 2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def sleep(keras: Any, sleep_ms: float) -> Any:
    """A small network with a layer that sleeps (TensorFlow only)."""
    import tensorflow as tf

    def nap() -> Any:
        time.sleep(sleep_ms / 1e3)
        return 0.0

    class Sleep(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            with tf.control_dependencies([tf.numpy_function(nap, [], tf.float64)]):
                return tf.identity(x)

    layers = keras.layers
    return keras.Sequential([layers.Input((100,)), Sleep(), layers.Dense(10)])


def compiled(keras: Any, name: str, sleep_ms: float = 0) -> Any:
    """The network `name`, with its first weights, loss and optimizer."""
    model = sleep(keras, sleep_ms) if name == "sleep" else globals()[name](keras)
    random = FirstWeights()
    for weight in model.trainable_weights:
        label = getattr(weight, "path", weight.name)
        if "bias" in label or "beta" in label:
            weight.assign(0 * weight)
        elif "gamma" not in label:
            weight.assign(random.next(tuple(weight.shape)))
    workload = WORKLOADS[name]
    optimizer = {
        "sgd": lambda: keras.optimizers.SGD(workload.rate),
        "momentum": lambda: keras.optimizers.SGD(workload.rate, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(workload.rate),
    }[workload.optimizer]()
    if name == "recommender":
        model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
    return model
