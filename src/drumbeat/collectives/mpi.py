"""Communicator over MPI: shared memory within a machine, TCP or a fast fabric between them."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drumbeat.collectives.bridge import Bridge
from drumbeat.collectives.buckets import Bucket, plan
from drumbeat.collectives.buffers import BufferPool, aligned_empty, parts_of
from drumbeat.collectives.calls import TEXT_BYTES, Call, mismatch_message, text_from_bytes
from drumbeat.collectives.communicator import (
    OPS,
    REDUCIBLE,
    not_converted,
    row_elements,
)
from drumbeat.collectives.early import Progress
from drumbeat.collectives.mpi_early import EarlySums
from drumbeat.collectives.mpi_library import finalize, in_place, reduction, started_mpi
from drumbeat.collectives.mpi_nodes import Places, find_places
from drumbeat.collectives.mpi_requests import LONGEST_PAUSE_S, MpiRequests, has_own_core
from drumbeat.collectives.node import NodeMemory, Portion, combine, portions
from drumbeat.errors import CollectiveMismatch, CollectiveTimeout, ConfigError

if TYPE_CHECKING:
    from mpi4py import MPI

_Planned = tuple[tuple[Bucket, tuple[Portion, ...]], ...]
# Half types are summed in float32.
_AS_THEY_ARE = frozenset(dtype for dtype in REDUCIBLE if not dtype.endswith("16"))
# Shapes that change all the time must not fill the memory.
_MAX_PLANS = 1024


class MpiCommunicator(EarlySums):
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
        own_core: bool = False,
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
        self._plans: dict[bytes, _Planned] = {}
        self._requests = MpiRequests(comm, own_core=own_core)
        self._places = Places()
        self._progress = Progress(
            lambda: self._places.between is None or self._places.between.advance()
        )
        self._closed = False

    @classmethod
    def connect(
        cls,
        *,
        rank: int,
        size: int,
        timeout_s: float,
        local_rank: int = 0,
        local_size: int = 1,
        bucket_bytes: int | None = None,
    ) -> MpiCommunicator:
        """Starts MPI in this process if it has not been started, and checks who we are.

        Args:
            rank: The rank that the agent gave this worker.
            size: The world size that the agent told it.
            timeout_s: Deadline of one collective, seconds.
            local_rank: Its number among the workers of this machine.
            local_size: How many workers this machine has.
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
            own_core=has_own_core(local_size),
            bucket_bytes=bucket_bytes,
        )
        if size > 1:
            communicator._places = find_places(
                communicator._comm, local_rank, communicator._wait_until
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
            time.sleep(LONGEST_PAUSE_S)
        ending = threading.Thread(target=finalize, daemon=True)
        ending.start()
        ending.join(max(grace_s, 1.0))

    @not_converted
    def all_reduce_numpy(self, array: Any, op: str = "sum", *, name: str = "") -> np.ndarray:
        """See `Communicator`; without the detour through tensors, which takes longer than MPI."""
        given = np.asarray(array)
        if self.size == 1 or given.dtype.name not in _AS_THEY_ARE or op not in OPS:
            return super().all_reduce_numpy(given, op, name=name)
        return self._run("all_reduce", given, op=op, name=name)[0]

    def start_header(self, call: Call) -> tuple[np.ndarray, Any]:
        """Begins to compare what the workers call."""
        fingerprint = call.fingerprint()
        header = np.array([fingerprint, -fingerprint], np.int64)
        return header, self._start(
            lambda: self._comm.Iallreduce(in_place(), header, reduction("min")), call
        )

    def finish_header(self, call: Call, started: tuple[np.ndarray, Any]) -> None:
        """Returns when all workers have come to the same call."""
        header, request = started
        self._wait([request], call, idle=True, keep=header)
        if header[0] != -header[1]:
            raise CollectiveMismatch(mismatch_message(self._exchange_texts(call)))
        # What the others sent before they gave up may have completed the exchange.
        if self._requests.has_note():
            raise CollectiveTimeout(self._requests.survey(call, 0.0, self.timeout_s, arriving=True))

    def _agree(self, call: Call) -> None:
        self.finish_header(call, self.start_header(call))

    def _exchange_texts(self, call: Call) -> list[str]:
        mine = np.frombuffer(call.to_bytes(), np.uint8)
        texts = np.zeros((self.size, TEXT_BYTES), np.uint8)
        request = self._start(lambda: self._comm.Iallgather(mine, texts), call)
        self._wait([request], call, idle=True, keep=(mine, texts))
        return [text_from_bytes(row.tobytes()) for row in texts]

    def _prepare(self, call: Call, values: list[Any]) -> Any:
        """In a machine's memory this worker can write its addends before the others have come."""
        arrays = [np.asarray(value) for value in values]
        planned = self._plan(call, arrays)
        places = self._places
        if places.memory is None:
            return arrays, planned, None
        flats = [array.reshape(-1) for array in arrays]
        slots = places.memory.next_turn()
        for _, parts in planned[:1]:
            for portion in parts[:1]:
                portion.write(flats, slots[places.local_rank])
        return arrays, planned, (flats, slots)

    def _reduce(self, call: Call, values: list[Any], op: str, prepared: Any) -> list[Any]:
        arrays, planned, shared = prepared
        results: list[Any] = list(arrays)
        requests = []
        for number, (bucket, parts) in enumerate(planned):
            flat = self._pool.take((call.digest, number), bucket.size_bytes)
            views = parts_of(flat, bucket, arrays)
            for index, view in views.items():
                results[index] = view
            if not bucket.size_bytes:
                continue
            if shared is not None:
                out = flat.view(bucket.dtype)
                self._reduce_in_memory(call, parts, out, op, *shared, begun=number == 0)
            else:
                requests += self._start_reduce(call, bucket, flat, views, arrays, op)
        self._wait(requests, call, idle=False, keep=(results, arrays))
        between = self._places.between
        if between is not None:
            self._wait_until(between.advance, call, False, (results, arrays))
        return results

    def _reduce_in_memory(
        self,
        call: Call,
        portions: tuple[Portion, ...],
        out: np.ndarray,
        op: str,
        flats: list[np.ndarray],
        slots: list[np.ndarray],
        *,
        begun: bool,
    ) -> None:
        places, memory = self._places, self._places.memory
        assert memory is not None  # noqa: S101
        for number, portion in enumerate(portions):
            if number or not begun:
                slots = memory.next_turn()
                portion.write(flats, slots[places.local_rank])
                self._meet_on_machine(call)
            if places.is_one_machine or places.between is not None:
                combine(op, portion.views(slots, out.dtype), portion.of(out))
        if not places.is_one_machine:
            if places.between is not None:
                places.between.start(out, out, op)
                self._wait_until(places.between.advance, call, False, out)
            self._share_out(call, memory, portions, out)

    def _share_out(
        self, call: Call, memory: NodeMemory, portions: tuple[Portion, ...], out: np.ndarray
    ) -> None:
        """Gives what a machine's first worker has in `out` to its others."""
        for portion in portions:
            (shared, *_) = portion.views(memory.next_turn(), out.dtype)
            if self._places.local_rank == 0:
                np.copyto(shared, portion.of(out))
            self._meet_on_machine(call)
            if self._places.local_rank != 0:
                np.copyto(portion.of(out), shared)

    def _meet_on_machine(self, call: Call) -> None:
        node = self._places.node
        assert node is not None  # noqa: S101
        self._wait([self._start(node.Ibarrier, call)], call, idle=False, keep=None)

    def _start_reduce(
        self,
        call: Call,
        bucket: Bucket,
        flat: np.ndarray,
        views: dict[int, np.ndarray],
        arrays: list[np.ndarray],
        op: str,
    ) -> list[MPI.Request]:
        out = flat.view(bucket.dtype)
        sent = out
        if len(views) == 1:
            sent = arrays[bucket.slots[0].index].reshape(-1)
        else:
            for index, view in views.items():
                np.copyto(view, arrays[index])
        between = self._places.between
        if between is not None:
            self._start(lambda: between.start(sent, out, op), call)
            return []
        given = in_place() if sent is out else sent
        return [self._start(lambda: self._comm.Iallreduce(given, out, reduction(op)), call)]

    def _plan(self, call: Call, arrays: list[np.ndarray]) -> _Planned:
        planned = self._plans.get(call.digest)
        if planned is None:
            items = [(a.dtype.name, a.size, a.itemsize) for a in arrays]
            buckets = plan(items, self._bucket_bytes)
            planned = tuple((bucket, portions(bucket)) for bucket in buckets)
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[call.digest] = planned
        return planned

    def _broadcast(self, call: Call, values: list[Any], root: int) -> list[Any]:
        arrays = [np.asarray(value) for value in values]
        # Bytes are bytes: one buffer for all dtypes.
        (bucket,) = plan([("uint8", a.nbytes, 1) for a in arrays])
        # Not from the pool: variables are broadcast once, and would stay there.
        flat = aligned_empty(bucket.size_bytes)
        results = list(parts_of(flat, bucket, arrays).values())
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

    swaps_among_some = True

    def _swap(self, call: Call, rows: Any, peers: np.ndarray) -> Any:
        flat = self._pool.take(call.specs, rows.nbytes)
        came = flat.view(rows.dtype).reshape(rows.shape)
        if len(peers) == self.size:
            request = self._start(lambda: self._comm.Ialltoall(rows, came), call)
        else:
            counts, starts = np.zeros((2, self.size), np.int64)
            counts[peers], starts[peers] = rows.shape[1], rows.shape[1] * np.arange(len(peers))
            where = (counts, starts)
            request = self._start(lambda: self._comm.Ialltoallv([rows, where], [came, where]), call)
        self._wait([request], call, idle=False, keep=(rows, came))
        return came

    def _start_gather(
        self, call: Call, sent: np.ndarray, flat: np.ndarray, counts: list[int]
    ) -> MPI.Request:
        return self._start(lambda: self._comm.Iallgatherv(sent, [flat, counts]), call)

    def _wait(self, requests: Sequence[Any], call: Call, *, idle: bool, keep: Any) -> None:
        self._requests.wait(requests, call, self.timeout_s, idle=idle, keep=keep)

    def _wait_until(self, is_over: Callable[[], bool], call: Call, idle: bool, keep: Any) -> None:
        self._requests.wait_until(is_over, call, self.timeout_s, idle=idle, keep=keep)

    def _start(self, operation: Callable[[], Any], call: Call) -> Any:
        return self._requests.start(operation, call)


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
        time.sleep(LONGEST_PAUSE_S)
    return comm
