"""The part of the MPI communicator whose sums begin before all gradients are there."""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat.collectives.buckets import Bucket
from drumbeat.collectives.buffers import BufferPool, parts_of
from drumbeat.collectives.calls import Call
from drumbeat.collectives.communicator import Communicator, Mask, Value, not_converted
from drumbeat.collectives.early import EarlySum, Progress, groups_of
from drumbeat.collectives.mpi_nodes import Places
from drumbeat.collectives.mpi_requests import MpiRequests
from drumbeat.errors import CollectiveError


class EarlySums(Communicator):
    """See `early`; `MpiCommunicator` has the rest."""

    _places: Places
    _pool: BufferPool
    _requests: MpiRequests
    _progress: Progress

    @abstractmethod
    def start_header(self, call: Call) -> tuple[np.ndarray, Any]:
        """Begins to compare what the workers call."""

    @abstractmethod
    def finish_header(self, call: Call, started: tuple[np.ndarray, Any]) -> None:
        """Returns when all workers have come to the same call, else raises."""

    @abstractmethod
    def _start_reduce(
        self,
        call: Call,
        bucket: Bucket,
        flat: np.ndarray,
        views: dict[int, np.ndarray],
        arrays: list[np.ndarray],
        op: str,
    ) -> list[Any]:
        """Starts the sum of a bucket."""

    @property
    def places(self) -> Places:
        """Which workers share machines, and what lies between these."""
        return self._places

    @not_converted
    def sum_gradients(self, gradients: Sequence[Value], mask: Mask = list) -> list[Value]:
        """See `Communicator`."""
        values: list[Any] = [
            v if isinstance(v, tf.IndexedSlices) else tf.convert_to_tensor(v) for v in gradients
        ]
        dense = [i for i, v in enumerate(values) if not isinstance(v, tf.IndexedSlices)]
        wide = [
            tf.cast(values[i], tf.float32) if values[i].dtype.size == 2 else values[i]
            for i in dense
        ]
        groups = groups_of(self, wide)
        if groups is None:
            return self.all_reduce(mask(values))
        early = EarlySum(self, wide, groups)
        for number, group in enumerate(groups):
            # A mask over all of them would make the first wait for the last.
            masked = mask([wide[i] for i in group])
            for i, gradient in zip(group, masked, strict=True):
                wide[i] = gradient
            self._bridge(functools.partial(early.begin, number), masked, [])
        sums = self._bridge(early.finish, wide, [tf.TensorSpec(v.shape, v.dtype) for v in wide])
        for i, total in zip(dense, sums, strict=True):
            values[i] = tf.cast(total, values[i].dtype)
        sparse = [i for i, v in enumerate(values) if isinstance(v, tf.IndexedSlices)]
        if sparse:
            gathered = self.all_reduce(mask([values[i] for i in sparse]))
            for i, total in zip(sparse, gathered, strict=True):
                values[i] = total
        return values

    # For `early`, whose calls begin in one operation and end in another.

    @contextlib.contextmanager
    def in_turn(self, call: Call | None = None) -> Iterator[None]:
        """Alone in this communicator; the observer is told of `call`, if any."""
        with self._lock:
            if self._last_error is not None:
                raise self._last_error
            if call is not None and self.observer is not None:
                self.observer.enter(call.sequence, call.kind, call.name)
            try:
                yield
            except CollectiveError as error:
                self._last_error = error
                raise
            finally:
                if call is not None and self.observer is not None:
                    self.observer.leave()

    def next_number(self) -> int:
        """The number of a call that begins."""
        self._sequence += 1
        self.times.calls += 1
        return self._sequence

    def abandon(self, keep: Any) -> None:
        """Keeps buffers for ever that MPI may still use."""
        if keep:
            self._requests.abandoned.append(keep)

    def start_between(
        self, call: Call, key: Any, bucket: Bucket, arrays: Sequence[np.ndarray]
    ) -> dict[int, np.ndarray]:
        """Starts the sum of a bucket; returns where the results will be, by position."""
        flat = self._pool.take(key, bucket.size_bytes)
        views = parts_of(flat, bucket, arrays)
        if bucket.size_bytes:
            with self._progress.lock:
                self._start_reduce(call, bucket, flat, views, list(arrays), "sum")
            self._progress.go()
        return views

    def finish_between(self, call: Call, keep: Any) -> None:
        """Waits for all sums of buckets."""
        between = self._places.between
        assert between is not None  # noqa: S101
        self._progress.stop()
        with self._progress.lock:
            self._requests.wait_until(between.advance, call, self.timeout_s, idle=False, keep=keep)
