"""bf16 and fp16: each element in 16 bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from drumbeat.collectives.compression.codec import Codec, aligned
from drumbeat.collectives.compression.pieces import PIECE_ELEMENTS

_LARGEST_HALF = 65504.0
_BFLOAT16 = np.dtype(tf.bfloat16.as_numpy_dtype)


class Halves(Codec):
    """Rounds to 16 bits, to the nearest.

    Error feedback (Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes") adds what rounding took away to the next gradient.

    bf16 keeps float32's range and 8 bits of precision; fp16 keeps 11 bits, but nothing above
    65504: what is larger is sent as that, and the rest later.

    Args:
        dtype: bfloat16 or float16.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._is_narrow = dtype == np.float16
        self._scratch = np.empty(PIECE_ELEMENTS, np.float32)

    @classmethod
    def bfloat16(cls) -> Halves:
        """bf16."""
        return cls(_BFLOAT16)

    @classmethod
    def float16(cls) -> Halves:
        """fp16."""
        return cls(np.dtype(np.float16))

    def size_bytes(self, lengths: Sequence[int]) -> int:
        """See `Codec`."""
        return aligned(2 * sum(lengths))

    def encode(self, pieces: Iterable[np.ndarray], lengths: Sequence[int], row: np.ndarray) -> None:
        """See `Codec`."""
        codes, place = row.view(self._dtype), 0
        for piece in pieces:
            own, read = codes[place : place + piece.size], self._scratch[: piece.size]
            place += piece.size
            if self._is_narrow:
                finite = np.clip(piece, -_LARGEST_HALF, _LARGEST_HALF, out=read)
                # What is infinite has to be seen as such: it halves a loss scale.
                np.copyto(finite, piece, where=np.isinf(piece))
                own[:] = finite
            else:
                own[:] = piece
            read[:] = own
            np.subtract(piece, read, out=piece)

    def decode(
        self, row: np.ndarray, pieces: Iterable[np.ndarray], lengths: Sequence[int], *, add: bool
    ) -> None:
        """See `Codec`."""
        codes, place = row.view(self._dtype), 0
        for piece in pieces:
            own = codes[place : place + piece.size]
            place += piece.size
            if add:
                read = self._scratch[: piece.size]
                read[:] = own
                np.add(piece, read, out=piece)
            else:
                piece[:] = own

    def is_finite(self, row: np.ndarray, lengths: Sequence[int]) -> bool:
        """See `Codec`."""
        # All bits of the exponent are set.
        exponent = np.uint16(0x7C00 if self._is_narrow else 0x7F80)
        bits = row.view(np.uint16)[: sum(lengths)]
        return all(
            not ((bits[i : i + PIECE_ELEMENTS] & exponent) == exponent).any()
            for i in range(0, bits.size, PIECE_ELEMENTS)
        )
