"""How a part of the gradients is written in few bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np

ALIGNMENT_BYTES = 64


def aligned(size_bytes: int) -> int:
    """The next multiple of `ALIGNMENT_BYTES`."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Codec(ABC):
    """Writes pieces of float32 as bytes and reads them again.

    The bytes alone determine what is read, on every machine: only single operations on
    elements, which IEEE 754 defines to the bit.
    """

    @abstractmethod
    def size_bytes(self, lengths: Sequence[int]) -> int:
        """How many bytes pieces of these lengths take; a multiple of `ALIGNMENT_BYTES`."""

    @abstractmethod
    def encode(self, pieces: Iterable[np.ndarray], lengths: Sequence[int], row: np.ndarray) -> None:
        """Writes `pieces`, and leaves in them what was not written.

        Args:
            pieces: Each is made when its turn comes.
            lengths: Of the pieces.
            row: uint8 [size_bytes(lengths)], aligned.
        """

    @abstractmethod
    def decode(
        self, row: np.ndarray, pieces: Iterable[np.ndarray], lengths: Sequence[int], *, add: bool
    ) -> None:
        """Reads into `pieces` what `encode` wrote, in place of what they hold or added to it."""

    @abstractmethod
    def is_finite(self, row: np.ndarray, lengths: Sequence[int]) -> bool:
        """Whether nothing that `decode` would read is infinite or not a number."""


class Exact(Codec):
    """float32 as it is: for what is too small to be worth more."""

    def size_bytes(self, lengths: Sequence[int]) -> int:
        """See the class."""
        return aligned(4 * sum(lengths))

    def encode(self, pieces: Iterable[np.ndarray], lengths: Sequence[int], row: np.ndarray) -> None:
        """See the class; nothing is left."""
        floats, place = row.view(np.float32), 0
        for piece in pieces:
            floats[place : place + piece.size] = piece
            place += piece.size
            piece.fill(0)

    def decode(
        self, row: np.ndarray, pieces: Iterable[np.ndarray], lengths: Sequence[int], *, add: bool
    ) -> None:
        """See the class."""
        floats, place = row.view(np.float32), 0
        for piece in pieces:
            part = floats[place : place + piece.size]
            place += piece.size
            if add:
                np.add(piece, part, out=piece)
            else:
                np.copyto(piece, part)

    def is_finite(self, row: np.ndarray, lengths: Sequence[int]) -> bool:
        """See the class."""
        return bool(np.isfinite(row.view(np.float32)[: sum(lengths)]).all())
