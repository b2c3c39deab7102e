"""How a state of training is written as bytes, in memory, between nodes and in backups.

A header of 64 bytes, an index in JSON, then the arrays, each aligned to 64 bytes and
with a checksum of its own. The header is written last: what has none is not there.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumbeat.errors import StateError

ALIGN_BYTES = 64
HEADER_BYTES = 64
_MAGIC = b"drumbeat"
_VERSION = 1
# magic, version, step, index size, total size; then a CRC of these.
_HEADER = struct.Struct("<8sIxxxxqqq")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class State:
    """What it takes to go on from a step.

    Attributes:
        step: Finished training steps of the whole job.
        meta: Plain values, as JSON has them.
        arrays: Arrays by name; bytes travel as uint8.
    """

    step: int
    meta: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Header:
    """The first bytes of a written state.

    Attributes:
        step: See `State`.
        index_bytes: Length of the index behind the header.
        size_bytes: Length of all, header included; a multiple of `ALIGN_BYTES`.
    """

    step: int
    index_bytes: int
    size_bytes: int

    def to_bytes(self) -> bytes:
        """`HEADER_BYTES` bytes."""
        fields = _HEADER.pack(_MAGIC, _VERSION, self.step, self.index_bytes, self.size_bytes)
        crc = struct.pack("<I", zlib.crc32(fields))
        return (fields + crc).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def from_bytes(cls, data: bytes) -> Header | None:
        """Inverse of `to_bytes`; None for anything else, such as a state being written."""
        if len(data) < HEADER_BYTES or data[:8] != _MAGIC:
            return None
        fields = data[: _HEADER.size]
        (crc,) = struct.unpack_from("<I", data, _HEADER.size)
        _, version, step, index_bytes, size_bytes = _HEADER.unpack(fields)
        if crc != zlib.crc32(fields) or version != _VERSION:
            return None
        return cls(step, index_bytes, size_bytes)


@dataclass(frozen=True)
class _Layout:
    """Where everything goes: the arrays as they will be copied, and their offsets."""

    arrays: tuple[tuple[str, np.ndarray, int], ...]
    index_room: int
    size_bytes: int


def size_of(state: State) -> int:
    """How many bytes `pack_into` needs."""
    return _layout(state).size_bytes


def pack(state: State) -> bytes:
    """`state` as bytes."""
    buffer = bytearray(size_of(state))
    pack_into(memoryview(buffer), state)
    return bytes(buffer)


def pack_into(buffer: memoryview, state: State) -> int:
    """Writes `state` to the start of `buffer` and returns how many bytes it took.

    Until the very end the buffer holds no valid header.

    Raises:
        ValueError: The buffer is too small.
    """
    layout = _layout(state)
    if len(buffer) < layout.size_bytes:
        raise ValueError(f"{layout.size_bytes} bytes don't fit into {len(buffer)}")
    buffer[:HEADER_BYTES] = bytes(HEADER_BYTES)
    target = np.frombuffer(buffer, np.uint8)
    entries = [
        {
            "name": name,
            "dtype": array.dtype.name,
            "shape": array.shape,
            "offset": offset,
            "sum": _copy(array, target[offset : offset + array.nbytes]),
        }
        for name, array, offset in layout.arrays
    ]
    index = _index(state.meta, entries)
    buffer[HEADER_BYTES : HEADER_BYTES + len(index)] = index
    header = Header(state.step, len(index), layout.size_bytes)
    buffer[:HEADER_BYTES] = header.to_bytes()
    return layout.size_bytes


def unpack(buffer: memoryview | bytes, *, verify: bool = True) -> State:
    """The state at the start of `buffer`; its arrays are views of the buffer.

    Args:
        buffer: What `pack` or `pack_into` wrote; may be longer.
        verify: Compare the arrays' checksums.

    Raises:
        StateError: There is none, or it was damaged; says which part.
    """
    view = memoryview(buffer)
    header = Header.from_bytes(bytes(view[:HEADER_BYTES]))
    if header is None or header.size_bytes > len(view):
        raise StateError("No complete state was found: it is cut off, or was being written.")
    meta, entries = _read_index(view, header)
    arrays: dict[str, np.ndarray] = {}
    for entry in entries:
        dtype, shape = dtype_of(entry["dtype"]), tuple(entry["shape"])
        size_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        raw = np.frombuffer(view, np.uint8, size_bytes, entry["offset"])
        if verify and checksum(raw) != entry["sum"]:
            raise StateError(
                f"The state of step {header.step} is damaged: its part {entry['name']} has another "
                "checksum than when it was written."
            )
        arrays[entry["name"]] = raw.view(dtype).reshape(shape)
    return State(header.step, meta, arrays)


def checksum(array: np.ndarray) -> int:
    """A number that changes with any bit of `array`'s bytes, and if blocks of 1 MiB change places.

    Sums of 64-bit words, block by block, under one CRC: about ten times as fast as a
    CRC of all. Within a block it would miss words that change places.
    """
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    sums = [_block_sum(data[at : at + _BLOCK_BYTES]) for at in range(0, data.size, _BLOCK_BYTES)]
    return zlib.crc32(struct.pack(f"<{len(sums)}q", *sums), data.size & 0xFFFFFFFF)


def dtype_of(name: str) -> np.dtype[Any]:
    """A dtype by its name, those of TensorFlow's (bfloat16, float8_…) too."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # comes with TensorFlow, and is only needed where one of its types is

        return np.dtype(getattr(ml_dtypes, name))


def _copy(array: np.ndarray, target: np.ndarray) -> int:
    """Copies an array's bytes block by block, and returns their checksum."""
    data = array.reshape(-1).view(np.uint8)
    sums = []
    for at in range(0, data.size, _BLOCK_BYTES):
        block = data[at : at + _BLOCK_BYTES]
        target[at : at + block.size] = block
        # Of the source: what went wrong on the way is found too.
        sums.append(_block_sum(block))
    return zlib.crc32(struct.pack(f"<{len(sums)}q", *sums), data.size & 0xFFFFFFFF)


def _block_sum(block: np.ndarray) -> int:
    whole = block.size // 8 * 8
    words = block[:whole]
    if words.ctypes.data % 8:
        words = words.copy()
    total = int(np.add.reduce(words.view(np.int64))) + zlib.crc32(block[whole:].tobytes())
    return (total + 2**63) % 2**64 - 2**63


def _layout(state: State) -> _Layout:
    arrays = [(name, np.ascontiguousarray(array)) for name, array in state.arrays.items()]
    blank = [
        # The widest that these can become.
        {"name": name, "dtype": a.dtype.name, "shape": a.shape, "offset": 10**15, "sum": 2**32}
        for name, a in arrays
    ]
    room = len(_index(state.meta, blank))
    at = _aligned(HEADER_BYTES + room)
    placed = []
    for name, array in arrays:
        placed.append((name, array.reshape(np.shape(state.arrays[name])), at))
        at = _aligned(at + array.nbytes)
    return _Layout(tuple(placed), room, at)


def _index(meta: Mapping[str, Any], entries: list[dict[str, Any]]) -> bytes:
    text = json.dumps({"meta": meta, "arrays": entries}, separators=(",", ":")).encode()
    return text + struct.pack("<I", zlib.crc32(text))


def _read_index(view: memoryview, header: Header) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    data = bytes(view[HEADER_BYTES : HEADER_BYTES + header.index_bytes])
    text, crc = data[:-4], data[-4:]
    if len(crc) < 4 or struct.unpack("<I", crc)[0] != zlib.crc32(text):
        raise StateError(f"The state of step {header.step} is damaged: its index does not fit.")
    index = json.loads(text)
    return index["meta"], index["arrays"]


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
