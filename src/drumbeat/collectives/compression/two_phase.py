"""A sum in two exchanges: each worker sums one part of the gradients, and tells the others.

What an all-gather of every worker's compressed gradients would carry grows with the number
of workers. Here each worker sends every other one a part (reduce-scatter), and then its part
of the sums (all-gather): compressed both times, together at most twice the size of one
compressed gradient, for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.codec import Codec, Exact
from drumbeat.collectives.compression.method import Method, flat
from drumbeat.collectives.compression.pieces import Piece, cut
from drumbeat.collectives.compression.residuals import Group

_NAME = "compressed gradients"


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
    """

    def __init__(self, communicator: Communicator, group: Group, codec: Codec) -> None:
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
        self._rows = np.zeros((communicator.size, width), np.uint8)
        self._row = np.zeros(width, np.uint8)

    @property
    def sent_bytes(self) -> int:
        """What this worker brings to the exchanges of one call."""
        return self._rows.nbytes + self._row.nbytes

    def _sum(
        self,
        gradients: Sequence[np.ndarray],
        residuals: Sequence[np.ndarray],
        left: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
    ) -> bool:
        communicator, mine = self._communicator, self._communicator.rank
        others = [rank for rank in range(communicator.size) if rank != mine]
        given, owed, left = flat(gradients), flat(residuals), flat(left)
        for section, rows in self._each(self._rows):
            for rank in others:
                section.encode(rank, _added(section.parts[rank], given, owed, left), rows[rank])
            for _ in _added(section.parts[mine], given, owed, left):
                pass
        came = communicator.swap_rows(self._rows.view(np.int32), name=_NAME).view(np.uint8)
        for section, rows in self._each(came):
            for rank in others:
                section.decode(mine, rows[rank], left, add=True)
        for section, (row,) in self._each(self._row[None]):
            section.encode(mine, _views(section.parts[mine], left), row)
        sums = communicator.gather_rows(self._row.view(np.int32), name=_NAME).view(np.uint8)
        is_finite = True
        for section, rows in self._each(sums):
            for rank, row in enumerate(rows):
                section.decode(rank, row, flat(results), add=False)
                is_finite = is_finite and section.is_finite(rank, row)
        return is_finite

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
