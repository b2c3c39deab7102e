"""Sums between machines, in an order that depends on their number alone.

MPI's own all-reduce adds in an order that depends on the size of the message and on an
element's place in it, so that cutting gradients differently would change their sums'
last bits. With two machines there is only one order. With more, each gets a part of
every machine's elements, combines it in the order of `collectives.order`, and sends
the result to all: as many bytes as the best algorithms for large messages. Small
messages go to everybody as a whole, who combine them for themselves, in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drumbeat.collectives.mpi_library import in_place, reduction
from drumbeat.collectives.node import combine

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Cost:
    """What an all-reduce among these machines takes: `latency_s` + bytes * `s_per_byte`.

    The same numbers on all workers.
    """

    latency_s: float = 0.0
    s_per_byte: float = 0.0

    def seconds(self, size_bytes: float) -> float:
        """For a message of that size."""
        return self.latency_s + size_bytes * self.s_per_byte

    def whole_is_cheaper(self, size_bytes: int, machines: int) -> bool:
        """Whether to send a message to everybody as a whole, rather than its parts, twice."""
        # An all-reduce carries 2 (n - 1) / n of a message's bytes.
        whole_bytes = size_bytes * machines / 2
        return self.seconds(whole_bytes) <= 2 * self.latency_s + size_bytes * self.s_per_byte


class Transfer:
    """One sum under way.

    Args:
        start_first: Starts its first operation and returns the request.
        then: Called when that is complete; returns the request of the second operation
            or None.
        keep: Buffers that MPI reads or writes.
    """

    def __init__(
        self, start_first: Callable[[], Any], then: Callable[[], Any] | None, keep: Any
    ) -> None:
        self.keep = keep
        self._then = then
        self._request = start_first()

    def first_is_over(self) -> bool:
        """Whether its second operation, if it has one, has been started; starts it."""
        if self._then is not None and self._request.Test():
            self._request = self._then()
            self._then = None
        return self._then is None

    def is_over(self) -> bool:
        """Whether the result is there."""
        return self._then is None and (self._request is None or self._request.Test())


class BetweenNodes:
    """Sums among one worker of each machine.

    Args:
        comm: Of those workers; for nobody else's use.
        second: Another one of the same workers.
    """

    def __init__(self, comm: MPI.Intracomm, second: MPI.Intracomm) -> None:
        self.cost = Cost()
        self.size = comm.Get_size()
        self._comm = comm
        self._second = second
        self._under_way: deque[Transfer] = deque()

    def start(self, sent: np.ndarray, out: np.ndarray, op: str) -> Transfer:
        """Starts a sum; `advance` drives it. All workers must start the same ones in one order.

        Args:
            sent: Flat; must stay as it is until the sum is over.
            out: Where the result goes, like `sent`; may be `sent` itself.
            op: "sum", "min" or "max".
        """
        if self.size == 2:
            transfer = self._of_two(sent, out, op)
        elif self.cost.whole_is_cheaper(sent.nbytes, self.size):
            transfer = self._whole(sent, out, op)
        else:
            transfer = self._parts(sent, out, op)
        self._under_way.append(transfer)
        return transfer

    def advance(self) -> bool:
        """Lets MPI work, and starts what comes next; whether all sums are over."""
        for transfer in self._under_way:
            # Second operations too must start in the same order everywhere.
            if not transfer.first_is_over():
                break
        while self._under_way and self._under_way[0].is_over():
            self._under_way.popleft()
        return not self._under_way

    def _of_two(self, sent: np.ndarray, out: np.ndarray, op: str) -> Transfer:
        given = in_place() if sent is out else sent
        return Transfer(lambda: self._comm.Iallreduce(given, out, reduction(op)), None, (sent, out))

    def _whole(self, sent: np.ndarray, out: np.ndarray, op: str) -> Transfer:
        everyones = np.empty((self.size, len(sent)), sent.dtype)
        return Transfer(
            lambda: self._comm.Iallgather(sent, everyones),
            lambda: combine(op, list(everyones), out),
            (sent, everyones, out),
        )

    def _parts(self, sent: np.ndarray, out: np.ndarray, op: str) -> Transfer:
        rank, size = self._comm.Get_rank(), self.size
        bounds = [len(sent) * i // size for i in range(size + 1)]
        counts = [bounds[i + 1] - bounds[i] for i in range(size)]
        mine = counts[rank]
        came = np.empty((size, mine), sent.dtype)
        total = np.empty(mine, sent.dtype)

        def collect() -> Any:
            combine(op, list(came), total)
            return self._second.Iallgatherv(total, [out, counts])

        return Transfer(
            lambda: self._comm.Ialltoallv([sent, counts], [came, [mine] * size]),
            collect,
            (sent, came, total, out),
        )
