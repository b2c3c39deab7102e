"""Random layers draw on N workers what one worker would draw for the same global batch.

A draw whose first axis is the batch is this worker's rows of the draw for the
whole batch; any other draw is the same on all workers. Which draws are which, in
the order in which it is decided:

- The first dimension isn't known when the step is traced, as that of a batch never
  is: when it is a multiple of the local rows (`[batch * time, ...]` too), it is the batch.
- It is a plain number while the batch's isn't, as for noise on a weight: it isn't.
- Both are plain numbers (in `run_eagerly`, in a function that is called with a batch
  that is already there): it is the batch when the numbers are equal. Of dropout's
  input it is the batch when it is a multiple, too.
- `strategy.run` was given no batch at all: it is the batch, of which each worker has
  an equal share.

Uniform and normal numbers, so dropout too, aren't drawn for the rows of others:
Philox counts, so a draw can begin anywhere (Salmon et al., Parallel random numbers:
as easy as 1, 2, 3, 2011). What other distributions take from the counter depends on
the numbers drawn; they draw for the whole batch and keep their rows.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.training import compiled, current, row_marks

# Numbers drawn from one count of Philox, which are 128 bits.
PER_COUNT = {tf.float16: 4, tf.bfloat16: 4, tf.float32: 4, tf.float64: 2}
_PHILOX = 1

_Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def integrate() -> None:
    """Let Keras's random functions draw for the rows at hand."""
    for drawn, make in _MAKERS.items():
        touch.wrap(drawn, functools.partial(_in_replicas, make))


def _in_replicas(make: _Make, original: Callable[..., Any]) -> Callable[..., Any]:
    """What `make` makes of `original` when there are other workers, else `original`."""
    ours = make(original)

    def draw(*args: Any, **kwargs: Any) -> Any:
        alone = current.in_replica() is None
        if alone:
            return original(*args, **kwargs)
        return row_marks.drawn(lambda: ours(*args, **kwargs))

    return draw


class Part(NamedTuple):
    """The rows `[start, start + rows)` of a draw of `total` rows; int64 scalars."""

    start: Any
    rows: Any
    total: Any

    def of(self, drawn: Any) -> Any:
        """These rows of `drawn`, which has all of them."""
        return drawn[self.start : self.start + self.rows]

    def among_ones(self, value: Any) -> Any:
        """`value` with a row for each of these, between rows of ones for the others."""
        value = tf.convert_to_tensor(value)
        # A first dimension that isn't the rows is broadcast to them.
        fits = tf.equal(tf.shape(value, tf.int64)[0], self.rows)
        around = tf.stack([self.start, self.total - self.start - self.rows])
        padding = tf.pad(tf.where(fits, around, 0)[None], [[0, value.shape.rank - 1], [0, 0]])
        return tf.pad(value, padding, constant_values=1)


def uniform_part(seed: Any, shape: Sequence[Any], start: Any, dtype: tf.DType) -> Any:
    """Rows of `tf.random.stateless_uniform([many, *shape[1:]], seed, dtype=dtype)`.

    Bit by bit equal to the slice, at the cost of the rows alone.

    Args:
        seed: int32 tensor of shape [2].
        shape: Dimensions, ints or scalar tensors; the first is the number of rows.
        start: The first row, an int or an int64 scalar tensor.
        dtype: float16, bfloat16, float32 or float64.
    """
    jit = compiled.is_for_xla() and dtype == tf.float32
    draw = _uniform_of_bits if jit else tf.raw_ops.StatelessRandomUniformV2
    return _rows_from(draw, seed, shape, start, dtype)


def normal_part(seed: Any, shape: Sequence[Any], start: Any, dtype: tf.DType) -> Any:
    """Rows of `tf.random.stateless_normal`, as `uniform_part` has those of a uniform draw."""
    return _rows_from(tf.raw_ops.StatelessRandomNormalV2, seed, shape, start, dtype)


def _uniform_of_bits(*, shape: Any, key: Any, counter: Any, alg: int, dtype: tf.DType) -> Any:
    """`StatelessRandomUniformV2` for float32, of which XLA draws the same bits, not numbers."""
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=alg, dtype=tf.uint32
    )
    # The last 23 of 32 bits, behind the binary point of a number from 1 up to 2.
    bits = tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(bits, 0x7FFFFF), 0x3F800000)
    return tf.bitcast(bits, dtype) - 1


def _rows_from(draw: Any, seed: Any, shape: Sequence[Any], start: Any, dtype: tf.DType) -> Any:
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    return rows_at(draw, key, counter, shape, start, dtype)


def rows_at(
    draw: Any, key: Any, counter: Any, shape: Sequence[Any], start: Any, dtype: tf.DType
) -> Any:
    """Rows of a stateless draw from a key and a counter of Philox, see `uniform_part`."""
    dims = tf.stack([tf.cast(dim, tf.int64) for dim in shape])
    rest = [dim for dim in shape[1:] if isinstance(dim, int)]
    in_row = math.prod(rest) if len(rest) == len(shape) - 1 else tf.reduce_prod(dims[1:])
    offset = tf.cast(start, tf.int64) * in_row

    def from_count(count: Any, size: Any) -> Any:
        # TensorFlow starts with 0 in the counter's lower half, which can't overflow.
        counts = tf.bitcast(counter, tf.int64) + tf.stack([count, 0])
        moved = tf.bitcast(counts, tf.uint64)
        return draw(shape=size, key=key, counter=moved, alg=_PHILOX, dtype=dtype)

    per_count = PER_COUNT[dtype]
    if isinstance(in_row, int) and in_row % per_count == 0:
        part = from_count(offset // per_count, dims)
    else:
        before = offset % per_count
        # XLA wants to know the number of them, so there are some that are left out at the end.
        count = tf.reduce_prod(dims)[None]
        flat = from_count(offset // per_count, count + per_count)
        part = tf.reshape(tf.slice(flat, before[None], count), dims)
    part.set_shape([dim if isinstance(dim, int) else None for dim in shape])
    return part


# Keras's functions ----------------------------------------------------------------


def _uniform(original: Callable[..., Any]) -> Callable[..., Any]:
    def uniform(
        shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
    ) -> Any:
        drawn = _skipping(uniform_part, shape, dtype, seed)
        if drawn is None:
            return original(shape, minval, maxval, dtype, seed)
        low, high = tf.cast(minval, drawn.dtype), tf.cast(maxval, drawn.dtype)
        return drawn * (high - low) + low

    return uniform


def _normal(original: Callable[..., Any]) -> Callable[..., Any]:
    def normal(
        shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
    ) -> Any:
        drawn = _skipping(normal_part, shape, dtype, seed)
        if drawn is None:
            return original(shape, mean, stddev, dtype, seed)
        stddev = tf.convert_to_tensor(stddev, drawn.dtype)
        return drawn * stddev + tf.convert_to_tensor(mean, drawn.dtype)

    return normal


def _skipping(draw: Callable[..., Any], shape: Any, dtype: Any, seed: Any) -> Any | None:
    """This worker's rows of a draw that can begin anywhere; None when it isn't one."""
    number = tf.as_dtype(keras.backend.standardize_dtype(dtype or keras.config.floatx()))
    dims = dimensions(shape)
    part = part_of(dims) if number in PER_COUNT else None
    if part is None:
        return None
    return draw(_next_seed(seed), dims, part.start, number)


def _dropout(original: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
        dims = [] if is_zero_or_one(rate) else noise_dimensions(inputs, noise_shape)
        # What is dropped from are hardly ever weights.
        part = part_of(dims, reshaped=has_all_rows(inputs, dims))
        if part is None:
            return original(inputs, rate, noise_shape, seed)
        drawn_with = _next_seed(seed)

        def sample(shape: Any, dtype: Any) -> Any:
            del shape
            return uniform_part(drawn_with, dims, part.start, dtype)

        return tf.nn.experimental.general_dropout(inputs, rate, uniform_sampler=sample)

    return dropout


def _categorical(original: Callable[..., Any]) -> Callable[..., Any]:
    def categorical(logits: Any, num_samples: Any, dtype: Any = "int64", seed: Any = None) -> Any:
        logits = tf.convert_to_tensor(logits)
        part = part_of(_dimensions_of(logits))
        if part is None:
            return original(logits, num_samples, dtype, seed)
        return part.of(original(part.among_ones(logits), num_samples, dtype, seed))

    return categorical


def _whole(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def draw(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        dims = dimensions(given["shape"])
        part = part_of(dims)
        if part is None:
            return original(*args, **kwargs)
        for name, value in given.items():
            if name != "shape" and _rank(value) == len(dims):
                given[name] = part.among_ones(value)
        given["shape"] = tf.stack([tf.cast(dim, tf.int32) for dim in (part.total, *dims[1:])])
        drawn = part.of(original(**given))
        drawn.set_shape([dim if isinstance(dim, int) else None for dim in dims])
        return drawn

    return draw


# Which rows -----------------------------------------------------------------------


def part_of(dims: Sequence[Any], *, reshaped: bool = False) -> Part | None:
    """The part of the whole draw that a draw of `dims` is; None when it is alike on all workers.

    Args:
        dims: Dimensions, as `dimensions` has them.
        reshaped: A plain number may as well be a multiple of the rows.
    """
    strategy = current.in_replica()
    if strategy is None or not dims:
        return None
    span, replicas = strategy.extended.span(), strategy.extended.replicas
    here = None if replicas.current is None else replicas.current.known_rows
    if isinstance(dims[0], int):
        if replicas.current is not None and not replicas.current.has_batch:
            return _equal_share(dims[0], replicas.current.number, replicas.total)
        if here != dims[0] and not (reshaped and here and dims[0] % here == 0):
            return None
    elif here is not None:
        # A function traced for any number of rows, whose next batch may have others.
        span = strategy.extended.rows.span(None)
    rows = tf.cast(dims[0], tf.int64)
    times = rows // tf.maximum(span.rows, 1)
    # Not so where a row of zeros stands in for none: it may draw anything.
    fits = tf.equal(times * span.rows, rows)
    return Part(
        tf.where(fits, times * span.start, 0), rows, tf.where(fits, times * span.total, rows)
    )


def _equal_share(rows: int, number: int, replicas: int) -> Part:
    start, total = number * rows, replicas * rows
    return Part(*(tf.constant(count, tf.int64) for count in (start, rows, total)))


def dimensions(shape: Any) -> list[Any]:
    """The dimensions of `shape`: ints where they are known, else scalar tensors.

    None at all when not even their number is known: such a draw is alike on all workers.
    """
    if tf.is_tensor(shape):
        value = tf.get_static_value(shape)
        # Shape inference knows parts of a shape that is no constant.
        static = tf.fill(shape, False).shape if value is None else tf.TensorShape(value)
        if static.rank is None:
            return []
        return [shape[i] if dim is None else dim for i, dim in enumerate(static)]
    if not isinstance(shape, (list, tuple, tf.TensorShape)):
        return []
    known = [tf.get_static_value(dim) for dim in shape]
    return [dim if value is None else int(value) for dim, value in zip(shape, known, strict=True)]


def _dimensions_of(value: Any) -> list[Any]:
    """The dimensions of a tensor, as `dimensions` has them."""
    if not isinstance(value, tf.Tensor) or value.shape.rank is None:
        return []
    return [tf.shape(value)[i] if dim is None else dim for i, dim in enumerate(value.shape)]


def _rank(value: Any) -> int | None:
    """How many axes an argument has, or None when it isn't an array."""
    shape = getattr(value, "shape", None)
    return None if shape is None else tf.TensorShape(shape).rank


def noise_dimensions(inputs: Any, noise_shape: Any) -> list[Any]:
    """Dimensions of the mask with which dropout multiplies; none where they aren't known."""
    whole = _dimensions_of(inputs)
    if noise_shape is None or not whole:
        return whole
    if len(noise_shape) != len(whole):
        return []
    dims = dimensions([whole[i] if dim is None else dim for i, dim in enumerate(noise_shape)])
    if isinstance(dims[0], int) and dims[0] > 1:
        # The whole batch's rows, which a script may spell out, aren't those at hand.
        return [whole[0], *dims[1:]]
    return dims


def has_all_rows(inputs: Any, dims: Sequence[Any]) -> bool:
    """Whether the first of `dims` is that of `inputs`, a plain number."""
    return bool(dims) and isinstance(dims[0], int) and dims[0] == inputs.shape[0]


def is_zero_or_one(rate: Any) -> bool:
    """Whether dropout keeps all or nothing, which takes no draw."""
    value = rate if isinstance(rate, numbers.Real) else tf.get_static_value(rate)
    return value is not None and float(value) in (0.0, 1.0)


def _next_seed(seed: Any) -> Any:
    """The seed for the next draw, int32 of shape [2]; advances a generator as Keras does."""
    draw = touch.borrow(touch.DRAW_SEED)
    cast = touch.borrow(touch.CAST_SEED)
    return cast(draw(seed))


_MAKERS: dict[touch.Touch, _Make] = {
    touch.DRAW_UNIFORM: _uniform,
    touch.DRAW_NORMAL: _normal,
    touch.DRAW_DROPOUT: _dropout,
    touch.DRAW_CATEGORICAL: _categorical,
    touch.DRAW_RANDINT: _whole,
    touch.DRAW_TRUNCATED_NORMAL: _whole,
    touch.DRAW_GAMMA: _whole,
    touch.DRAW_BINOMIAL: _whole,
    touch.DRAW_BETA: _whole,
}
