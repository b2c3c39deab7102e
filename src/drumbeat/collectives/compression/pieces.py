"""Gradients cut into parts for the workers, and these into pieces that fit into a cache. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PIECE_ELEMENTS = 1 << 16
"""Encoding 25 million elements to int8 in pieces of 2**13, 14, ... 17 took 82, 59, 47, 41 and 39 ms
(Zen 4, one core); a larger piece and its scratch memory would no longer fit into 1 MB."""


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `stop` of the flattened tensor of that number."""

    tensor: int
    start: int
    stop: int

    def of(self, flat: Sequence[np.ndarray]) -> np.ndarray:
        """Its elements: a view of one of the flattened tensors `flat`."""
        return flat[self.tensor][self.start : self.stop]

    def __len__(self) -> int:
        return self.stop - self.start


def cut(tensors: Sequence[tuple[int, int]], parts: int) -> list[list[Piece]]:
    """Shares the elements of tensors out, in order and as evenly as can be.

    Args:
        tensors: For each tensor its number and how many elements it has.
        parts: Into how many.

    Returns:
        For each part its pieces, none longer than `PIECE_ELEMENTS`. The first parts have
        as many elements each, the last one what is left.
    """
    total = sum(size for _, size in tensors)
    room = -(-total // parts)
    result: list[list[Piece]] = [[] for _ in range(parts)]
    place = 0
    for number, size in tensors:
        start = 0
        while start < size:
            part, taken = divmod(place, room)
            length = min(size - start, room - taken, PIECE_ELEMENTS)
            result[part].append(Piece(number, start, start + length))
            start += length
            place += length
    return result
