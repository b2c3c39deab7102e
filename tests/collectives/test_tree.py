from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from drumbeat.collectives.local import LocalCommunicator
from drumbeat.collectives.order import fold, split, subtrees
from drumbeat.collectives.tree import tree_sum

SHARED = [(leaves, size) for leaves in range(1, 25) for size in range(1, 25) if leaves % size == 0]


def written_out(leaves: int, size: int) -> str:
    """The sum of all leaves as `size` workers make it, with its parentheses."""
    root, each = (0, leaves), leaves // size
    sums = {}
    for rank in range(size):
        own = {(leaf, leaf + 1): str(leaf) for leaf in range(rank * each, (rank + 1) * each)}
        for node in subtrees((rank * each, (rank + 1) * each), root):
            sums[node] = fold(node, own.get, lambda a, b: f"({a}+{b})")
    return fold(root, sums.get, lambda a, b: f"({a}+{b})")


@pytest.mark.parametrize(("leaves", "size"), SHARED)
def test_the_sum_is_the_same_one_for_any_number_of_workers(leaves: int, size: int) -> None:
    assert written_out(leaves, size) == written_out(leaves, 1)


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        (1, "0"),
        (2, "(0+1)"),
        (3, "((0+1)+2)"),
        (6, "(((0+1)+(2+3))+(4+5))"),
        (8, "(((0+1)+(2+3))+((4+5)+(6+7)))"),
    ],
)
def test_the_tree(leaves: int, expected: str) -> None:
    assert written_out(leaves, 1) == expected


@pytest.mark.parametrize(("leaves", "size"), SHARED)
def test_subtrees_cover_all_leaves_once(leaves: int, size: int) -> None:
    each = leaves // size
    nodes = [
        node
        for rank in range(size)
        for node in subtrees((rank * each, (rank + 1) * each), (0, leaves))
    ]
    assert [leaf for first, end in nodes for leaf in range(first, end)] == list(range(leaves))


def test_a_worker_with_a_power_of_two_of_leaves_brings_one_number() -> None:
    assert subtrees((4, 8), (0, 8)) == [(4, 8)]
    assert subtrees((3, 6), (0, 6)) == [(3, 4), (4, 6)]
    assert split((4, 8)) == ((4, 6), (6, 8))


@pytest.mark.tensorflow
def test_sums_of_each_kind_of_tensor() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(3, 4, 2)).astype("float32") for _ in range(3)]
    shards = [
        [
            tf.constant(arrays[0][i]),
            tf.constant(i, tf.int64),
            tf.IndexedSlices(tf.constant(arrays[1][i]), tf.range(4) + i, tf.constant([9, 2])),
            tf.constant(arrays[2][i], tf.bfloat16),
            tf.zeros([0]),
        ]
        for i in range(3)
    ]
    dense, whole, sparse, half, empty = tree_sum(LocalCommunicator(), shards, 3)
    first, second, third = arrays[0]
    np.testing.assert_array_equal(dense, (first + second) + third)
    assert int(whole) == 3
    assert sparse.indices.numpy().tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5]
    np.testing.assert_array_equal(sparse.values, arrays[1].reshape(-1, 2))
    halves = [tf.constant(a, tf.bfloat16) for a in arrays[2]]
    wide = [tf.cast(h, tf.float32) for h in halves]
    assert half.dtype == tf.bfloat16
    np.testing.assert_array_equal(
        tf.cast(half, tf.float32),
        tf.cast(tf.cast(wide[0] + wide[1] + wide[2], tf.bfloat16), tf.float32),
    )
    assert empty.shape == [0]
