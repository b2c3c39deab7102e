"""Tensors and rows made small enough to keep, and still comparable."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from drumbeat.cluster.recording import SKETCH_SIZE

_DIGEST_BYTES = 8


def sketch(array: np.ndarray) -> tuple[float, ...]:
    """The sketch of `array`, see `VariableRecord`: up to `SKETCH_SIZE` numbers, linear in it."""
    flat = array.astype(np.float64).reshape(-1)
    if flat.size > SKETCH_SIZE:
        signed = flat * _signs(flat.size)
        signed.resize(-(-flat.size // SKETCH_SIZE) * SKETCH_SIZE)
        flat = signed.reshape(-1, SKETCH_SIZE).sum(0)
    return tuple(flat.tolist())


@functools.lru_cache(maxsize=256)
def _signs(size: int) -> np.ndarray:
    draw = np.random.Generator(np.random.PCG64(size))
    return draw.integers(0, 2, size, dtype=np.int8) * np.int8(2) - np.int8(1)


def norm(array: np.ndarray) -> float:
    """Euclidean norm, computed in float64."""
    return float(np.linalg.norm(array.astype(np.float64)))


def checksum(array: np.ndarray) -> int:
    """CRC-32 of the array's bytes."""
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def row_digests(leaves: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """One digest for each row of a batch, of that row in all `leaves`.

    Args:
        leaves: Arrays with the rows as their first axis, or what `ragged_rows` returns;
            equally many rows in all. Strings are bytes objects.

    Returns:
        Hexadecimal digests; equal for rows with the same bytes.
    """
    digests = []
    for row in zip(*leaves, strict=True):
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for leaf in row:
            for part in leaf if isinstance(leaf, tuple) else (leaf,):
                digest.update(_bytes_of(np.asarray(part)))
        digests.append(digest.hexdigest())
    return tuple(digests)


def ragged_rows(flat: np.ndarray, splits: Sequence[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
    """The rows of a `tf.RaggedTensor`: of each its inner lengths, and its values.

    Args:
        flat: `flat_values`.
        splits: `nested_row_splits`, the outermost first.
    """
    rows = []
    for start, end in zip(splits[0][:-1], splits[0][1:], strict=True):
        parts = []
        for inner in splits[1:]:
            parts.append(np.diff(inner[start : end + 1]))
            start, end = inner[start], inner[end]
        rows.append((*parts, flat[start:end]))
    return rows


def _bytes_of(part: np.ndarray) -> bytes:
    if part.dtype != object:
        return np.ascontiguousarray(part).tobytes()
    texts: list[Any] = part.reshape(-1).tolist()
    return b"\0".join(text if isinstance(text, bytes) else str(text).encode() for text in texts)
