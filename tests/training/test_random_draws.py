"""A draw that begins in the middle gives the same bits as the slice of the whole draw."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from drumbeat.training import random_draws
from drumbeat.training.random_draws import Part

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(60)]

SEED = tf.constant([20_260_101, 7], tf.int32)
DRAWS = {
    "uniform": (random_draws.uniform_part, tf.random.stateless_uniform),
    "normal": (random_draws.normal_part, tf.random.stateless_normal),
}
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
# Of each row so many numbers: they divide by 4, by 2, by neither; with further axes; none.
ROWS_OF = ((8,), (6,), (5,), (), (3, 1, 7), (2, 2), (0,))
TOTAL = 61


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", DRAWS)
def test_a_part_has_the_bits_of_the_whole(kind: str, dtype: tf.DType) -> None:
    draw, draw_whole = DRAWS[kind]
    for rest in ROWS_OF:
        whole = draw_whole([TOTAL, *rest], SEED, dtype=dtype).numpy()
        for start, rows in ((0, TOTAL), (0, 1), (1, 1), (2, 3), (7, 30), (60, 1), (61, 0)):
            part = draw(SEED, [rows, *rest], start, dtype)
            assert part.dtype == dtype
            np.testing.assert_array_equal(part.numpy(), whole[start : start + rows])


@pytest.mark.parametrize("kind", DRAWS)
def test_a_part_of_many_numbers_that_several_threads_draw(kind: str) -> None:
    draw, draw_whole = DRAWS[kind]
    whole = draw_whole([3001, 333], SEED).numpy()
    np.testing.assert_array_equal(draw(SEED, [1500, 333], 1501, tf.float32), whole[1501:])


def test_a_part_whose_rows_are_unknown_while_tracing() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 5]), tf.TensorSpec([], tf.int64)])
    def traced(x: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        part = random_draws.uniform_part(SEED, [tf.shape(x)[0], 5], start, tf.float32)
        assert part.shape.as_list() == [None, 5]
        return part

    whole = tf.random.stateless_uniform([40, 5], SEED).numpy()
    np.testing.assert_array_equal(traced(tf.zeros([9, 5]), 31), whole[31:])


def test_the_counter_starts_where_it_cannot_overflow() -> None:
    for seed in ([0, 0], [-1, -1], [2**31 - 1, 12345], [7, -(2**31)]):
        _, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.constant(seed, tf.int32))
        assert counter[0] == 0


# What is drawn whole: a row's numbers must not depend on the parameters of other rows.
PARAMETERS = np.linspace(0.3, 2.5, 24, dtype=np.float32).reshape(12, 2)
WHOLE = {
    "gamma": lambda rows, p: keras.random.gamma((rows, 2), p, seed=5),
    "beta": lambda rows, p: keras.random.beta((rows, 2), p, p + 1, seed=5),
    "binomial": lambda rows, p: keras.random.binomial((rows, 2), 10 * p, p / 3, seed=5),
    "truncated": lambda rows, p: keras.random.truncated_normal((rows, 2), p, p, seed=5),
    "categorical": lambda rows, p: keras.random.categorical(p, 3, seed=5),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_rows_dont_depend_on_other_rows_parameters(kind: str) -> None:
    whole = np.array(WHOLE[kind](12, tf.constant(PARAMETERS)))
    for start, rows in ((0, 5), (5, 4), (9, 3)):
        part = Part(*(tf.constant(count, tf.int64) for count in (start, rows, 12)))
        mine = part.among_ones(PARAMETERS[start : start + rows])
        np.testing.assert_array_equal(mine[start : start + rows], PARAMETERS[start : start + rows])
        drawn = part.of(WHOLE[kind](12, mine))
        np.testing.assert_array_equal(drawn, whole[start : start + rows])


def test_one_parameter_for_all_rows_stays_one() -> None:
    part = Part(*(tf.constant(count, tf.int64) for count in (4, 3, 12)))
    assert part.among_ones([[1.0, 2.0]]).shape == (1, 2)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), []),
        ((3, 4), [3, 4]),
        (tf.TensorShape([3, 4]), [3, 4]),
        (tf.constant([3, 4]), [3, 4]),
        ((tf.constant(3), np.int64(4)), [3, 4]),
        (7, []),
    ],
)
def test_dimensions(shape: object, expected: list[int]) -> None:
    assert random_draws.dimensions(shape) == expected


def test_dimensions_that_are_known_while_tracing() -> None:
    seen = []

    @tf.function(input_signature=[tf.TensorSpec([None, 5]), tf.TensorSpec(None)])
    def traced(x: tf.Tensor, anything: tf.Tensor) -> None:
        for shape in (tf.shape(x), (tf.shape(x)[0], 5), [tf.shape(x)[0] * 3, 5]):
            dims = random_draws.dimensions(shape)
            seen.append([isinstance(dim, int) for dim in dims])
        seen.append(random_draws.dimensions(tf.shape(anything)))

    traced(tf.zeros([2, 5]), tf.zeros([1]))
    assert seen == [[False, True]] * 3 + [[]]


@pytest.mark.parametrize(
    ("noise_shape", "expected"),
    [
        (None, [6, 3, 2]),
        ((None, 1, None), [6, 1, 2]),
        # A script says how many rows the global batch has; these are the ones at hand.
        ((32, 1, 2), [6, 1, 2]),
        ((1, 3, 2), [1, 3, 2]),
        ((3, 2), []),
    ],
)
def test_noise_dimensions(noise_shape: object, expected: list[int]) -> None:
    assert random_draws.noise_dimensions(tf.zeros([6, 3, 2]), noise_shape) == expected


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0, True), (1.0, True), (0.3, False), (tf.constant(1.0), True), (tf.constant(0.5), False)],
)
def test_rates_that_take_no_draw(rate: object, expected: bool) -> None:
    assert random_draws.is_zero_or_one(rate) is expected
