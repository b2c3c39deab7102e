"""The same pipeline from its k-th element on: the elements, and what is run for those left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras.src.trainers.data_adapters import get_data_adapter

from drumbeat.data.position import starting_at
from drumbeat.data.replay import pass_over
from drumbeat.tf_internals import dataset_inputs, dataset_kind

pytestmark = pytest.mark.tensorflow

# TensorFlow's stubs know these by half.
Dataset: Any = tf.data.Dataset
set_seed: Any = tf.random.set_seed
Make = Callable[[], Any]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    yield
    set_seed(None)


def numbers(count: int = 23) -> Any:
    return Dataset.range(count)


def rows(count: int = 23) -> Any:
    x = np.arange(count * 64, dtype=np.float32).reshape(count, 64)
    return Dataset.from_tensor_slices(
        {"x": x, "y": np.arange(count), "s": [f"{i}" for i in range(count)]}
    )


def noisy(x: Any) -> Any:
    return tf.cast(x, tf.float32) + tf.random.uniform([])


def python(x: Any) -> Any:
    return tf.py_function(lambda n: n * 2, [x], tf.int64)


def ragged(x: Any) -> Any:
    return tf.range(x % 4)


def repeat_of_unequal(x: Any) -> Any:
    return Dataset.from_tensors(x).repeat(x % 3)


def generated() -> Any:
    return Dataset.from_generator(
        lambda: iter(range(11)), output_signature=tf.TensorSpec([], tf.int64)
    )


def resampled() -> Any:
    data = numbers(60).map(lambda x: x % 3)
    return data.rejection_resample(lambda x: x, [0.4, 0.3, 0.3], [1 / 3] * 3, seed=1).batch(4)


def bucketed() -> Any:
    return numbers(40).map(ragged).bucket_by_sequence_length(tf.size, [2, 3], [4, 3, 2])


def with_options() -> Any:
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.deterministic = True
    return rows().with_options(options).batch(4).prefetch(2)


def interleaved() -> Any:
    return numbers(5).interleave(lambda i: Dataset.range(i * 10, i * 10 + 7), cycle_length=2)


def of_a_variable() -> Any:
    five = tf.Variable(tf.constant(5, tf.int64))
    return numbers().map(lambda x: x + five)


PIPELINES: dict[str, Make] = {
    "range": lambda: Dataset.range(3, 40, 3, output_type=tf.int32),
    "range down": lambda: Dataset.range(9, -9, -2),
    "slices": rows,
    "batch": lambda: rows().batch(5),
    "batch, dropped": lambda: rows().batch(5, drop_remainder=True),
    "batch in parallel": lambda: rows().batch(5, num_parallel_calls=2),
    "map": lambda: numbers().map(lambda x: (x, x * x)).batch(4).map(lambda x, y: x + y),
    "map in parallel": lambda: rows().map(lambda r: r["x"] + 1, num_parallel_calls=2).batch(4),
    "map of a variable": of_a_variable,
    "random map": lambda: numbers().map(noisy).batch(4).map(lambda x: x + 1),
    "random map within a call": lambda: numbers().map(tf.function(noisy)).batch(4),
    "random map of batches": lambda: numbers().batch(4).map(noisy),
    "python": lambda: numbers().map(python).batch(3),
    "generator": lambda: generated().batch(2).prefetch(1),
    "options": with_options,
    "zip": lambda: Dataset.zip({"a": numbers(9), "b": (rows(12), numbers().map(noisy))}).batch(2),
    "enumerate": lambda: numbers().batch(3).enumerate(start=5),
    "take": lambda: numbers().take(11).batch(2),
    "take all": lambda: numbers().take(-1).batch(2),
    "take shuffled": lambda: numbers().shuffle(23).take(11).batch(2),
    "skip": lambda: numbers().skip(4).batch(2),
    "skip all": lambda: numbers().skip(-1).batch(2),
    "shard": lambda: numbers().shard(3, 1).batch(2),
    "concatenate": lambda: numbers(5).concatenate(Dataset.range(50, 56)).batch(2),
    "concatenate other shapes": lambda: numbers(6).batch(3, True).concatenate(numbers(4).batch(2)),
    "concatenate shuffled": lambda: numbers(5).shuffle(5).concatenate(numbers(7).shuffle(7)),
    "repeat": lambda: rows(7).repeat(3).batch(4),
    "repeat batches": lambda: rows(7).batch(3).map(lambda r: r["y"]).repeat(3),
    "repeat shuffled": lambda: numbers(7).shuffle(4).repeat(3).batch(4),
    "repeat random": lambda: numbers(7).map(noisy).repeat(3).batch(4),
    "repeat filtered": lambda: numbers(7).filter(lambda x: x % 2 == 0).repeat(3).batch(2),
    "endless": lambda: rows(7).shuffle(7).repeat().batch(4).take(9),
    "endless without state": lambda: rows(7).batch(4).repeat().take(9),
    "one element": lambda: Dataset.from_tensors(rows(4).batch(4).get_single_element()).repeat(5),
    "cardinality": lambda: (
        numbers(9).filter(lambda x: x != 3).apply(tf.data.experimental.assert_cardinality(8))
    ),
    "shuffle": lambda: rows().shuffle(10).batch(4, drop_remainder=True),
    "shuffle, one order": lambda: rows().shuffle(9, 7, reshuffle_each_iteration=False).batch(4),
    "shuffle batches": lambda: rows().batch(4).shuffle(3).map(lambda r: r["x"] * 2),
    "filter": lambda: numbers().filter(lambda x: x % 3 != 0).batch(2),
    "flat_map": lambda: numbers().flat_map(repeat_of_unequal).batch(3),
    "shuffled within": lambda: numbers(4).interleave(lambda i: Dataset.range(i, i + 6).shuffle(6)),
    "repeated within": lambda: (
        numbers(4).shuffle(4).repeat(2).map(noisy).cache().repeat(2).batch(3)
    ),
    "interleave": lambda: interleaved().batch(4),
    "unbatch": lambda: numbers().batch(5).unbatch().batch(3),
    "window": lambda: numbers().window(3, shift=2).flat_map(lambda w: w.batch(3)),
    "cache": lambda: rows().map(lambda r: r["x"]).cache().shuffle(5).batch(4),
    "cache shuffled": lambda: numbers().shuffle(23).cache().batch(4),
    "cache not filled": lambda: numbers(9).shuffle(9).cache().take(7).batch(2),
    "cache repeated": lambda: numbers(6).map(lambda x: x + 1).cache().repeat(3).batch(4),
    "scan": lambda: numbers().scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s)).batch(2),
    "take_while": lambda: numbers().take_while(lambda x: x < 13).batch(2),
    "sample": lambda: Dataset.sample_from_datasets(
        [numbers(9), rows(9).map(lambda r: r["y"])], seed=3
    ),
    "rejection_resample": resampled,
    "bucket_by_sequence_length": bucketed,
    "padded_batch": lambda: numbers().map(ragged).padded_batch(4, padding_values=np.int64(7)),
    "padded_batch of shapes": lambda: (
        numbers().map(lambda x: (ragged(x), x)).padded_batch(4, ([6], []), drop_remainder=True)
    ),
    "ragged_batch": lambda: numbers().map(ragged).ragged_batch(4),
    "ragged rows": lambda: Dataset.from_tensor_slices(tf.ragged.range([3, 0, 2, 1, 4])).batch(2),
    "sparse rows": lambda: Dataset.from_tensor_slices(tf.sparse.eye(9, 4)).batch(2),
    "words": lambda: Dataset.from_tensor_slices(["a", "bb", "c", "d", "e"]).batch(2),
    "nothing": lambda: numbers(0).batch(2).repeat(2),
}


def plain(element: Any) -> Any:
    def leaf(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            value = tf.sparse.to_dense(value)
        return value.to_list() if isinstance(value, tf.RaggedTensor) else np.array(value).tolist()

    flat: list[Any] = tf.nest.flatten(element)
    return [leaf(value) for value in flat]


def elements(dataset: Any) -> list[Any]:
    return [plain(element) for element in dataset]


def takes(dataset: Any, count: int) -> None:
    """One iterator gives `count` elements."""
    iterator = iter(dataset)
    for _ in range(count):
        next(iterator)


def make(name: str) -> Any:
    set_seed(3)
    return without_running_ahead(PIPELINES[name]())


def without_running_ahead(dataset: Any) -> Any:
    """`dataset`, of which an iterator that is broken off has gone through what it gave."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.shuffle_and_repeat_fusion = True
    return dataset.with_options(options)


def goes_on_the_same(make: Make, counts: Callable[[int], list[int]]) -> None:
    """Within a pass and in the next one, after others that were whole, broken off or not begun.

    Args:
        make: Makes the dataset, as each process does.
        counts: From the length of a pass to how many elements to leave out.
    """
    before = make()
    length = len(elements(before))
    takes(before, 0)
    takes(before, length // 2)
    taken = [length, 0, length // 2]
    broken_off, following = elements(before), elements(before)
    for count in counts(length):
        dataset = make()
        pass_over(dataset, taken)
        later = starting_at(dataset, count)
        assert later.element_spec == dataset.element_spec
        assert elements(later) == broken_off[count:]
        assert elements(dataset) == following


# Those that are gone through from their beginning, but for what they remember.
PLAIN = {"bucket_by_sequence_length", "flat_map", "interleave", "python", "ragged_batch"}
PLAIN |= {"rejection_resample", "sample", "scan", "shard", "shuffled within", "skip all"}
PLAIN |= {"sparse rows", "take all", "take_while", "unbatch", "window", "words"}


@pytest.mark.parametrize("name", sorted(PIPELINES.keys() - PLAIN))
def test_another_process_goes_on_with_the_same_elements(name: str) -> None:
    goes_on_the_same(lambda: make(name), lambda length: [length // 2 + 1])


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_another_process_goes_on_anywhere(name: str) -> None:
    goes_on_the_same(lambda: make(name), lambda length: [1, *range(2, length + 2, 3), length])


STEPS: dict[str, Callable[[Any], Any]] = {
    "map": lambda d: d.map(lambda x: x * 2 + 1),
    "noisy": lambda d: d.map(lambda x: x + tf.random.uniform([], 0, 9, tf.int64)),
    "shuffle": lambda d: d.shuffle(5),
    "batch": lambda d: d.batch(3).map(lambda x: tf.reduce_sum(x, 0)),
    "batch, dropped": lambda d: d.batch(2, drop_remainder=True).map(lambda x: x[0] - x[1]),
    "unbatch": lambda d: d.batch(4).unbatch(),
    "take": lambda d: d.take(13),
    "skip": lambda d: d.skip(2),
    "repeat": lambda d: d.repeat(2),
    "cache": lambda d: d.cache(),
    "prefetch": lambda d: d.prefetch(0),
    "zip": lambda d: Dataset.zip(d, Dataset.range(17).map(lambda x: x * x)).map(lambda x, y: x + y),
    "enumerate": lambda d: d.enumerate().map(lambda i, x: i * x),
    "concatenate": lambda d: d.concatenate(Dataset.range(9).shuffle(4)),
    "filter": lambda d: d.filter(lambda x: x % 3 != 1),
    "flat_map": lambda d: d.flat_map(lambda x: Dataset.from_tensors(x).repeat(2)),
}


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6), st.integers(0, 12))
def test_another_process_goes_on_in_any_chain_of_steps(names: list[str], count: int) -> None:
    def chain() -> Any:
        set_seed(3)
        dataset = Dataset.range(11)
        for name in names:
            dataset = STEPS[name](dataset)
        return without_running_ahead(dataset)

    goes_on_the_same(chain, lambda length: [min(count, length)])


def test_a_map_runs_only_for_what_is_left() -> None:
    """Its function isn't traced again, and not run for what was taken; one with state is."""
    traced, ran = [], []

    def slow(x: Any) -> Any:
        traced.append(x)
        return tf.numpy_function(lambda n: ran.append(int(n)) or n, [x], tf.int64, stateful=False)

    whole = (
        rows(40).map(lambda r: r["y"]).map(slow, num_parallel_calls=2).batch(4).repeat().take(30)
    )
    for options in (None, tf.data.Options()):
        whole = whole if options is None else whole.with_options(options).enumerate().prefetch(2)
        calls = len(traced)
        later = starting_at(whole, 28)
        assert len(elements(later)) == 2
        assert len(traced) == calls
        assert sorted(ran) == [*range(32, 40)]
        ran.clear()
    later = starting_at(numbers(9).map(python).map(lambda x: slow(x)), 7)
    assert (len(elements(later)), sorted(ran)) == (2, [14, 16])


def test_no_row_of_an_array_is_gathered_for_batches_left_out() -> None:
    """In the datasets that Keras makes of arrays, shuffled, with a last batch of fewer rows."""
    set_seed(3)
    x, y = np.arange(46.0).reshape(23, 2), np.arange(23)
    orders = []
    for count in (0, 3):
        set_seed(3)
        adapter = get_data_adapter(x, y, batch_size=5, shuffle=True)
        whole = adapter.get_tf_dataset()
        pass_over(whole, [5, 0])
        later = starting_at(whole, count)
        orders.append(elements(later)[3 - count :])
        steps = [later]
        while dataset_kind(steps[-1]) != "Zip":
            steps += dataset_inputs(steps[-1])
        assert count == 0 or "Skip" not in map(dataset_kind, steps)
    assert orders[0] == orders[1]
    assert len(orders[0]) == 2


def test_a_dataset_from_its_beginning_is_itself() -> None:
    whole = numbers()
    assert starting_at(whole, 0) is whole
