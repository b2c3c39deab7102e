"""What every rank does in the collective tests: run as a script, one process a rank.

Each check computes its expectation from the rank alone, so that a wrong result
is found on the rank that got it. All ranks run all checks in the same order.
Writes {check: "" or the reason of its failure} as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from drumbeat.cluster.identity import Identity
from drumbeat.cluster.spec import ClusterSpec
from drumbeat.collectives.choose import communicator
from drumbeat.collectives.communicator import MOVABLE, REDUCIBLE, Communicator
from drumbeat.errors import CollectiveMismatch, CollectiveTimeout, ConfigError

CHECKS: dict[str, Callable[[Communicator], None]] = {}
LAST_CHECKS: dict[str, Callable[[Communicator], None]] = {}


def check(function: Callable[[Communicator], None]) -> Callable[[Communicator], None]:
    CHECKS[function.__name__] = function
    return function


def same(actual: Any, expected: Any) -> None:
    actual = np.asarray(actual)
    expected = np.asarray(expected)
    assert actual.shape == expected.shape, f"{actual.shape} instead of {expected.shape}"
    assert np.array_equal(actual, expected), f"{actual} instead of {expected}"


def both_ways(c: Communicator, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Results of a function run eagerly, in a graph, and in a graph of unknown shapes."""
    unknown = [tf.TensorSpec(None, a.dtype) for a in args]
    return [
        function(*args),
        tf.function(function)(*args),
        tf.function(function, input_signature=unknown)(*args),
    ]


def reduce_each_dtype(c: Communicator) -> None:
    for dtype in REDUCIBLE:
        for op, expected in (
            ("sum", [sum(range(c.size)), c.size]),
            ("min", [0, 1]),
            ("max", [c.size - 1, 1]),
        ):
            x = tf.cast([c.rank, 1], dtype)
            for (y,) in both_ways(c, lambda t, op=op: c.all_reduce([t], op), x):
                assert y.dtype == x.dtype
                same(tf.cast(y, tf.float64), expected)


@check
def reduces_each_dtype_and_op(c: Communicator) -> None:
    reduce_each_dtype(c)


@check
def sums_half_types_in_float32_and_rounds_once(c: Communicator) -> None:
    # Added in float16, 1 would be lost each time: 2048 + 1 = 2048.
    x = tf.constant([2048.0 if c.rank == 0 else 1.0], tf.float16)
    (y,) = c.all_reduce([x])
    same(y, np.array([2048 + (c.size - 1)], np.float32).astype(np.float16))


@check
def reduces_many_shapes_at_once(c: Communicator) -> None:
    shapes = [(), (3,), (0,), (2, 0, 5), (17, 3), (1,), (64,), (5, 4, 3)]
    dtypes = ["float32", "int32", "float64", "float32", "bfloat16", "float32", "int64", "float32"]

    def run(*tensors: tf.Tensor) -> list[Any]:
        return c.all_reduce(tensors)

    args = [
        tf.cast(tf.fill(shape, c.rank + 1 + i), dtype)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    for results in both_ways(c, run, *args):
        for i, (y, x) in enumerate(zip(results, args, strict=True)):
            assert y.dtype == x.dtype
            total = sum(r + 1 + i for r in range(c.size))
            same(tf.cast(y, tf.float64), np.full(x.shape, total, np.float64))


@check
def keeps_static_shapes_in_graphs(c: Communicator) -> None:
    @tf.function
    def run(a: tf.Tensor) -> Any:
        (y,) = c.all_reduce([a])
        (z,) = c.broadcast([a])
        g = c.all_gather(a)
        assert y.shape == z.shape == [3, 2]
        assert g.shape.as_list() == [None, 2]
        return y

    run(tf.ones([3, 2]))


@check
def returns_nothing_for_nothing(c: Communicator) -> None:
    assert c.all_reduce([]) == []
    assert c.broadcast([]) == []


@check
def broadcasts_each_dtype(c: Communicator) -> None:
    for dtype in MOVABLE:
        for root in (0, c.size - 1):
            x = tf.cast([c.rank % 2, 1, 0], dtype)
            for (y,) in both_ways(c, lambda t, root=root: c.broadcast([t], root), x):
                assert y.dtype == x.dtype
                same(tf.cast(y, tf.int32), [root % 2, 1, 0])


@check
def broadcasts_many_keeping_signs_and_nans(c: Communicator) -> None:
    mine = [np.float32([-0.0, np.nan, 3e-45]), np.int64(-5), np.zeros((2, 0), np.float32)]
    other = [np.float32([1, 2, 3]), np.int64(7), np.zeros((2, 0), np.float32)]
    values = [tf.constant(v) for v in (mine if c.rank == 0 else other)]
    for results in both_ways(c, lambda *t: c.broadcast(t), *values):
        assert [r.numpy().tobytes() for r in results] == [m.tobytes() for m in mine]
        assert [tuple(r.shape) for r in results] == [(3,), (), (2, 0)]


@check
def broadcasts_70_megabytes(c: Communicator) -> None:
    big = tf.fill([70 * 2**18], tf.cast(c.rank + 1, tf.float32))
    (y,) = c.broadcast([big])
    same(tf.reduce_min(y), 1.0)
    same(tf.reduce_max(y), 1.0)


@check
def gathers_each_dtype(c: Communicator) -> None:
    for dtype in MOVABLE:
        x = tf.cast([[c.rank, 1]], dtype)
        for y in both_ways(c, c.all_gather, x):
            assert y.dtype == x.dtype
            expected = [[int(bool(r)) if dtype == "bool" else r, 1] for r in range(c.size)]
            same(tf.cast(y, tf.int32), expected)


@check
def gathers_uneven_rows(c: Communicator) -> None:
    x = tf.fill([c.rank * 2, 3], c.rank)
    expected = np.repeat(np.arange(c.size), np.arange(c.size) * 2)[:, None] * np.ones([1, 3], int)
    for y in both_ways(c, c.all_gather, x):
        same(y, expected)


@check
def gathers_no_rows_at_all(c: Communicator) -> None:
    for shape in ([0, 4], [2, 0]):
        for y in both_ways(c, c.all_gather, tf.zeros(shape)):
            assert y.shape == [shape[0] * c.size, shape[1]]


@check
def sums_indexed_slices_as_one_worker_would(c: Communicator) -> None:
    def slices(rank: int) -> tf.IndexedSlices:
        rows = rank + 1
        return tf.IndexedSlices(
            tf.fill([rows, 2], float(rank + 1)), tf.range(rows) + rank, tf.constant([9, 2])
        )

    whole = sum(tf.convert_to_tensor(slices(r)).numpy() for r in range(c.size))
    mine = slices(c.rank)

    def run(values: tf.Tensor, indices: tf.Tensor, dense: tf.Tensor) -> Any:
        first, second, third = c.all_reduce(
            [dense, tf.IndexedSlices(values, indices, tf.constant([9, 2])), dense[:1]]
        )
        return first, second.values, second.indices, third

    for first, values, indices, third in both_ways(
        c, run, mine.values, mine.indices, tf.ones([2], tf.float64)
    ):
        same(first, [c.size, c.size])
        same(third, [c.size])
        same(indices, np.concatenate([np.arange(r + 1) + r for r in range(c.size)]))
        same(tf.convert_to_tensor(tf.IndexedSlices(values, indices, tf.constant([9, 2]))), whole)


@check
def keeps_gradients_of_an_embedding_sparse(c: Communicator) -> None:
    table = tf.Variable(tf.zeros([6, 2]))

    @tf.function
    def run(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids))
        (gradient,) = c.all_reduce([tape.gradient(loss, table)])
        assert isinstance(gradient, tf.IndexedSlices)
        return tf.convert_to_tensor(gradient)

    expected = np.zeros([6, 2])
    expected[: c.size] += 1
    expected[5] += c.size
    same(run(tf.constant([c.rank, 5])), expected)


@check
def runs_in_program_order(c: Communicator) -> None:
    # Nothing but the order of the text says which is first, and the first
    # one's input takes longer to compute.
    @tf.function
    def run(x: tf.Tensor) -> Any:
        slow = x
        for _ in range(20):
            slow = tf.linalg.matmul(slow, x)
        (a,) = c.all_reduce([slow])
        (b,) = c.all_reduce([x * 2])
        g = c.all_gather(x[:1])
        (d,) = c.broadcast([x * 3])
        return a, b, g, d

    x = tf.eye(60)
    before = c._sequence  # noqa: SLF001
    for _ in range(10):
        a, b, g, d = run(x)
        same(a, np.eye(60) * c.size)
        same(b, np.eye(60) * 2 * c.size)
        same(d, np.eye(60) * 3)
        same(g, np.repeat(np.eye(60)[:1], c.size, 0))
    assert c._sequence - before == 40  # noqa: SLF001


@check
def runs_in_order_across_functions_and_loops_with_variables(c: Communicator) -> None:
    # TensorFlow orders a function or loop that uses variables only against what
    # uses the same ones; the results are not used either.
    weights = tf.Variable(tf.eye(400))

    @tf.function
    def unused(x: tf.Tensor) -> None:
        for _ in range(5):
            x = tf.linalg.matmul(x, weights)
        c.all_reduce([x])
        c.barrier("middle")

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        unused(x)
        c.broadcast([x[0]])
        i = tf.constant(0)
        while i < 2:
            c.all_gather(tf.linalg.matmul(weights, weights) + x)
            i += 1
        (y,) = c.all_reduce([x[0] + 1])
        return y

    called: list[str] = []
    agree = c._agree  # noqa: SLF001

    def record(call: Any) -> None:
        called.append(call.kind)
        agree(call)

    c._agree = record  # noqa: SLF001
    try:
        for _ in range(5):
            same(outer(tf.ones([400, 400])), [2.0 * c.size] * 400)
    finally:
        c._agree = agree  # noqa: SLF001
    once = ["all_reduce", "barrier", "broadcast", "all_gather", "all_gather", "all_reduce"]
    assert called == once * 5, called


@check
def runs_in_while_loops_and_branches(c: Communicator) -> None:
    @tf.function
    def run(x: tf.Tensor, steps: tf.Tensor) -> Any:
        i = tf.constant(0)
        total = tf.zeros_like(x)
        while i < steps:
            (y,) = c.all_reduce([x + tf.cast(i, x.dtype)])
            (z,) = c.broadcast([y * 2])
            if i % 2 == 0:
                (w,) = c.all_reduce([z])
            else:
                w = tf.reduce_sum(c.all_gather(z), 0, keepdims=True)
            total += w
            i += 1
        return total

    x = tf.ones([1])
    for steps in (3, 4):
        expected = sum((1 + i) * 2 * c.size * c.size for i in range(steps))
        same(run(x, tf.constant(steps)), [expected])


@check
def never_overwrites_a_result_that_is_still_read(c: Communicator) -> None:
    @tf.function
    def run(x: tf.Tensor) -> Any:
        a, b = c.all_reduce([x, x + 1])
        # Two of the same layout in one function: the first must survive the second.
        d, e = c.all_reduce([x * 10, x * 10 + 1])
        return a, b, d, e

    kept = []
    for step in range(12):
        kept.append((step, run(tf.fill([4096], float(step)))))
        eager = c.all_reduce([tf.fill([4096], float(step)), tf.ones([4096])])
        kept.append((step, (*eager, *run(tf.fill([4096], float(step)))[2:])))
    for n, (step, (a, b, d, e)) in enumerate(kept):
        last = c.size if n % 2 else c.size * (step + 1)
        for tensor, value in ((a, step * c.size), (b, last), (d, step * 10 * c.size)):
            same(tf.reduce_min(tensor), float(value))
            same(tf.reduce_max(tensor), float(value))
        same(e[0], (step * 10 + 1) * c.size)


@check
def never_changes_its_inputs(c: Communicator) -> None:
    x = tf.fill([1000], float(c.rank))
    y = tf.fill([1000], float(c.rank))
    for _ in range(3):
        c.all_reduce([x])
        c.all_reduce([x, y])
        c.broadcast([x, y], 0)
        tf.function(lambda a, b: c.all_reduce([a]) + c.all_reduce([a, b]) + c.broadcast([a, b]))(
            x, y
        )
    same(x, np.full(1000, c.rank))
    same(y, np.full(1000, c.rank))


@check
def gives_every_rank_the_same_bytes(c: Communicator) -> None:
    for elements in (1, 3, 17, 500, 4097, 70_001, 600_003):
        rng = np.random.default_rng(elements + c.rank)
        noise = rng.standard_normal(elements) * 10 ** rng.uniform(-6, 6, elements)
        results = c.all_reduce([tf.constant(noise, tf.float32), tf.constant(noise[::-1].copy())])
        digest = hashlib.sha256(b"".join(r.numpy().tobytes() for r in results)).digest()
        gathered = c.all_gather_numpy(np.frombuffer(digest, np.uint8)[None])
        assert len({row.tobytes() for row in gathered}) == 1, f"differ at {elements} elements"


@check
def carries_control_data_as_numpy(c: Communicator) -> None:
    same(c.all_reduce_numpy(np.int64(c.rank), "max"), c.size - 1)
    same(c.broadcast_numpy(np.array([c.rank + 5.0]), c.size - 1), [c.size + 4.0])
    same(c.all_gather_numpy(np.full([c.rank], c.rank)), np.repeat(range(c.size), range(c.size)))
    c.barrier("control")


@check
def carries_control_data_while_a_graph_is_traced(c: Communicator) -> None:
    @tf.function
    def run(x: tf.Tensor) -> tf.Tensor:
        known = c.all_reduce_numpy(np.int64(1))
        return x + float(known)

    same(run(tf.zeros([])), float(c.size))


@check
def swaps_rows_and_sums_arrays_in_program_order(c: Communicator) -> None:
    words = 70_001

    def body(x: Any) -> list[Any]:
        # What rank r sends to rank s is r * 100 + s.
        rows = np.repeat(np.arange(c.size, dtype=np.int32) + 100 * c.rank, words)
        came = c.swap_rows(rows.reshape(c.size, words), name="swap")
        everyones = c.gather_rows(came[:, 0].copy(), name="gather")
        scalar, empty, total = c.sum_arrays(
            [np.float32(c.rank).reshape([]), np.zeros([0, 2], np.float64), np.asarray(x)]
        )
        assert (scalar.shape, empty.shape, int(scalar)) == ((), (0, 2), sum(range(c.size)))
        assert (came == came[:, :1]).all()
        return [everyones, total]

    specs = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([3], tf.float32)]
    x = tf.fill([3], float(c.rank + 1))
    for everyones, total in both_ways(c, lambda t: c.in_order(body, [t], specs), x):
        same(everyones, [[100 * r + s for r in range(c.size)] for s in range(c.size)])
        same(total, np.full([3], sum(range(c.size + 1)), np.float32))


@check
def tells_its_observer(c: Communicator) -> None:
    told: list[Any] = []

    class Observer:
        def enter(self, number: int, kind: str, name: str) -> None:
            told.append((number, kind, name))

        def leave(self) -> None:
            told.append("left")

    c.observer = Observer()
    try:
        c.barrier("first")
        tf.function(lambda: c.all_reduce([tf.ones([2])], name="second"))()
    finally:
        c.observer = None
    number = told[0][0]
    assert told == [
        (number, "barrier", "first"),
        "left",
        (number + 1, "all_reduce", "second"),
        "left",
    ]


@check
def refuses_what_it_cannot_carry(c: Communicator) -> None:
    for call, said in (
        (lambda: c.all_reduce([tf.constant("a")]), "can't carry string"),
        (lambda: c.all_reduce([tf.constant(True)]), "can't carry bool"),
        (lambda: c.all_gather(tf.constant(["a"])), "can't carry string"),
        (lambda: c.all_gather(tf.constant(1.0)), "scalar"),
        (lambda: c.all_reduce([tf.constant(1.0)], "mean"), "op='mean'"),
        (lambda: c.broadcast([tf.constant(1.0)], c.size), f"root={c.size}"),
        (
            lambda: c.all_reduce([tf.IndexedSlices(tf.ones([1]), tf.constant([0]))], "max"),
            "only be summed",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            call()
    c.barrier()


@check
def grows_no_memory(c: Communicator) -> None:
    run = tf.function(lambda x: c.all_reduce([x, x + 1]))
    x = tf.ones([2**18])

    def resident_mb() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    growth_mb = []
    for _ in range(4):
        before = resident_mb()
        for _ in range(100):
            run(x)
        growth_mb.append(resident_mb() - before)
    # Allocators fetch memory in jumps, now and then; what leaks grows in every block of calls.
    assert min(growth_mb) < 20, f"each 100 calls took more memory: {growth_mb} MB"


def ends_in(
    c: Communicator, kind: type[Exception], call: Callable[[], Any], *said: str, within_s: float
) -> None:
    """Runs a call that must fail on this rank; then lets the test go on as if it had not."""
    begin = time.monotonic()
    with pytest.raises((kind, tf.errors.OpError)) as caught:
        call()
    took_s = time.monotonic() - begin
    assert took_s < within_s, f"took {took_s:.1f} s"
    assert isinstance(c.last_error, kind), repr(c.last_error)
    text = str(c.last_error)
    assert text in str(caught.value)
    for words in said:
        assert words in text, f"{words!r} is not in {text!r}"
    with pytest.raises(kind, match=re.escape(text)):
        c.barrier("after")
    with pytest.raises(kind, match=re.escape(text)):
        c.raise_last_error()
    # After a mismatch the workers are in step again, which only a test can know.
    if kind is CollectiveMismatch:
        c._last_error = None  # noqa: SLF001


def _mismatch(first: Callable[[Any], Any], other: Callable[[Any], Any], *said: str) -> Any:
    def run(c: Communicator) -> None:
        mine = first if c.rank == 0 else other
        for way in (mine, lambda c: tf.function(lambda: mine(c))()):
            ends_in(
                c, CollectiveMismatch, lambda way=way: way(c), "worker 0 called", *said, within_s=5
            )

    return run


for _name, _run in {
    "mismatch_in_kind": _mismatch(
        lambda c: c.all_reduce([tf.ones([3, 3, 1, 8]), tf.ones([8])]),
        lambda c: c.broadcast([tf.ones([10])]),
        "called all_reduce #",
        "(float32[3,3,1,8], float32[8]) while worker",
        "called broadcast #",
        "(float32[10])",
    ),
    "mismatch_in_shape": _mismatch(
        lambda c: c.all_reduce([tf.ones([6])]),
        lambda c: c.all_reduce([tf.ones([2, 3])]),
        "(float32[6])",
        "(float32[2,3])",
    ),
    "mismatch_in_dtype": _mismatch(
        lambda c: c.all_reduce([tf.ones([6])]),
        lambda c: c.all_reduce([tf.ones([6], tf.int32)]),
        "float32[6]",
        "int32[6]",
    ),
    "mismatch_in_op": _mismatch(
        lambda c: c.all_reduce([tf.ones([6])], "max"),
        lambda c: c.all_reduce([tf.ones([6])]),
        "op=max",
    ),
    "mismatch_in_name": _mismatch(
        lambda c: c.barrier("before save"),
        lambda c: c.barrier("after save"),
        "'before save'",
        "'after save'",
    ),
    "mismatch_in_columns_of_a_gather": _mismatch(
        lambda c: c.all_gather(tf.ones([1, 2])),
        lambda c: c.all_gather(tf.ones([1, 3])),
        "float32[?,2]",
        "float32[?,3]",
    ),
    "mismatch_in_many_tensors": _mismatch(
        lambda c: c.all_reduce([tf.ones([100, 100])] * 60),
        lambda c: c.all_reduce([tf.ones([100, 100])] * 59 + [tf.ones([1])]),
        "60 tensors",
    ),
}.items():
    CHECKS[_name] = _run


def times_out(c: Communicator) -> None:
    """The last rank never comes in time; must be the last check."""
    last = c.size - 1
    c.barrier("start")
    c.timeout_s = 1.5
    if c.rank == last:
        time.sleep(4)
        if type(c).__name__ == "MpiCommunicator":
            ends_in(
                c,
                CollectiveTimeout,
                lambda: c.all_reduce([tf.ones([2])]),
                f"worker {last} came to all_reduce #",
                "too late",
                within_s=3,
            )
        return
    said = [f"worker {c.rank} waited 1.", "in all_reduce #", "(float32[2])"]
    if type(c).__name__ == "MpiCommunicator":
        said.append(f"for worker {last}, which never came")
    else:
        said.append("for worker 1" if c.size == 2 else "for workers ")
    run = tf.function(lambda: c.all_reduce([tf.ones([2])]))
    ends_in(c, CollectiveTimeout, run, *said, within_s=4)


LAST_CHECKS["times_out"] = times_out


def connect() -> Communicator:
    kind, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if rank < 0:
        rank = int(os.environ["PMI_RANK"])  # the agent tells each its own
    identity = Identity(
        rank=rank,
        world_size=size,
        local_rank=rank,
        local_world_size=size,
        collectives=kind,
        run_dir="",
        name=f"worker {rank}",
        timeout_s=30.0,
    )
    return communicator(identity, ClusterSpec.from_env(os.environ))


def leave_together(folder: Path, c: Communicator) -> None:
    """A rank that ends must not disturb another's last checks."""
    (folder / f"{c.rank}.done").touch()
    deadline = time.monotonic() + 15
    while len(list(folder.glob("*.done"))) < c.size and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> None:
    c = connect()
    folder = Path(sys.argv[4])
    results = {}
    for name, function in {**CHECKS, **LAST_CHECKS}.items():
        begin = time.monotonic()
        try:
            function(c)
            results[name] = ""
        except Exception:  # noqa: BLE001  (goes into the report)
            results[name] = traceback.format_exc()
        print(f"{name}: {time.monotonic() - begin:.2f} s {results[name]}", flush=True)
        (folder / f"{c.rank}.json").write_text(json.dumps(results))
        if results[name]:
            break  # the ranks may be out of step
    leave_together(folder, c)


if __name__ == "__main__":
    main()
