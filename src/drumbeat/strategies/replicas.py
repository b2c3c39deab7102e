"""Runs a replica function: once, or once for each virtual shard that this worker holds."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.data.distributed import rows_of
from drumbeat.data.rows import BatchRows, Span, as_int64, num_rows
from drumbeat.data.shares import cut
from drumbeat.strategies.lockstep import Lockstep
from drumbeat.tf_internals import PerReplica, thread_scopes


class Replica:
    """One run of a replica function.

    Attributes:
        number: Which of all replicas of the job it is.
        absent: Whether it has no rows in this step and runs on a row of zeros: a bool
            tensor; None where it surely has some.
        lockstep: Where it meets the other replicas of this worker; None when it is alone.
        has_batch: Whether there is a batch among what it was given.
        known_rows: The rows of that batch, where Python knows them.
    """

    def __init__(
        self,
        number: int,
        find_span: Callable[[], Span],
        lockstep: Lockstep | None,
        *,
        rows: Any = None,
    ) -> None:
        self.number = number
        self.absent: Any = None
        self.lockstep = lockstep
        self.has_batch = rows is not None
        self.known_rows = rows if isinstance(rows, int) else None
        self._find_span = find_span
        self._spans: dict[Any, Span] = {}

    def span(self) -> Span:
        """The rows of the global batch that it holds."""
        # A tensor belongs to the graph that it was made in, such as a branch's.
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if graph not in self._spans:
            self._spans[graph] = self._find_span()
        return self._spans[graph]

    @contextlib.contextmanager
    def seen_as(self, span: Span, absent: Any) -> Iterator[None]:
        """Within this, what it holds is what these tensors say, such as arguments of a graph."""
        before = (self._find_span, self._spans, self.absent)
        self._find_span, self._spans, self.absent = lambda: span, {}, absent
        try:
            yield
        finally:
            self._find_span, self._spans, self.absent = before


class Replicas:
    """The replicas of one worker.

    Args:
        rows: Where input iterators record the span of the worker's batch.
        rank: This worker.
        world_size: Number of workers.
        count: Replicas in each worker.
        lockstep: Run them so that they can meet, also a single one.
        fixed_shards: Which rows of a global batch are a replica's depends on how many there
            are in the job, not on how they are spread over workers.
        context: Makes the replica context of the replica with that number.
    """

    def __init__(
        self,
        rows: BatchRows,
        *,
        rank: int,
        world_size: int,
        count: int,
        lockstep: bool,
        fixed_shards: bool,
        context: Callable[[int], AbstractContextManager[Any]],
    ) -> None:
        self.count = count
        self.total = world_size * count
        self.first = rank * count
        self._rows = rows
        self._lockstep = lockstep
        self._fixed_shards = fixed_shards
        self._context = context
        self._local = threading.local()
        self._lifted: Any = weakref.WeakKeyDictionary()

    @property
    def can_meet(self) -> bool:
        """Whether they run so that they can meet."""
        return self._lockstep

    @property
    def current(self) -> Replica | None:
        """The replica that the caller runs in."""
        return getattr(self._local, "replica", None)

    def run(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What `fn` returns: its result, or for several replicas `PerReplica` values."""
        calls_graph = tf.executing_eagerly() and isinstance(
            fn, tf.types.experimental.PolymorphicFunction
        )
        if self._lockstep:
            fn = self._lift(fn) if calls_graph else functools.partial(self._run_shards, fn)
            return fn(*args, **kwargs)
        rows = here = num_rows((args, kwargs))
        if calls_graph and rows is not None:
            # The graph serves batches of other sizes as well: it must not keep this number.
            self._rows.local.assign(rows)
            here = self._rows.local
        replica = Replica(self.first, lambda: self._rows.span(here), None, rows=rows)
        return self._as(replica, fn, args, kwargs)

    def _as(self, replica: Replica, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        outer = self.current
        self._local.replica = replica
        try:
            with self._context(replica.number):
                return fn(*args, **kwargs)
        finally:
            self._local.replica = outer

    def _lift(self, fn: Any) -> Any:
        """`fn` run by the replicas within one graph: they can't meet from graphs of their own."""
        if fn not in self._lifted:
            inner = fn.python_function
            # The strategy's `run` converts `inner`, and nothing of ours, by AutoGraph.
            self._lifted[fn] = tf.function(
                lambda *args, **kwargs: tf.distribute.get_strategy().run(inner, args, kwargs),
                reduce_retracing=True,
            )
        return self._lifted[fn]

    def _inner_bounds(self, worker: Span) -> list[Any]:
        """Where in the global batch each of the worker's replicas begins, but the first."""
        start, rows, total = worker
        further = range(1, self.count)
        if not self._fixed_shards:
            return [start + cut(i, self.count, rows) for i in further]
        wanted = (cut(self.first + i, self.total, total) for i in further)
        return [tf.clip_by_value(bound, start, start + rows) for bound in wanted]

    def _run_shards(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # What runs when they meet belongs to none of them, but to the worker.
        return self._as(
            Replica(self.first, lambda: self._rows.span(num_rows((args, kwargs))), None),
            self._in_lockstep,
            (fn, args, kwargs),
            {},
        )

    def _in_lockstep(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        lockstep = Lockstep(_scopes())
        bodies = []
        with tf.device("CPU:0"):  # Where batches come from, and where slices look for bounds.
            split = _Split(args, kwargs, self)
            parts = [split.take(index) for index in range(self.count)]
        for index, (own_args, own_kwargs) in enumerate(parts):
            rows = num_rows((own_args, own_kwargs))
            replica = Replica(
                self.first + index,
                functools.partial(split.span, index, rows),
                lockstep,
                rows=rows,
            )
            bodies.append(functools.partial(self._as, replica, fn, own_args, own_kwargs))
        return _regroup(lockstep.run(bodies))


def _scopes() -> Callable[[], AbstractContextManager[Any]]:
    """The state of TensorFlow and Keras that is a thread's own, for the threads of replicas."""
    enter, adopt = thread_scopes(), touch.thread_state()

    @contextlib.contextmanager
    def scopes() -> Iterator[None]:
        adopt()
        with enter():
            yield

    return scopes


class _Split:
    """The worker's batch, cut into its virtual shards.

    Tensors with as many rows as the batch are cut; values that have a component for
    each replica give it that; all else goes to every replica.
    """

    def __init__(self, args: Any, kwargs: Any, replicas: Replicas) -> None:
        self._data = (args, kwargs)
        self._first, self._total = replicas.first, replicas.total
        self._rows = num_rows(self._data)
        leaves = tf.nest.flatten(self._data)
        self.bounds: list[Any] | None = None
        if self._rows is None or any(isinstance(leaf, PerReplica) for leaf in leaves):
            return
        self._worker = replicas._rows.span(self._rows)
        start, rows, _ = self._worker
        self.bounds = [start, *replicas._inner_bounds(self._worker), start + rows]

    def span(self, index: int, local_rows: Any) -> Span:
        """The rows of the global batch in shard `index`, which got `local_rows` rows."""
        if self.bounds is None:  # Not cut here: all shards are taken to have as many.
            rows = as_int64(1 if local_rows is None else local_rows)
            return Span(rows * (self._first + index), rows, rows * self._total)
        start, stop = self.bounds[index], self.bounds[index + 1]
        return Span(start, stop - start, self._worker.total)

    def take(self, index: int) -> tuple[Any, Any]:
        """The arguments for replica `index`."""

        def part(leaf: Any) -> Any:
            if isinstance(leaf, PerReplica):
                return leaf.values[index]
            own = num_rows(leaf)
            if self.bounds is None or own is None:
                return leaf
            # A known number is no batch's where that of the batch is unknown.
            if isinstance(own, int) and not (isinstance(self._rows, int) and own == self._rows):
                return leaf
            offset = self._worker.start
            start, stop = self.bounds[index] - offset, self.bounds[index + 1] - offset
            whole = tf.equal(tf.cast(own, tf.int64), self._worker.rows)
            zero = tf.zeros([], tf.int64)
            return rows_of(leaf, tf.where(whole, start, zero), tf.where(whole, stop, own))

        args, kwargs = tf.nest.map_structure(part, self._data)
        return args, kwargs


def _regroup(results: list[Any]) -> Any:
    """One structure with a `PerReplica` value wherever the replicas returned tensors."""

    def group(*leaves: Any) -> Any:
        if not tf.is_tensor(leaves[0]):
            return leaves[0]
        return PerReplica(leaves)

    return tf.nest.map_structure(group, *results)


class LockstepContext(tf.distribute.ReplicaContext):
    """A replica context whose `merge_call` waits for the other replicas of the worker."""

    def _merge_call(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        extended: Any = self.strategy.extended
        replica = extended.replicas.current
        if replica is None or replica.lockstep is None:
            return super()._merge_call(merge_fn, args, kwargs)

        def merge(everyones: list[Any]) -> Any:
            grouped = tf.nest.map_structure(lambda *leaves: PerReplica(leaves), *everyones)
            return super(LockstepContext, self)._merge_call(merge_fn, *grouped)

        return replica.lockstep.meet((args, kwargs), merge)
