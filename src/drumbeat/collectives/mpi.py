"""Communicator over MPI: shared memory within a machine, TCP or a fast fabric between them."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drumbeat.collectives.bridge import Bridge
from drumbeat.collectives.buckets import Bucket, plan
from drumbeat.collectives.buffers import BufferPool, aligned_empty
from drumbeat.collectives.calls import (
    TEXT_BYTES,
    Call,
    mismatch_message,
    text_from_bytes,
    workers,
)
from drumbeat.collectives.communicator import Communicator, row_elements
from drumbeat.collectives.mpi_library import finalize, in_place, loaded_mpi, reduction, started_mpi
from drumbeat.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, ConfigError

if TYPE_CHECKING:
    from mpi4py import MPI

# Polls before the first pause: about 50 µs, several times a small collective.
_SPIN_POLLS = 200
_SHORTEST_PAUSE_S = 50e-6
_LONGEST_PAUSE_S = 1e-3
# After this long, look for notes of workers that gave up.
_NOTES_AFTER_S = 0.05
# How long a worker that gives up collects the notes of the others.
_SURVEY_S = 1.0
_NOTE_TAG = 7


class MpiCommunicator(Communicator):
    """Collectives on nonblocking MPI calls, polled so that each wait has a deadline.

    Copies of a gradient in an all-reduce: one into the flat buffer (none if it
    is alone in its bucket); MPI works in place; TensorFlow takes the result over
    where it lies.
    """

    def __init__(
        self,
        *,
        comm: MPI.Intracomm,
        farewell: MPI.Intracomm,
        timeout_s: float,
        bucket_bytes: int | None = None,
    ) -> None:
        """Stores; use `connect`."""
        super().__init__(
            rank=comm.Get_rank(),
            size=comm.Get_size(),
            timeout_s=timeout_s,
            bridge=Bridge(on_device=False),
        )
        self._comm = comm
        # Of its own, so that the barrier of a worker that ends can't be taken for
        # its part in a collective that others still call.
        self._farewell = farewell
        self._bucket_bytes = bucket_bytes
        self._pool = BufferPool()
        # MPI may still write to the buffers of operations that we gave up on.
        self._abandoned: list[Any] = []
        self._closed = False

    @classmethod
    def connect(
        cls, *, rank: int, size: int, timeout_s: float, bucket_bytes: int | None = None
    ) -> MpiCommunicator:
        """Starts MPI in this process if it has not been started, and checks who we are.

        Args:
            rank: The rank that the agent gave this worker.
            size: The world size that the agent told it.
            timeout_s: Deadline of one collective, seconds.
            bucket_bytes: See `buckets.plan`.

        Raises:
            ConfigError: MPI can't be loaded, or disagrees about rank or world size.
            CollectiveTimeout: The other workers did not connect in time.
        """
        mpi = started_mpi(timeout_s)
        world = mpi.COMM_WORLD
        if (world.Get_rank(), world.Get_size()) != (rank, size):
            raise ConfigError(
                f"MPI says this process is rank {world.Get_rank()} of {world.Get_size()}, but its "
                f"environment (DRUMBEAT_RANK, DRUMBEAT_WORLD_SIZE) says rank {rank} of {size}. "
                "Start workers with `drumbeat run` alone, not under mpiexec or srun, or choose "
                "--collectives tensorflow."
            )
        deadline = time.monotonic() + timeout_s
        communicator = cls(
            comm=_duplicate(world, deadline),
            farewell=_duplicate(world, deadline),
            timeout_s=timeout_s,
            bucket_bytes=bucket_bytes,
        )
        atexit.register(communicator.close)
        return communicator

    def close(self, grace_s: float = 1.0) -> None:
        """Leaves the others in peace: lets what we sent arrive, then ends MPI if all are here.

        MPI_Finalize waits for every worker without a deadline, so it is called
        only once all have come, and left alone if it doesn't return. A worker
        that ends early goes without it after `grace_s` seconds, in which MPI
        delivers what it still holds. Idempotent; registered to run at exit.
        """
        if self._closed:
            return
        self._closed = True
        if self._last_error is not None:
            return
        deadline = time.monotonic() + grace_s
        request = self._farewell.Ibarrier()
        while not request.Test():
            if time.monotonic() > deadline:
                return
            time.sleep(_LONGEST_PAUSE_S)
        ending = threading.Thread(target=finalize, daemon=True)
        ending.start()
        ending.join(max(grace_s, 1.0))

    def _agree(self, call: Call) -> None:
        fingerprint = call.fingerprint()
        header = np.array([fingerprint, -fingerprint], np.int64)
        request = self._start(
            lambda: self._comm.Iallreduce(in_place(), header, reduction("min")), call
        )
        self._wait([request], call, idle=True, keep=header)
        if header[0] != -header[1]:
            raise CollectiveMismatch(mismatch_message(self._exchange_texts(call)))
        # What the others sent before they gave up may have completed the exchange.
        if self._has_note():
            raise CollectiveTimeout(self._survey(call, 0.0, arriving=True))

    def _exchange_texts(self, call: Call) -> list[str]:
        mine = np.frombuffer(call.to_bytes(), np.uint8)
        texts = np.zeros((self.size, TEXT_BYTES), np.uint8)
        request = self._start(lambda: self._comm.Iallgather(mine, texts), call)
        self._wait([request], call, idle=True, keep=(mine, texts))
        return [text_from_bytes(row.tobytes()) for row in texts]

    def _reduce(self, call: Call, values: list[Any], op: str) -> list[Any]:
        arrays = [np.asarray(value) for value in values]
        buckets = self._plan(tuple((a.dtype.name, a.size, a.itemsize) for a in arrays))
        results: list[Any] = list(arrays)
        requests = []
        for number, bucket in enumerate(buckets):
            flat = self._pool.take((call.specs, number), bucket.size_bytes)
            views = {slot.index: _view(flat, slot, arrays[slot.index]) for slot in bucket.slots}
            for index, view in views.items():
                results[index] = view
            if bucket.size_bytes:
                requests.append(self._start_reduce(call, bucket, flat, views, arrays, op))
        self._wait(requests, call, idle=False, keep=(results, arrays))
        return results

    def _start_reduce(
        self,
        call: Call,
        bucket: Bucket,
        flat: np.ndarray,
        views: dict[int, np.ndarray],
        arrays: list[np.ndarray],
        op: str,
    ) -> MPI.Request:
        typed = flat.view(bucket.dtype)
        if len(views) == 1:
            sent = arrays[bucket.slots[0].index].reshape(-1)
            return self._start(lambda: self._comm.Iallreduce(sent, typed, reduction(op)), call)
        for index, view in views.items():
            np.copyto(view, arrays[index])
        return self._start(lambda: self._comm.Iallreduce(in_place(), typed, reduction(op)), call)

    def _broadcast(self, call: Call, values: list[Any], root: int) -> list[Any]:
        arrays = [np.asarray(value) for value in values]
        # Bytes are bytes: one buffer for all dtypes.
        (bucket,) = plan([("uint8", a.nbytes, 1) for a in arrays])
        # Not from the pool: variables are broadcast once, and would stay there.
        flat = aligned_empty(bucket.size_bytes)
        results = [
            _view(flat, slot, array) for slot, array in zip(bucket.slots, arrays, strict=True)
        ]
        if self.rank == root:
            for result, array in zip(results, arrays, strict=True):
                np.copyto(result, array)
        request = self._start(lambda: self._comm.Ibcast(flat, root), call)
        self._wait([request], call, idle=False, keep=flat)
        return results

    def _gather(self, call: Call, values: list[Any]) -> list[Any]:
        arrays = [np.ascontiguousarray(value) for value in values]
        mine = np.array([len(array) for array in arrays], np.int64)
        rows = np.zeros((self.size, len(arrays)), np.int64)
        request = self._start(lambda: self._comm.Iallgather(mine, rows), call)
        self._wait([request], call, idle=False, keep=(mine, rows))
        results, requests = [], []
        for position, array in enumerate(arrays):
            row_bytes = row_elements(array.shape) * array.itemsize
            counts = [int(count) * row_bytes for count in rows[:, position]]
            flat = aligned_empty(sum(counts))
            shape = (int(rows[:, position].sum()), *array.shape[1:])
            results.append(flat.view(array.dtype).reshape(shape))
            if len(flat):
                sent = array.reshape(-1).view(np.uint8)
                requests.append(self._start_gather(call, sent, flat, counts))
        self._wait(requests, call, idle=False, keep=(results, arrays))
        return results

    def _swap(self, call: Call, rows: Any) -> Any:
        flat = self._pool.take(call.specs, rows.nbytes)
        came = flat.view(rows.dtype).reshape(rows.shape)
        request = self._start(lambda: self._comm.Ialltoall(rows, came), call)
        self._wait([request], call, idle=False, keep=(rows, came))
        return came

    def _start_gather(
        self, call: Call, sent: np.ndarray, flat: np.ndarray, counts: list[int]
    ) -> MPI.Request:
        return self._start(lambda: self._comm.Iallgatherv(sent, [flat, counts]), call)

    @functools.lru_cache(maxsize=64)  # noqa: B019  (communicators live as long as the process)
    def _plan(self, items: tuple[tuple[str, int, int], ...]) -> tuple[Bucket, ...]:
        return plan(items, self._bucket_bytes)

    def _start(self, operation: Any, call: Call) -> Any:
        try:
            return operation()
        except loaded_mpi().Exception as error:
            raise self._broken(call, error) from error

    def _wait(self, requests: Sequence[Any], call: Call, *, idle: bool, keep: Any) -> None:
        """Polls until all requests are complete.

        While waiting for workers to arrive (`idle`) it pauses between polls, so that
        they get the processor; the longer it has waited, the longer.
        """
        begin = time.monotonic()
        polls = 0
        while not self._test(requests, call):
            polls += 1
            if polls < _SPIN_POLLS:
                continue
            waited_s = time.monotonic() - begin
            if waited_s > self.timeout_s or (waited_s > _NOTES_AFTER_S and self._has_note()):
                self._abandoned.append((list(requests), keep))
                raise CollectiveTimeout(self._survey(call, waited_s, arriving=idle))
            if idle:
                time.sleep(min(max(waited_s * 0.02, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S))
            else:
                os.sched_yield()

    def _test(self, requests: Sequence[Any], call: Call) -> bool:
        mpi = loaded_mpi()
        try:
            return mpi.Request.Testall(list(requests))
        except mpi.Exception as error:
            raise self._broken(call, error) from error

    def _has_note(self) -> bool:
        mpi = loaded_mpi()
        return self._comm.Iprobe(mpi.ANY_SOURCE, _NOTE_TAG)

    def _survey(self, call: Call, waited_s: float, *, arriving: bool) -> str:
        """Tells the others that we give up, hears which of them do, and words the message.

        Who waits in a collective answers at once, so those who don't answer are
        not in one.
        """
        notes = [
            self._comm.Isend(np.array([call.sequence], np.int64), peer, _NOTE_TAG)
            for peer in range(self.size)
            if peer != self.rank
        ]
        self._abandoned.append(notes)
        mpi = loaded_mpi()
        heard: set[int] = set()
        deadline = time.monotonic() + _SURVEY_S
        while len(heard) < self.size - 1 and time.monotonic() < deadline:
            if not self._has_note():
                time.sleep(_LONGEST_PAUSE_S)
                continue
            status = mpi.Status()
            self._comm.Recv(np.empty(1, np.int64), mpi.ANY_SOURCE, _NOTE_TAG, status)
            heard.add(status.Get_source())
        silent = [r for r in range(self.size) if r != self.rank and r not in heard]
        return _timeout_message(
            self.rank, call, waited_s, self.timeout_s, silent, sorted(heard), arriving=arriving
        )

    def _broken(self, call: Call, error: Exception) -> CollectiveError:
        return CollectiveError(
            f"worker {self.rank} lost its connection in {call}: MPI says {error}. Another worker "
            "has probably died; look into its log."
        )


def _timeout_message(
    rank: int,
    call: Call,
    waited_s: float,
    timeout_s: float,
    silent: list[int],
    heard: list[int],
    *,
    arriving: bool,
) -> str:
    waited = f"worker {rank} waited {waited_s:.3g} s in {call}"
    if silent and arriving:
        return (
            f"{waited} for {workers(silent)}, which never came. Does the script call fit, evaluate "
            "or the like on some workers only (if chief:)? All have to. Otherwise look into the "
            f"log of {workers(silent)}, or allow more time (--collective-timeout, now "
            f"{timeout_s:g} s)."
        )
    if silent:
        return (
            f"{waited}, which all workers began; {workers(silent)} stopped answering. Look into "
            f"the log of {workers(silent)}, or allow more time (now {timeout_s:g} s)."
        )
    if waited_s < timeout_s:
        return (
            f"worker {rank} came to {call} too late: {workers(heard)} had given up waiting. "
            f"Find out what kept it busy, or allow more time (now {timeout_s:g} s)."
        )
    return (
        f"{waited}, and so did all the others, but the data did not arrive. The network "
        f"between them is too slow or broken, or needs more time (now {timeout_s:g} s)."
    )


def _duplicate(world: MPI.Intracomm, deadline: float) -> MPI.Intracomm:
    """A communicator that no one else's messages can reach."""
    begin = time.monotonic()
    comm, request = world.Idup()
    while not request.Test():
        if time.monotonic() > deadline:
            raise CollectiveTimeout(
                f"worker {world.Get_rank()} waited {time.monotonic() - begin:.3g} s for the other "
                f"{world.Get_size() - 1} to connect to MPI. Look into their logs."
            )
        time.sleep(_LONGEST_PAUSE_S)
    return comm


def _view(flat: np.ndarray, slot: Any, like: np.ndarray) -> np.ndarray:
    part = flat[slot.offset_bytes : slot.offset_bytes + slot.size_bytes]
    return part.view(like.dtype).reshape(like.shape)
