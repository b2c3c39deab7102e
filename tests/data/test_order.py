"""The order of an epoch, position by position."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from drumbeat.data.order import Order

pytestmark = pytest.mark.tensorflow


def order(num_examples: int, seed: int | None = 1, **more: object) -> Order:
    arguments = {"batch_size": 4, "drop_remainder": False, **more}
    return Order(num_examples=num_examples, seed=seed, **arguments)  # type: ignore[arg-type]


def epoch_of(o: Order, epoch: int) -> list[int]:
    positions = tf.range(o.num_examples, dtype=tf.int64)
    return o.examples_at(positions, tf.constant(epoch, tf.int64)).numpy().tolist()


@pytest.mark.parametrize("num_examples", [1, 2, 3, 7, 64, 100, 1023, 1024, 1025, 60_000])
def test_every_epoch_has_each_example_once(num_examples: int) -> None:
    for epoch in (0, 1, 2**31, 2**32 - 1):
        assert sorted(epoch_of(order(num_examples), epoch)) == list(range(num_examples))


def test_orders_differ_by_epoch_and_by_seed() -> None:
    seeds = (0, 1, -1, 2**32 + 1, 2**63)
    seen = {tuple(epoch_of(order(50, seed), epoch)) for seed in seeds for epoch in range(20)}
    assert len(seen) == len(seeds) * 20
    assert tuple(range(50)) not in seen


def test_without_a_seed_the_order_is_that_of_the_source() -> None:
    assert epoch_of(order(9, None), 3) == list(range(9))


def test_the_order_stays_what_it_is() -> None:
    # A training that is resumed with another version of TensorFlow must find it again.
    assert epoch_of(order(12, 7), 0) == [0, 4, 6, 1, 7, 8, 11, 9, 3, 5, 10, 2]
    assert epoch_of(order(12, 7), 1) == [7, 0, 10, 4, 8, 9, 2, 11, 1, 5, 3, 6]


def test_orders_are_even() -> None:
    # Where each of 20 examples stands over 500 epochs: chi-squared, 19 degrees of freedom.
    o = order(20, 3)
    positions = tf.range(20, dtype=tf.int64)
    every = tf.function(
        lambda epochs: tf.map_fn(lambda epoch: o.examples_at(positions, epoch), epochs)
    )
    epochs = every(tf.range(500, dtype=tf.int64)).numpy()
    for position in (0, 1, 10, 19):
        counts = np.bincount(epochs[:, position], minlength=20)
        assert ((counts - 25) ** 2 / 25).sum() < 60
    assert len(np.unique(epochs, axis=0)) == 500
    neighbours = np.abs(np.diff(epochs, axis=1)) == 1
    assert 0.08 < neighbours.mean() < 0.12  # 2 * 19 / (20 * 19)


def test_positions_can_be_asked_for_in_any_portions() -> None:
    o = order(100, 5)
    whole = epoch_of(o, 2)
    parts = [
        o.examples_at(tf.range(start, start + 10, dtype=tf.int64), tf.constant(2, tf.int64))
        for start in range(0, 100, 10)
    ]
    assert tf.concat(parts, 0).numpy().tolist() == whole


@pytest.mark.parametrize(
    ("examples", "batch", "drop", "full", "last", "batches"),
    [
        (10, 4, False, 2, 2, 3),
        (10, 4, True, 2, 0, 2),
        (8, 4, False, 2, 0, 2),
        (3, 4, False, 0, 3, 1),
        (3, 4, True, 0, 0, 0),
        (1, 1, False, 1, 0, 1),
    ],
)
def test_batches_of_an_epoch(
    examples: int, batch: int, drop: bool, full: int, last: int, batches: int
) -> None:
    o = order(examples, batch_size=batch, drop_remainder=drop)
    assert (o.full_batches, o.last_rows, o.num_batches) == (full, last, batches)


def test_seeds_differ_by_example_epoch_and_seed() -> None:
    examples = tf.range(30, dtype=tf.int64)
    pairs = [
        tuple(pair)
        for seed in (None, 1, 2)
        for epoch in range(5)
        for pair in order(30, seed).seeds_of(examples, tf.constant(epoch, tf.int64)).numpy()
    ]
    assert len(set(pairs)) == 3 * 5 * 30
