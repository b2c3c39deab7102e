"""topk: the largest elements only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from drumbeat.collectives.compression.codec import Codec, aligned

_SAMPLE = 128
"""Every so manyth element is looked at to find where the largest begin: as Lin et al. 2018,
section 4, who sample from 0.1% to 1%."""


class Largest(Codec):
    """Sends the elements of each part with the largest absolute values, and where they are.

    The sparsification and local accumulation of deep gradient compression (Lin et al. 2018).
    Left out of it: momentum correction and the masking of momenta, which need an optimizer
    that leaves its momentum to the workers, so only plain SGD could be used; clipping before
    the sum (clip in the Keras optimizer, after it); and its warm-up, in which the ratio falls
    over the first epochs.

    An element takes 8 bytes, so a ratio above 1/2 sends more than float32 would.

    Args:
        ratio: The part of the elements that is sent, at least one.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio

    def size_bytes(self, lengths: Sequence[int]) -> int:
        """See `Codec`."""
        return 2 * aligned(4 * self._count(lengths))

    def encode(self, pieces: Iterable[np.ndarray], lengths: Sequence[int], row: np.ndarray) -> None:
        """See `Codec`."""
        places, values = self._split(row, lengths)
        places[:], values[:] = 0, 0
        parts = list(pieces)
        found = _candidates(parts, places.size)
        if found is None:
            values[:] = np.nan
            return
        where, what = found
        if where.size > places.size:
            chosen = np.argpartition(-np.abs(what), places.size - 1)[: places.size]
            chosen.sort()
            where, what = where[chosen], what[chosen]
        places[: where.size] = where
        values[: where.size] = what
        # Zeros fill the rest of the row.
        for piece, own in _by_piece(where, parts):
            piece[own] = 0

    def decode(
        self, row: np.ndarray, pieces: Iterable[np.ndarray], lengths: Sequence[int], *, add: bool
    ) -> None:
        """See `Codec`."""
        places, values = self._split(row, lengths)
        parts = list(pieces)
        count = np.count_nonzero(values)
        places, values = places[:count], values[:count]
        if not add:
            for piece in parts:
                piece.fill(0)
        start = 0
        for piece, own in _by_piece(places, parts):
            piece[own] += values[start : start + own.size]
            start += own.size

    def is_finite(self, row: np.ndarray, lengths: Sequence[int]) -> bool:
        """See `Codec`."""
        return bool(np.isfinite(self._split(row, lengths)[1]).all())

    def _count(self, lengths: Sequence[int]) -> int:
        return math.ceil(self._ratio * sum(lengths))

    def _split(self, row: np.ndarray, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        count = self._count(lengths)
        places, values = row[: row.size // 2], row[row.size // 2 :]
        return places.view(np.int32)[:count], values.view(np.float32)[:count]


def _candidates(parts: Sequence[np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Places and values of the `count` largest and some more, or of all that aren't zero.

    None if something is infinite or not a number.
    """
    sample = np.sort(np.concatenate([np.abs(part[::_SAMPLE]) for part in parts]))
    wanted = count * sample.size / max(sum(part.size for part in parts), 1)
    # A sample misjudges: rather too many than another pass.
    rank = math.ceil(wanted + 2 * math.sqrt(wanted))
    while True:
        least = sample[-rank] if rank < sample.size else np.float32(0)
        found = _at_least(parts, least)
        if found is None or found[0].size >= count or not least:
            return found
        rank *= 2


def _at_least(
    parts: Sequence[np.ndarray], least: np.float32
) -> tuple[np.ndarray, np.ndarray] | None:
    where, what, place = [], [], 0
    for part in parts:
        sizes = np.abs(part)
        if not np.isfinite(sizes.max()):
            return None
        own = np.flatnonzero(sizes >= least if least else sizes)
        where.append(own + place)
        what.append(part[own])
        place += part.size
    return np.concatenate(where), np.concatenate(what)


def _by_piece(
    places: np.ndarray, parts: Sequence[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each piece, and which of its elements are meant by the ascending `places`."""
    ends = np.cumsum([part.size for part in parts])
    cuts = [0, *np.searchsorted(places, ends).tolist()]
    for part, end, first, last in zip(parts, ends, cuts, cuts[1:], strict=False):
        yield part, places[first:last] - (end - part.size)
