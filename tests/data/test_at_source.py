"""Pipelines of which each worker runs the maps for its rows: what N workers get, and compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from drumbeat.data.at_source import NotAtSource, at_source
from drumbeat.data.position import starting_at
from drumbeat.data.replay import pass_over
from drumbeat.data.shares import Shares

pytestmark = pytest.mark.tensorflow

# TensorFlow's stubs know these by half.
Dataset: Any = tf.data.Dataset
set_seed: Any = tf.random.set_seed
Make = Callable[[], Any]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    set_seed(3)
    yield
    set_seed(None)


def numbers(count: int = 23) -> Any:
    return Dataset.range(count)


def double(x: Any) -> Any:
    return x * 2


def python(x: Any) -> Any:
    return tf.py_function(lambda n: n * 2, [x], tf.int64)


def noisy(x: Any) -> Any:
    return tf.cast(x, tf.float32) + tf.random.uniform([])


def table(x: Any) -> Any:
    return {"x": tf.stack([x, x]), "s": tf.strings.as_string(x), "odd": x % 2 == 1}


def ragged(x: Any) -> Any:
    return tf.ragged.range([x % 3, 1])


def sparse(x: Any) -> Any:
    return tf.sparse.from_dense([x % 3, 0, x])


def parts(dataset: Any, units: tuple[int, ...]) -> list[Any]:
    """What each worker runs."""
    shares = Shares(units)
    return [
        at_source(dataset, rank, lambda total, rank=rank: shares.rows_of(rank, total))
        for rank in range(len(units))
    ]


def plain(element: Any) -> Any:
    """An element as nested lists, by row: of `Example`s of leaves."""

    def leaf(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            value = tf.sparse.to_dense(value)
        return value.to_list() if isinstance(value, tf.RaggedTensor) else np.array(value).tolist()

    flat: list[Any] = tf.nest.flatten(element)
    return [leaf(value) for value in flat]


def together(parts: list[Any]) -> list[Any]:
    """The batches of all workers, put together, and each part checked against its place."""
    batches = []
    for elements in zip(*parts, strict=True):
        stop = total = 0
        for _, span in elements:
            start, rows, total = span.numpy().tolist()
            assert start == stop
            stop += rows
        assert stop == total
        leaves = zip(*(plain(batch) for batch, _ in elements), strict=True)
        batches.append([sum(leaf, []) for leaf in leaves])
        counts = {len(leaf) for leaf in batches[-1]}
        assert counts == {stop}
    return batches


PIPELINES: dict[str, Make] = {
    "map": lambda: numbers().map(double).batch(4),
    "map in parallel": lambda: numbers().map(double, num_parallel_calls=3).batch(4, True),
    "batch in parallel": lambda: numbers().map(double).batch(5, num_parallel_calls=2),
    "dict": lambda: numbers().map(table).map(lambda r: (r["x"], r["s"], r["odd"])).batch(5),
    "ragged and sparse": lambda: numbers().map(lambda x: (ragged(x), sparse(x))).batch(5),
    "shuffle": lambda: numbers().shuffle(9).map(double).batch(4),
    "options and prefetch": lambda: (
        numbers().map(double).with_options(tf.data.Options()).prefetch(1).map(table).batch(4)
    ),
    "repeat before batch": lambda: numbers().shuffle(23).map(double).repeat(2).batch(4),
    "repeat behind batch": lambda: numbers().shuffle(23).map(double).batch(4).repeat(2).prefetch(1),
    "take and skip": lambda: numbers().map(double).skip(2).take(9).batch(2).skip(1).take(9),
    "enumerate": lambda: numbers().map(double).enumerate().map(lambda i, x: i + x).batch(3),
    "zip": lambda: (
        Dataset.zip({"a": (numbers(9).map(table), numbers().map(double)), "b": numbers(11)})
        .map(lambda r: (r["a"][0], r["b"]))
        .batch(2)
    ),
    "filter": lambda: numbers().filter(lambda x: x % 3 != 0).map(double).batch(4),
    "map, filter, map": lambda: (
        numbers().map(double).filter(lambda x: x % 3 != 0).map(table).batch(4).repeat(2)
    ),
    "generated": lambda: (
        Dataset.from_generator(
            lambda: iter(range(11)), output_signature=tf.TensorSpec([], tf.int64)
        )
        .map(double)
        .batch(3)
    ),
    "unequal shapes": lambda: (
        numbers().map(tf.range).cache().map(lambda x: tf.reduce_sum(x)).batch(4)
    ),
    "endless": lambda: numbers().shuffle(23).repeat().map(double).batch(4).take(8),
    "concatenate": lambda: (
        numbers(6).map(double).batch(3).concatenate(numbers(5).map(double, 2).batch(4))
    ),
    "cardinality": lambda: (
        numbers(9)
        .filter(lambda x: x != 3)
        .map(double)
        .apply(tf.data.experimental.assert_cardinality(8))
        .batch(3)
    ),
    "batches of batches": lambda: numbers().batch(3, True).map(double).batch(2),
    "reads a variable": lambda: numbers().map(of_a_variable()).batch(4),
    "one row": lambda: numbers(1).map(double).batch(8),
    "no rows": lambda: numbers(0).map(double).batch(8),
}


def of_a_variable() -> Any:
    five = tf.Variable(tf.constant(5, tf.int64))
    return lambda x: x + five


# Those that take another way than the rest.
QUICK = ("dict", "map, filter, map", "one row", "repeat before batch", "zip")


def are_the_batches(make: Make, units: tuple[int, ...]) -> None:
    """What each worker makes for itself, put together, is what one worker makes, in two passes."""
    whole = seeded_anew(make)
    expected = [[plain(batch) for batch in whole] for _ in range(2)]
    workers = [parts(seeded_anew(make), units)[rank] for rank in range(len(units))]
    assert {int(part.cardinality()) for part in workers} == {int(whole.cardinality())}
    for epoch in expected:
        assert together(workers) == epoch


def seeded_anew(make: Make) -> Any:
    set_seed(3)
    return make()


@pytest.mark.parametrize("name", QUICK)
def test_parts_put_together_are_the_batches(name: str) -> None:
    are_the_batches(PIPELINES[name], (3, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("units", [(1, 1, 1), (2, 5)])
def test_parts_of_any_pipeline_are_the_batches(name: str, units: tuple[int, ...]) -> None:
    are_the_batches(PIPELINES[name], units)


# Functions of a dataset of numbers, each to another.
STEPS: dict[str, Callable[[Any], Any]] = {
    "map": lambda d: d.map(lambda x: x * 2 + 1),
    "map in parallel": lambda d: d.map(lambda x: x + 3, num_parallel_calls=2),
    "shuffle": lambda d: d.shuffle(5),
    "one shuffle": lambda d: d.shuffle(7, 1, reshuffle_each_iteration=False),
    "take": lambda d: d.take(13),
    "skip": lambda d: d.skip(2),
    "repeat": lambda d: d.repeat(2),
    "cache": lambda d: d.cache(),
    "prefetch": lambda d: d.prefetch(1),
    "options": lambda d: d.with_options(tf.data.Options()),
    "zip": lambda d: Dataset.zip(d, Dataset.range(17).map(lambda x: x * x)).map(lambda x, y: x + y),
    "enumerate": lambda d: d.enumerate().map(lambda i, x: i * x),
    "concatenate": lambda d: d.concatenate(Dataset.range(9).shuffle(4)),
    "filter": lambda d: d.filter(lambda x: x % 3 != 1),
    "flat_map": lambda d: d.flat_map(lambda x: Dataset.from_tensors(x).repeat(2)),
}
OF_BATCHES = ("concatenate", "options", "prefetch", "repeat", "skip", "take")
a_step, a_step_of_batches = st.sampled_from(sorted(STEPS)), st.sampled_from(OF_BATCHES)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(a_step, max_size=5),
    st.lists(a_step_of_batches, max_size=3),
    st.integers(1, 9),
    st.booleans(),
    st.lists(st.integers(1, 4), min_size=2, max_size=3),
)
def test_parts_of_pipelines_drawn_at_random_are_the_batches(
    steps: list[str], of_batches: list[str], batch_size: int, drop: bool, units: list[int]
) -> None:
    def chain() -> Any:
        dataset = Dataset.range(11)
        for name in (*steps, "map"):
            dataset = STEPS[name](dataset)
        dataset = dataset.batch(batch_size, drop_remainder=drop)
        for name in of_batches:
            if name == "concatenate":
                dataset = dataset.concatenate(dataset)
            else:
                dataset = STEPS[name](dataset)
        return dataset

    are_the_batches(chain, tuple(units))


def counting(ran: list[int]) -> Any:
    """A function for `map` that notes what it is called for."""

    def call(x: Any) -> Any:
        y = tf.numpy_function(lambda n: ran.append(int(n)) or n, [x], tf.int64, stateful=False)
        y.set_shape([])
        return y

    return call


def test_each_worker_runs_the_maps_for_its_rows_only() -> None:
    one: list[int] = []
    other: list[int] = []
    whole = numbers(40).shuffle(40).map(counting(one), num_parallel_calls=2).repeat(2)
    whole = Dataset.zip((whole.map(counting(other)), numbers(80))).batch(8).prefetch(1)
    for part, rows in zip(parts(whole, (3, 1)), (6, 2), strict=True):
        assert len(list(part)) == 10
        assert (len(one), len(other)) == (10 * rows, 10 * rows)
        one.clear()
        other.clear()


def without_running_ahead(dataset: Any) -> Any:
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.shuffle_and_repeat_fusion = True
    return dataset.with_options(options)


def goes_on(name: str, count: int) -> None:
    """A worker's part, from its `count`-th batch on, in a process that makes it anew."""

    def make() -> Any:
        return without_running_ahead(parts(seeded_anew(PIPELINES[name]), (3, 1))[1])

    before = make()
    passes = [[plain(element) for element in before] for _ in range(3)]
    part = make()
    pass_over(part, [len(passes[0])])
    later = starting_at(part, count)
    assert later.element_spec == part.element_spec
    assert [plain(element) for element in later] == passes[1][count:]
    assert [plain(element) for element in part] == passes[2]


def test_another_process_goes_on_in_the_middle() -> None:
    goes_on("shuffle", 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_another_process_goes_on_anywhere(name: str) -> None:
    for count in (1, 2, 4):
        goes_on(name, count)


def test_what_was_taken_before_is_not_computed_again() -> None:
    ran: list[int] = []
    part = parts(numbers(40).map(counting(ran)).batch(8).repeat(3).prefetch(1), (3, 1))[1]
    later = starting_at(part, 12)
    assert [batch.numpy().tolist() for batch, _ in later] == [[22, 23], [30, 31], [38, 39]]
    assert sorted(ran) == [22, 23, 30, 31, 38, 39]


REFUSED: dict[str, tuple[Make, str]] = {
    "no map": (lambda: numbers().shuffle(5).batch(4), ""),
    "shuffle": (lambda: numbers().map(double).shuffle(5).batch(4), "shuffle() stands behind map()"),
    "cache": (lambda: numbers().map(double).cache().batch(4), "cache() stands behind map()"),
    "filter": (lambda: numbers().map(double).filter(lambda x: x > 3).batch(4), "filter() looks"),
    "flat_map": (
        lambda: numbers().map(double).flat_map(lambda x: Dataset.from_tensors(x)).batch(4),
        "flat_map() or filter() looks",
    ),
    "Python": (lambda: numbers().map(python).batch(4), "calls Python code"),
    "random in order": (lambda: numbers().map(noisy).batch(4), "in the order of the examples"),
    "one call at a time": (
        lambda: numbers().map(noisy, num_parallel_calls=1).batch(4),
        "in the order of the examples",
    ),
    "counts": (lambda: numbers().map(counts_up()).batch(4), "AssignAddVariableOp"),
    "padded": (lambda: numbers().map(tf.range).padded_batch(4), "padded_batch()"),
    "map of batches": (lambda: numbers().map(double).batch(4).map(double), "behind batch()"),
    "shuffled batches": (lambda: numbers().map(double).batch(4).shuffle(3), "shuffle() stands"),
    "not batched by batch": (
        lambda: Dataset.from_tensor_slices(np.zeros([4, 3])).map(double),
        "behind batch()",
    ),
    "ragged": (
        lambda: (
            Dataset.from_tensor_slices(tf.ragged.range([3, 0, 2])).map(lambda x: x + 1).batch(2)
        ),
        "not plain tensors",
    ),
}


def counts_up() -> Any:
    seen = tf.Variable(tf.constant(0, tf.int64))
    return lambda x: seen.assign_add(x)


@pytest.mark.parametrize("name", REFUSED)
def test_why_a_pipeline_is_not_shared_out(name: str) -> None:
    make, why = REFUSED[name]
    with pytest.raises(NotAtSource) as refused:
        parts(make(), (1, 1))
    assert why in str(refused.value)
    assert bool(why) == bool(str(refused.value))


def test_workers_draw_random_numbers_of_their_own() -> None:
    """Where they come in no order; also within calls, branches and with seeds of the script's."""

    def draw(x: Any) -> Any:
        within = tf.cond(x < 0, lambda: 0.0, lambda: tf.random.uniform([]))
        return tf.stack([tf.random.uniform([], seed=7), within, tf.cast(x, tf.float32)])

    whole = numbers(64).map(tf.function(draw), num_parallel_calls=2).batch(64)
    one, other = (next(iter(part))[0].numpy() for part in parts(whole, (1, 1)))
    assert [*one[:, 2], *other[:, 2]] == [*range(64)]
    for column in (0, 1):
        drawn = np.concatenate([one[:, column], other[:, column]])
        assert len(np.unique(drawn)) == 64
        assert 0.3 < drawn.mean() < 0.7
