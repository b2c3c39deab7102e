"""Random layers of tf_keras draw on N workers what one worker would draw for the same batch.

Where tf_keras would leave it to stateful operations, whose numbers depend on how a graph was
built and whose state nobody can read, a layer draws from a `tf.random.Generator` of its own:
what `tf_keras.backend.experimental.enable_tf_random_generator` turns on, but with a seed that
takes no number from any other stream, so that initial weights stay what they are. This goes for
one worker as well.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from drumbeat import tf_keras_internals as touch
from drumbeat.cluster import Identity
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.tf_internals import drawn_ahead, freed, global_seed
from drumbeat.training.random_draws import (
    PER_COUNT,
    Part,
    dimensions,
    has_all_rows,
    is_zero_or_one,
    noise_dimensions,
    part_of,
    rows_at,
)

_numbers = itertools.count(1)
_UNIFORM = tf.raw_ops.StatelessRandomUniformV2
_NORMAL = tf.raw_ops.StatelessRandomNormalV2
_PHILOX = 1


def integrate() -> None:
    """Let tf_keras's random generators draw for the rows at hand."""
    touch.wrap(touch.DRAW_UNIFORM, _uniform)
    touch.wrap(touch.DRAW_NORMAL, _normal)
    touch.wrap(touch.DRAW_TRUNCATED_NORMAL, _truncated_normal)
    touch.wrap(touch.DRAW_DROPOUT, _dropout)


def _generator(source: Any) -> Any | None:
    """The `tf.random.Generator` that a random generator of tf_keras's draws from under ours.

    None where it draws otherwise, as initial values do, and under a strategy of TensorFlow's.
    """
    strategy = tf.distribute.get_strategy()
    # A script that names no strategy has none with one worker, and before a training.
    is_plain = not tf.distribute.has_strategy() and Identity.from_env(os.environ) is not None
    if not is_plain and not isinstance(strategy, DataParallelStrategy):
        return None
    return touch.generator_of(source, _make)


def _make(seed: int | None) -> Any:
    if seed is None:
        # Layers draw in the same order on all workers.
        seed = (global_seed() or 0) * 1_000_003 + next(_numbers)
    return freed(tf.random.Generator.from_seed(seed, alg="philox"))


def _uniform(original: Callable[..., Any]) -> Callable[..., Any]:
    def random_uniform(
        self: Any,
        shape: Any,
        minval: Any = 0.0,
        maxval: Any = None,
        dtype: Any = None,
        nonce: Any = None,
    ) -> Any:
        drawn = _drawn(self, _UNIFORM, shape, dtype)
        if drawn is None:
            return original(self, shape, minval, maxval, dtype, nonce)
        low = tf.cast(minval, drawn.dtype)
        return drawn * (tf.cast(1.0 if maxval is None else maxval, drawn.dtype) - low) + low

    return random_uniform


def _normal(original: Callable[..., Any]) -> Callable[..., Any]:
    def random_normal(
        self: Any,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = None,
        nonce: Any = None,
    ) -> Any:
        drawn = _drawn(self, _NORMAL, shape, dtype)
        if drawn is None:
            return original(self, shape, mean, stddev, dtype, nonce)
        return drawn * tf.cast(stddev, drawn.dtype) + tf.cast(mean, drawn.dtype)

    return random_normal


def _truncated_normal(original: Callable[..., Any]) -> Callable[..., Any]:
    def truncated_normal(self: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
        dims = dimensions(shape)
        part = None if _generator(self) is None else part_of(dims)
        if part is None:
            return original(self, shape, *args, **kwargs)
        # What it takes from the counter depends on the numbers: draw for all, keep these rows.
        whole = tf.stack([tf.cast(dim, tf.int32) for dim in (part.total, *dims[1:])])
        drawn = part.of(original(self, whole, *args, **kwargs))
        drawn.set_shape([dim if isinstance(dim, int) else None for dim in dims])
        return drawn

    return truncated_normal


def _dropout(original: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(self: Any, inputs: Any, rate: Any, noise_shape: Any = None) -> Any:
        generator = _generator(self)
        if generator is None or is_zero_or_one(rate) or tf_keras.backend.is_keras_tensor(inputs):
            return original(self, inputs, rate, noise_shape)
        dims = noise_dimensions(inputs, noise_shape)
        # What is dropped from are hardly ever weights.
        part = part_of(dims, reshaped=has_all_rows(inputs, dims))
        if part is None:
            return original(self, inputs, rate, noise_shape)

        def sample(shape: Any, dtype: Any) -> Any:
            del shape
            return _rows(generator, _UNIFORM, dims, part, dtype)

        return tf.nn.experimental.general_dropout(inputs, rate, uniform_sampler=sample)

    return dropout


def _drawn(source: Any, draw: Any, shape: Any, dtype: Any) -> Any | None:
    """This worker's rows of a draw; None where Keras's own way gives them."""
    generator = _generator(source)
    number = tf.as_dtype(dtype or tf_keras.backend.floatx())
    if generator is None or number not in PER_COUNT:
        return None
    dims = dimensions(shape)
    part = part_of(dims)
    return None if part is None else _rows(generator, draw, dims, part, number)


def _rows(generator: Any, draw: Any, dims: list[Any], part: Part, dtype: tf.DType) -> Any:
    rest = dims[1:]
    in_row = math.prod(rest) if all(isinstance(dim, int) for dim in rest) else None
    if in_row is None:
        in_row = tf.reduce_prod(tf.stack([tf.cast(dim, tf.int64) for dim in rest]))
    key, counter = drawn_ahead(generator, part.total * in_row)
    return rows_at(draw, key, counter, dims, part.start, dtype)
