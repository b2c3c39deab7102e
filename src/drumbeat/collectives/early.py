"""Sums of gradients that start while the backward pass still computes the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from drumbeat.collectives.buckets import arrival_groups, plan
from drumbeat.collectives.calls import Call, TensorSpec, digest_of

if TYPE_CHECKING:
    from drumbeat.collectives.mpi_early import EarlySums

# What a Python function in a graph takes by itself, measured in steps of the small CNN.
_OPERATION_S = 1e-4
# While the backward pass computes, transfers are looked after this often, each time with so
# many polls. In the pause 10 Gbit/s bring 0.6 MB, which the sockets hold. Measured at 1 Gbit/s:
# 116 MB/s, as without a pause, for 0.14 of a core; with one poll 112 MB/s.
_PAUSE_S = 0.5e-3
_POLLS = 16


def groups_of(communicator: EarlySums, values: Sequence[Any]) -> tuple[tuple[int, ...], ...] | None:
    """Which gradients to sum together, in the order in which they are computed.

    What can't be hidden is a group's latency, for each, and the transfer of the last
    one: groups of sqrt(all bytes * latency / time per byte) bytes make the sum of both
    smallest. The sums don't depend on it, see `between`.

    Returns:
        None where one sum for all is best: on one machine, for small models; and where any
        machine has several workers, which meet in memory first. The same on all workers.
    """
    places = communicator.places
    if not places.one_each or not places.cost.s_per_byte:
        return None
    if tf.executing_eagerly() or not all(v.shape.is_fully_defined() for v in values):
        return None
    sizes = [v.shape.num_elements() * v.dtype.size for v in values]
    latency_s = places.cost.latency_s + _OPERATION_S
    groups = arrival_groups(sizes, (sum(sizes) * latency_s / places.cost.s_per_byte) ** 0.5)
    return groups if len(groups) > 1 else None


class EarlySum:
    """One place in a graph where gradients are summed in groups.

    Each group starts in an operation of its own that returns at once; the last operation
    waits for all. Between them nobody waits, so that workers are compared, and a missing
    one is noticed, in the last one only: before any result is used.

    Args:
        communicator: Of the workers.
        values: The gradients, as they are when the graph is traced.
        groups: Positions in `values`.
    """

    def __init__(
        self,
        communicator: EarlySums,
        values: Sequence[Any],
        groups: tuple[tuple[int, ...], ...],
    ) -> None:
        self._communicator = communicator
        self._groups = groups
        self._specs = tuple(
            TensorSpec(dtype=v.dtype.name, shape=tuple(v.shape.as_list())) for v in values
        )
        self._digest = digest_of("all_reduce", self._specs, "", "")
        self._call: Call | None = None
        self._results: list[Any] = []
        self._keep: list[Any] = []
        self._header: Any = None

    def begin(self, number: int, *arrays: np.ndarray) -> list[Any]:
        """Starts the sum of a group; its tensors must live until `finish` has returned."""
        communicator = self._communicator
        with communicator.in_turn():
            if number == 0:
                self._call = Call(
                    kind="all_reduce",
                    sequence=communicator.next_number(),
                    specs=self._specs,
                    digest=self._digest,
                )
                # What a step left behind that failed in between is MPI's still.
                communicator.abandon(self._keep)
                self._results = [None] * len(self._specs)
                self._header = communicator.start_header(self._call)
                self._keep = [self._header]
            assert self._call is not None  # noqa: S101
            group = self._groups[number]
            communicator.times.bytes_sent += sum(array.nbytes for array in arrays)
            buckets = plan([(a.dtype.name, a.size, a.itemsize) for a in arrays])
            for place, bucket in enumerate(buckets):
                views = communicator.start_between(
                    self._call, (self._digest, number, place), bucket, arrays
                )
                for index, view in views.items():
                    self._results[group[index]] = view
            self._keep.append(arrays)
        return []

    def finish(self, *arrays: np.ndarray) -> list[Any]:
        """Waits for the sums of all groups."""
        communicator, call = self._communicator, self._call
        assert call is not None  # noqa: S101
        with communicator.in_turn(call):
            began_s = time.monotonic()
            communicator.finish_header(call, self._header)
            agreed_s = time.monotonic()
            communicator.times.waiting_s += agreed_s - began_s
            communicator.finish_between(call, (self._keep, arrays))
            communicator.times.transfer_s += time.monotonic() - agreed_s
            results, self._results, self._keep = self._results, [], []
            return results


class Progress:
    """A thread that lets MPI work while this process computes; MPI only works when called.

    Args:
        advance: Lets MPI work; returns whether nothing is left to do.
    """

    def __init__(self, advance: Any) -> None:
        self.lock = threading.Lock()
        self._advance = advance
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def go(self) -> None:
        """There is something to do."""
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """The caller drives MPI from now on."""
        self._wanted.clear()

    def _run(self) -> None:
        while self._wanted.wait():
            with self.lock:
                try:
                    is_over = any(
                        not self._wanted.is_set() or self._advance() for _ in range(_POLLS)
                    )
                except Exception:  # noqa: BLE001  (whoever waits for it finds it too)
                    is_over = True
                if is_over:
                    self._wanted.clear()
            time.sleep(_PAUSE_S)
