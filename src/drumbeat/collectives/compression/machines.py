"""Which workers share a machine, as far as compression cares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumbeat.collectives.communicator import Communicator


@dataclass(frozen=True)
class Machines:
    """The ranks of each machine, equally many on all.

    Attributes:
        ranks: For each machine, ascending.
        rank: Of this worker.
    """

    ranks: tuple[tuple[int, ...], ...]
    rank: int

    @property
    def number(self) -> int:
        """Of this worker's machine."""
        return next(i for i, own in enumerate(self.ranks) if self.rank in own)

    @property
    def mates(self) -> tuple[int, ...]:
        """The workers of this machine."""
        return self.ranks[self.number]

    @property
    def place(self) -> int:
        """This worker's among its mates."""
        return self.mates.index(self.rank)

    @property
    def peers(self) -> tuple[int, ...]:
        """The workers in the same place of all machines."""
        return tuple(own[self.place] for own in self.ranks)

    def part_of(self, rank: int) -> int:
        """Which part of the gradients a worker sums: those of a place are one after the other."""
        number, own = next((i, own) for i, own in enumerate(self.ranks) if rank in own)
        return own.index(rank) * len(self.ranks) + number

    @classmethod
    def apart(cls, communicator: Communicator) -> Machines:
        """Every worker for itself."""
        return cls(tuple((rank,) for rank in range(communicator.size)), communicator.rank)

    @classmethod
    def found(cls, communicator: Communicator, local_rank: int) -> Machines:
        """As they are, if there are several alike ones and workers can use that; else `apart`.

        All workers must call this.

        Args:
            communicator: Of the workers; those of a machine have consecutive ranks.
            local_rank: Of this worker among those of its machine.
        """
        if not communicator.swaps_among_some:
            return cls.apart(communicator)
        places = communicator.gather_rows(np.array([local_rank]), name="machines")[:, 0].tolist()
        firsts = [rank for rank, place in enumerate(places) if place == 0]
        ends = [*firsts[1:], len(places)]
        ranks = tuple(tuple(range(*span)) for span in zip(firsts, ends, strict=True))
        if len(ranks) < 2 or len({len(own) for own in ranks}) > 1:
            return cls.apart(communicator)
        return cls(ranks, communicator.rank)
