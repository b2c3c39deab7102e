"""What every rank does in the tests of compression: run as collective_checks.py is."""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import replace
from typing import Any

import collective_checks
import numpy as np
import tensorflow as tf
from collective_checks import CHECKS, LAST_CHECKS, check

from drumbeat.cluster.compression import Compress
from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression import choice, residuals
from drumbeat.collectives.compression.bytes8 import BLOCK_ELEMENTS
from drumbeat.collectives.compression.choice import CANDIDATES, Choice
from drumbeat.collectives.compression.compression import Compression
from drumbeat.collectives.compression.machines import Machines
from drumbeat.collectives.compression.residuals import Owner

CHECKS.clear()
LAST_CHECKS.clear()
METHODS = ("bf16", "fp16", "int8", "powersgd:2", "topk:0.05")
# Matrices longer than a piece and than a block, odd ones, a filter's, and what travels as it is.
SHAPES = ((300, 257), (7, 3), (3, 3, 8, 24), (257,), (), (41, 50))
ELEMENTS = sum(math.prod(shape) for shape in SHAPES)
SMALL = 257 + 1


class Optimizer:
    """Only something to belong to."""


def machines(c: Communicator) -> Machines:
    """Two of two workers each, as it were, where there are four."""
    return Machines.found(c, c.rank % 2 if c.size == 4 else 0)


def compression(c: Communicator, method: str) -> tuple[Compression, Owner]:
    asked = Compress.parse(method)
    owner = Owner(Optimizer(), tuple(f"v{i}" for i in range(len(SHAPES))))
    return Compression(c, asked, Choice(c, machines(c), None), machines(c)), owner


def gradients(rank: int, step: int) -> list[np.ndarray]:
    """Of a worker in a step: partly what all have, of sizes that differ from tensor to tensor."""
    shared, own = np.random.default_rng([step]), np.random.default_rng([step, rank])
    return [
        (10.0**-i * (shared.normal(size=shape) + own.normal(size=shape))).astype(np.float32)
        for i, shape in enumerate(SHAPES)
    ]


def residuals_of(owner: Owner) -> list[np.ndarray]:
    (group,) = residuals.groups_of(owner.optimizer)
    return [memory.array for memory in group.residuals]


def digest(arrays: list[Any]) -> int:
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.asarray(array).tobytes())
    return int.from_bytes(total.digest()[:7], "big")


def alike(c: Communicator, arrays: list[Any]) -> bool:
    return len(set(c.all_gather_numpy(np.array([digest(arrays)])).tolist())) == 1


def returns_and_owes_all_that_came(c: Communicator, method: str) -> None:
    """What was returned, plus what all workers still owe, is the sum of all gradients."""
    compressed, owner = compression(c, method)
    in_graph = tf.function(lambda *tensors: compressed.sum(tensors, owner))
    returned = [np.zeros(shape, np.float64) for shape in SHAPES]
    came = [np.zeros(shape, np.float64) for shape in SHAPES]
    for step in range(6):
        run = in_graph if step % 2 else lambda *tensors: compressed.sum(tensors, owner)
        sums = run(*map(tf.constant, gradients(c.rank, step)))
        assert alike(c, list(sums)), f"other bytes on other workers in step {step}"
        for i, total in enumerate(sums):
            assert total.shape == SHAPES[i]
            returned[i] += total.numpy()
            came[i] += np.sum([gradients(rank, step)[i] for rank in range(c.size)], 0)
    owed = c.sum_arrays([np.asarray(each, np.float64) for each in residuals_of(owner)])
    for i, shape in enumerate(SHAPES):
        np.testing.assert_allclose(returned[i] + owed[i], came[i], rtol=0, atol=2e-5 * 10.0**-i)
        # It does leave something out, but of vectors and scalars.
        if len(shape) > 1 and (method[:8] != "powersgd" or min(shape[-2:]) > 7):
            assert np.abs(owed[i]).max() > 0, f"nothing left of {shape}"
        if len(shape) < 2:
            assert not owed[i].any()


def sends_what_it_should(c: Communicator, method: str) -> None:
    compressed, owner = compression(c, method)
    compressed.sum(list(map(tf.constant, gradients(c.rank, 0))), owner)
    before = c.times.bytes_sent
    compressed.sum(list(map(tf.constant, gradients(c.rank, 1))), owner)
    sent = c.times.bytes_sent - before
    coded = ELEMENTS - SMALL
    matrices = {(300, 257): True, (7, 3): False, (72, 24): True, (41, 50): True}
    plain = sum(m * n for (m, n), is_factored in matrices.items() if not is_factored) + SMALL
    factors = sum(2 * (m + n) for (m, n), is_factored in matrices.items() if is_factored)
    # To the others a part each and to all the sums of one: (n + 1) / n of the whole.
    whole, on_machine = 1 + 1 / c.size, 0
    if c.size == 4:
        # Half to a mate, as it is; a quarter to a peer and, of the sums, to all.
        whole, on_machine = 3 / 4, 4 * ELEMENTS
    expected = {
        "bf16": whole * (2 * coded + 4 * SMALL),
        "fp16": whole * (2 * coded + 4 * SMALL),
        "int8": whole * (coded * (1 + 4 / BLOCK_ELEMENTS) + 4 * SMALL),
        "topk:0.05": whole * (8 * 0.05 * coded + 4 * SMALL),
        "powersgd:2": 4 * (factors + plain),
    }[method]
    if method[:8] != "powersgd":
        expected += on_machine
    # Rounded up to whole blocks and 64 bytes, for each part of each worker.
    assert expected <= sent <= expected + 400 * (c.size + 1), f"{sent} instead of {expected}"
    assert sent - on_machine < 0.8 * 4 * ELEMENTS


def a_step_that_is_not_finite_leaves_no_trace(c: Communicator, method: str) -> None:
    for bad in (np.nan, np.inf):
        for tensor in (0, 3):
            compressed, owner = compression(c, method)
            compressed.sum(list(map(tf.constant, gradients(c.rank, 0))), owner)
            (group,) = residuals.groups_of(owner.optimizer)
            before = [memory.array.copy() for memory in group.memories]
            arrays = gradients(c.rank, 1)
            if c.rank == c.size - 1:
                arrays[tensor].reshape(-1)[200] = bad
            sums = compressed.sum(list(map(tf.constant, arrays)), owner)
            assert not np.isfinite(sums[tensor].numpy()).all(), f"{bad} in {tensor} is lost"
            assert alike(c, list(sums))
            for array, memory in zip(before, group.memories, strict=True):
                assert array.tobytes() == memory.array.tobytes(), memory.path


def goes_on_from_what_was_kept(c: Communicator, method: str) -> None:
    """A process that starts again with what is in a snapshot returns the same bytes."""
    compressed, owner = compression(c, method)
    for step in range(3):
        compressed.sum(list(map(tf.constant, gradients(c.rank, step))), owner)
    (group,) = residuals.groups_of(owner.optimizer)
    kept = [memory.array.copy() for memory in group.memories]
    again, new = compression(c, method)
    assert residuals.rebuild(new.optimizer, [group.to_json()])
    assert not residuals.rebuild(new.optimizer, [group.to_json()])
    (rebuilt,) = residuals.groups_of(new.optimizer)
    for memory, array in zip(rebuilt.memories, kept, strict=True):
        memory.assign(array)
    arrays = list(map(tf.constant, gradients(c.rank, 3)))
    assert digest(again.sum(arrays, new)) == digest(compressed.sum(arrays, owner))
    for mine, theirs in zip(rebuilt.memories, group.memories, strict=True):
        assert mine.array.tobytes() == theirs.array.tobytes()


for _method in METHODS:
    for _function in (
        returns_and_owes_all_that_came,
        sends_what_it_should,
        a_step_that_is_not_finite_leaves_no_trace,
        goes_on_from_what_was_kept,
    ):
        CHECKS[f"{_method} {_function.__name__}"] = lambda c, function=_function, method=_method: (
            function(c, method)
        )


@check
def rounds_by_as_little_as_it_can(c: Communicator) -> None:
    """One step's error, where the sum of two of the same size is rounded twice."""
    for method, most in (("bf16", 2**-8), ("fp16", 2**-11), ("int8", 1 / 127)):
        compressed, owner = compression(c, method)
        sums = compressed.sum(list(map(tf.constant, gradients(c.rank, 0))), owner)
        exact = np.sum([gradients(rank, 0)[0] for rank in range(c.size)], 0)
        error = np.abs(sums[0].numpy() - exact).max()
        # Each worker rounds its own to half a unit of its largest, and one rounds the sum.
        assert 0 < error <= most * (c.size + 1) / 2 * np.abs(exact).max(), (method, error)


@check
def a_low_rank_sum_is_found(c: Communicator) -> None:
    """Of gradients whose sum has the rank that is sent, all arrives after a few steps."""
    compressed, owner = compression(c, "powersgd:2")
    arrays = gradients(0, 0)
    random = np.random.default_rng(5)
    low = random.normal(size=(300, 2)) @ random.normal(size=(2, 257))
    arrays[0] = (low * (1 + c.rank)).astype(np.float32)
    for _ in range(3):
        sums = compressed.sum(list(map(tf.constant, arrays)), owner)
    exact = low * sum(range(1, c.size + 1))
    np.testing.assert_allclose(sums[0].numpy(), exact, atol=1e-4 * np.abs(exact).max())


@check
def zeros_come_back_as_zeros_and_do_not_stop_it(c: Communicator) -> None:
    for method in METHODS:
        compressed, owner = compression(c, method)
        zeros = [tf.zeros(shape) for shape in SHAPES]
        for _ in range(2):
            assert not any(np.any(each) for each in compressed.sum(zeros, owner))
        returned = np.zeros(SHAPES[0])
        for _ in range(5):
            returned += compressed.sum([tf.ones(shape) for shape in SHAPES], owner)[0].numpy()
        # A twentieth of the elements is sent, and each brings all that was left of it.
        least = 0.15 if method.startswith("topk") else 0.9
        assert 1.001 > returned.mean() / 5 / c.size > least, method


@check
def leaves_alone_what_it_does_not_compress(c: Communicator) -> None:
    compressed, _ = compression(c, "int8")
    owner = Owner(Optimizer(), tuple("abcdef"))
    rows = tf.IndexedSlices(
        tf.fill([c.rank + 1, 2], 1.5), tf.range(c.rank + 1), tf.constant([9, 2])
    )
    given = [
        rows,
        tf.constant([[3, 4]]) * (c.rank + 1),
        tf.constant([[0.1]], tf.float64),
        tf.constant([1.25]),
    ]
    assert not compressed.acts_on(given, owner)
    half = tf.cast(tf.fill([40, 3], 0.5), tf.bfloat16)
    given = [*given, half, tf.cast(half, tf.float16)]
    assert compressed.acts_on(given, owner)
    total = sum(range(c.size + 1))

    def run() -> Any:
        return compressed.sum(given, owner)

    for sums in (run(), tf.function(run)()):
        assert sums[0].values.shape[0] == total
        np.testing.assert_array_equal(sums[1], [[3 * total, 4 * total]])
        np.testing.assert_allclose(sums[2], [[0.1 * c.size]], rtol=1e-15)
        np.testing.assert_array_equal(sums[3], [1.25 * c.size])
        assert [each.dtype for each in sums[4:]] == [tf.bfloat16, tf.float16]
        for each in sums[4:]:
            np.testing.assert_array_equal(tf.cast(each, tf.float32), np.full([40, 3], c.size / 2))


@check
def residuals_follow_a_scale_of_the_loss(c: Communicator) -> None:
    for method in [m for m in METHODS if m != "fp16"]:  # whose smallest numbers have fewer bits
        compressed, owner = compression(c, method)
        scaled, scaled_owner = compression(c, method)
        for step, scale in enumerate((1.0, 8.0, 4.0)):
            arrays = gradients(c.rank, step)
            scaled_owner = replace(scaled_owner, scale=tf.constant(scale))
            sums = scaled.sum([tf.constant(a * np.float32(scale)) for a in arrays], scaled_owner)
            plain = compressed.sum(list(map(tf.constant, arrays)), owner)
            assert digest([each / scale for each in sums]) == digest(plain), method


@check
def auto_chooses_the_same_on_all_workers_and_keeps_to_it(c: Communicator) -> None:
    path = collective_checks.Path(sys.argv[4]) / "choice.json"
    names = (choice.NONE, *CANDIDATES)
    group = residuals.Group(tuple("abcdef"), SHAPES)
    path.write_text('{"of another job": "topk"}')
    method = Choice(c, machines(c), path, attempt=1).of(group)
    assert method in names
    assert alike(c, [np.array([names.index(method)])])
    # A later attempt takes what the file says, whatever it would measure.
    for other in names:
        if c.rank == 0:
            path.write_text(path.read_text().replace(method, other))
        c.barrier("written")
        assert Choice(c, machines(c), path, attempt=2).of(group) == other
        method = other
        c.barrier("read")
    assert "another job" not in path.read_text()


if __name__ == "__main__":
    collective_checks.main()
