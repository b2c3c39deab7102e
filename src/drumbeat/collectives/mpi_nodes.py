"""Which workers share a machine, and how those of one and those of several machines sum."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drumbeat.collectives.between import BetweenNodes, Cost
from drumbeat.collectives.calls import Call
from drumbeat.collectives.mpi_library import in_place, loaded_mpi, reduction
from drumbeat.collectives.node import NodeMemory, offer, opened

if TYPE_CHECKING:
    from mpi4py import MPI

# For what an all-reduce costs: enough repeats for the fastest to be undisturbed, and a message
# large enough to be carried at the line's speed; 6 ms in all at 1 Gbit/s.
_LATENCY_REPEATS = 20
_RATE_REPEATS = 3
_RATE_BYTES = 1 << 18

WaitUntil = Callable[[Callable[[], bool], Call, bool, Any], None]
"""Polls a function until it is true: (is over, call, idle, what to keep meanwhile)."""


@dataclass
class Places:
    """Where this worker is among the others.

    Attributes:
        local_rank: Among the workers of its machine; 0 sums between machines for them.
        node: The workers of this machine; None if it is alone there.
        memory: What they share; None if it is alone, or if the system has none.
        between: The first worker of each machine; None on the others, and where there is
            one machine, or where MPI's own all-reduce does it all.
        cost: Of a sum between machines; all zero where there is one.
        is_one_machine: Whether all workers are on it.
        one_each: Whether every machine has one worker only; the same on all workers.
    """

    local_rank: int = 0
    node: MPI.Intracomm | None = None
    memory: NodeMemory | None = None
    between: BetweenNodes | None = None
    cost: Cost = Cost()
    is_one_machine: bool = True
    one_each: bool = False


def find_places(comm: MPI.Intracomm, local_rank: int, wait_until: WaitUntil) -> Places:
    """Agrees with the others on who shares a machine with whom, and measures what lies between.

    Args:
        comm: Of all workers, who must all call this. Those of a machine have consecutive
            ranks.
        local_rank: Of this worker on its machine.
        wait_until: Waits with a deadline.
    """
    call = Call(kind="all_gather", sequence=0, name="places")
    ranks = np.zeros(comm.Get_size(), np.int64)
    _wait(comm.Iallgather(np.array([local_rank], np.int64), ranks), call, wait_until, ranks)
    nodes = np.cumsum(ranks == 0) - 1
    node_number = int(nodes[comm.Get_rank()])
    local_size = int((nodes == node_number).sum())
    places = Places(
        local_rank=local_rank,
        is_one_machine=nodes[-1] == 0,
        one_each=nodes[-1] == comm.Get_size() - 1,
    )
    if not places.one_each:
        # MPI can't be given a deadline for this, but all are here.
        node: Any = comm.Split(node_number, comm.Get_rank())
        places.memory = _shared_memory(comm, node, wait_until)
        if places.memory is None:
            return Places()
        places.node = node if local_size > 1 else None
        places.memory = places.memory if local_size > 1 else None
    if nodes[-1] > 0:
        apart = loaded_mpi().UNDEFINED if local_rank else 0
        heads: Any = comm.Split(apart, comm.Get_rank())
        if local_rank == 0:
            places.between = BetweenNodes(heads, heads.Dup())
        places.cost = _measured(comm, places.between, wait_until)
    return places


def _wait(request: Any, call: Call, wait_until: WaitUntil, keep: Any) -> None:
    wait_until(request.Test, call, True, keep)


def _shared_memory(
    comm: MPI.Intracomm, node: MPI.Intracomm, wait_until: WaitUntil
) -> NodeMemory | None:
    """The memory of this machine's workers; None everywhere if any machine can't have it."""
    call = Call(kind="broadcast", sequence=0, name="shared memory")
    offered = offer() if node.Get_rank() == 0 else np.zeros(3, np.int64)
    _wait(node.Ibcast(offered, 0), call, wait_until, offered)
    fd = opened(offered)
    # All or none: they have to take the same way.
    all_have = np.array([fd is not None], np.int64)
    request = comm.Iallreduce(in_place(), all_have, reduction("min"))
    _wait(request, call, wait_until, all_have)
    return NodeMemory(fd, node.Get_size()) if fd is not None and all_have[0] else None


def _measured(comm: MPI.Intracomm, between: BetweenNodes | None, wait_until: WaitUntil) -> Cost:
    """What a sum between machines costs, agreed by all workers."""
    call = Call(kind="all_reduce", sequence=0, name="cost of a sum")
    found = np.zeros(2, np.float64)
    if between is not None:

        def fastest_s(size_bytes: int, repeats: int) -> float:
            sent, out = np.zeros(size_bytes // 4, np.float32), np.empty(size_bytes // 4, np.float32)
            times_s = []
            for _ in range(repeats):
                began_s = time.perf_counter()
                between.start(sent, out, "sum")
                wait_until(between.advance, call, False, (sent, out))
                times_s.append(time.perf_counter() - began_s)
            return min(times_s)

        latency_s = fastest_s(64, _LATENCY_REPEATS)
        rate_s = fastest_s(_RATE_BYTES, _RATE_REPEATS)
        found[:] = latency_s, max(rate_s - latency_s, 0.0) / _RATE_BYTES
    _wait(comm.Iallreduce(in_place(), found, reduction("max")), call, wait_until, found)
    cost = Cost(*found.tolist())
    if between is not None:
        between.cost = cost
    return cost
