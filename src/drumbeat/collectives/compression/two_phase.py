"""A sum in two exchanges: each worker sums one part of the gradients, and tells the others.

What an all-gather of every worker's compressed gradients would carry grows with the number
of workers. Here each worker sends every other one a part (reduce-scatter), and then its part
of the sums (all-gather): compressed both times, together at most twice the size of one
compressed gradient, for any number of workers. Where several workers share each of several
machines, those of a machine first sum among themselves, unrounded, so that no more crosses
from one machine to another than with one worker on each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.codec import Codec, Exact
from drumbeat.collectives.compression.machines import Machines
from drumbeat.collectives.compression.method import Method, flat
from drumbeat.collectives.compression.pieces import Piece, cut
from drumbeat.collectives.compression.residuals import Group

_NAME = "compressed gradients"

_Look = Callable[[Sequence[Piece]], Iterator[np.ndarray]]
"""Makes the values of pieces."""


class TwoPhase(Method):
    """Sums what a codec has encoded.

    The worker that sums a part keeps what the second encoding left out of it (as the
    servers in Tang et al. 2019, "DoubleSqueeze"), in its own residual of that part. Its own
    gradient enters the part's sum unrounded. Vectors and scalars travel as they are, in the
    same messages: they are few bytes.

    Args:
        communicator: Of the workers.
        group: Of the gradients.
        codec: For all but vectors and scalars.
        machines: Of the workers.
    """

    def __init__(
        self, communicator: Communicator, group: Group, codec: Codec, machines: Machines
    ) -> None:
        super().__init__(communicator, group)
        sizes = [(i, int(np.prod(shape, dtype=np.int64))) for i, shape in enumerate(group.shapes)]
        small = {i for i, shape in enumerate(group.shapes) if len(shape) < 2}
        exact = [(i, size) for i, size in sizes if i in small]
        coded = [(i, size) for i, size in sizes if i not in small]
        sections = [
            _Section(used, cut(of_these, communicator.size))
            for used, of_these in ((Exact(), exact), (codec, coded))
        ]
        self._sections = [section for section in sections if section.width_bytes]
        width = sum(section.width_bytes for section in self._sections)
        self._rows = np.zeros((len(machines.ranks), width), np.uint8)
        self._row = np.zeros(width, np.uint8)
        self._part = machines.part_of(communicator.rank)
        self._machines = machines
        # The parts that the workers in each place sum.
        count = len(machines.ranks)
        self._shares = [
            [part for section in sections for part in section.parts[i : i + count]]
            for i in range(0, communicator.size, count)
        ]

    def _sum(
        self,
        gradients: Sequence[np.ndarray],
        residuals: Sequence[np.ndarray],
        left: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
    ) -> bool:
        given, owed, left = flat(gradients), flat(residuals), flat(left)

        def added(part: Sequence[Piece]) -> Iterator[np.ndarray]:
            return _added(part, given, owed, left)

        if len(self._machines.mates) > 1:
            self._sum_on_machine(added, left)
            self._sum_between_machines(lambda part: _views(part, left), left)
        else:
            self._sum_between_machines(added, left)
        return self._share_out(left, flat(results))

    def _sum_on_machine(self, added: _Look, left: Sequence[np.ndarray]) -> None:
        """Leaves in `left` what all workers of this machine had in this one's share; else zeros."""
        exact, place = Exact(), self._machines.place
        lengths = [[len(piece) for part in share for piece in part] for share in self._shares]
        rows = np.zeros((len(lengths), max(map(exact.size_bytes, lengths))), np.uint8)
        for number, share in enumerate(self._shares):
            pieces = (view for part in share for view in added(part))
            if number == place:
                deque(pieces, maxlen=0)
            else:
                exact.encode(pieces, lengths[number], rows[number])
        came = self._swapped(rows, self._machines.mates)
        for number, row in enumerate(came):
            if number != place:
                pieces = (view for part in self._shares[place] for view in _views(part, left))
                exact.decode(row, pieces, lengths[place], add=True)

    def _sum_between_machines(self, look: _Look, left: Sequence[np.ndarray]) -> None:
        """Leaves in this worker's part of `left` the sum of what was sent to it."""
        number, mine = self._machines.number, self._part
        others = [i for i in range(len(self._machines.ranks)) if i != number]
        first = mine - number
        for section, rows in self._each(self._rows):
            for i in others:
                section.encode(first + i, look(section.parts[first + i]), rows[i])
            deque(look(section.parts[mine]), maxlen=0)
        came = self._swapped(self._rows, self._machines.peers)
        for section, rows in self._each(came):
            for i in others:
                section.decode(mine, rows[i], left, add=True)

    def _share_out(self, left: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> bool:
        """Sends this worker's sums to all and gets theirs; whether they are finite."""
        for section, (row,) in self._each(self._row[None]):
            section.encode(self._part, _views(section.parts[self._part], left), row)
        sums = self._communicator.gather_rows(self._row.view(np.int32), name=_NAME)
        is_finite = True
        for section, rows in self._each(sums.view(np.uint8)):
            for rank, row in enumerate(rows):
                part = self._machines.part_of(rank)
                section.decode(part, row, results, add=False)
                is_finite = is_finite and section.is_finite(part, row)
        return is_finite

    def _swapped(self, rows: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
        words = rows.view(np.int32)
        return self._communicator.swap_rows(words, ranks, name=_NAME).view(np.uint8)

    def _each(self, rows: np.ndarray) -> Iterator[tuple[_Section, np.ndarray]]:
        """Each section, and its columns of `rows`."""
        place = 0
        for section in self._sections:
            yield section, rows[:, place : place + section.width_bytes]
            place += section.width_bytes


class _Section:
    """Those gradients that one codec writes, with the workers' parts of them."""

    def __init__(self, codec: Codec, parts: list[list[Piece]]) -> None:
        self.parts = parts
        self._codec = codec
        self._lengths = [[len(piece) for piece in part] for part in parts]
        self._sizes = [codec.size_bytes(lengths) for lengths in self._lengths]
        # A row is as long as the longest, as all workers send as much.
        self.width_bytes = max(self._sizes)

    def encode(self, part: int, pieces: Iterator[np.ndarray], row: np.ndarray) -> None:
        self._codec.encode(pieces, self._lengths[part], row[: self._sizes[part]])

    def decode(self, part: int, row: np.ndarray, flats: Sequence[np.ndarray], *, add: bool) -> None:
        pieces = _views(self.parts[part], flats)
        self._codec.decode(row[: self._sizes[part]], pieces, self._lengths[part], add=add)

    def is_finite(self, part: int, row: np.ndarray) -> bool:
        return self._codec.is_finite(row[: self._sizes[part]], self._lengths[part])


def _views(part: Sequence[Piece], flats: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    return (piece.of(flats) for piece in part)


def _added(
    part: Sequence[Piece],
    given: Sequence[np.ndarray],
    owed: Sequence[np.ndarray],
    into: Sequence[np.ndarray],
) -> Iterator[np.ndarray]:
    """Gradient and residual of each piece added up when its turn comes: it is in the cache then."""
    for piece in part:
        total = piece.of(into)
        np.add(piece.of(given), piece.of(owed), out=total)
        yield total
