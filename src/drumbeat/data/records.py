"""Random access to the records of TFRecord files.

The format (https://www.tensorflow.org/tutorials/load_data/tfrecord): for each record
its length (8 bytes, little-endian), a masked CRC-32C of the length (4 bytes), the data,
and a masked CRC-32C of the data (4 bytes). There is no index in it: walking through the
lengths makes one.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from drumbeat.data import remote
from drumbeat.errors import DataError

_HEADER = struct.Struct("<Q")
_HEADER_BYTES = 12
_FOOTER_BYTES = 4
_MOST_OPEN_FILES = 64
_GZIP = b"\x1f\x8b"


class RecordFiles:
    """The records of several files as one numbered sequence.

    Args:
        paths: The files, in order.
        starts: For each file, where each of its records begins, and where the last ends:
            byte offsets, int64 vector of one more element than the file has records.
    """

    def __init__(self, paths: Sequence[str], starts: Sequence[np.ndarray]) -> None:
        self._paths = list(paths)
        self._starts = list(starts)
        # The number of each file's first record, and how many there are at the end.
        counts = [len(own) - 1 for own in starts]
        self._firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._open = functools.lru_cache(maxsize=_MOST_OPEN_FILES)(_open)

    @classmethod
    def of(cls, paths: Sequence[str]) -> RecordFiles:
        """Makes the index of all files, several at a time.

        It reads 12 bytes of each record. 8 bytes of memory a record.

        Raises:
            DataError: A file can't be read, or isn't a complete TFRecord file.
        """
        with ThreadPoolExecutor(max_workers=min(16, len(paths))) as pool:
            return cls(paths, list(pool.map(record_starts, paths)))

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """The records of these numbers, in this order.

        Their lengths' checksums have been verified, those of the data are not.

        Args:
            numbers: Integers in [0, len(self)).

        Returns:
            An array of bytes objects, as long as `numbers`.

        Raises:
            DataError: A file has changed since it was indexed.
        """
        result = np.empty(len(numbers), object)
        of_files = np.searchsorted(self._firsts, numbers, side="right") - 1
        for i, (number, file) in enumerate(zip(numbers.tolist(), of_files.tolist(), strict=True)):
            within = number - int(self._firsts[file])
            start, end = self._starts[file][within : within + 2].tolist()
            size = end - start - _HEADER_BYTES - _FOOTER_BYTES
            result[i] = self._open(self._paths[file]).read(start + _HEADER_BYTES, size)
            if len(result[i]) < size:
                raise DataError(
                    f"{self._paths[file]} is shorter than when it was indexed: a record at byte "
                    f"{start} ended at byte {end}. Expected files that stay as they are while "
                    "they are read."
                )
        return result

    def lengths(self) -> np.ndarray:
        """The size of each record with its frame, bytes."""
        return np.concatenate([np.diff(own) for own in self._starts])


def record_starts(path: str) -> np.ndarray:
    """Where each record of a file begins, and where the last ends: byte offsets, int64.

    Raises:
        DataError: The file can't be read, or isn't a complete TFRecord file.
    """
    try:
        with _buffered(path) as file:
            is_remote = remote.is_remote(path)
            size = remote.size_bytes(path) if is_remote else os.stat(path).st_size
            return _walk(path, file, size)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"can't read {path}: {reason}. Expected a TFRecord file.") from error


def _walk(path: str, file: _Readable, size: int) -> np.ndarray:
    """The offsets of the records and of the end."""
    starts: list[int] = [0]
    headers: list[bytes] = []
    offset = 0
    while offset < size:
        header = file.read(_HEADER_BYTES)
        end = size + 1
        if len(header) == _HEADER_BYTES:
            end = offset + _HEADER_BYTES + _HEADER.unpack(header[:8])[0] + _FOOTER_BYTES
        if end > size:
            # The damage may be in an earlier length, which led here.
            _require_intact(path, starts, headers, size)
            raise _broken(path, offset, header, size)
        file.seek(end)
        headers.append(header)
        starts.append(end)
        offset = end
    _require_intact(path, starts, headers, size)
    return np.array(starts, np.int64)


def _require_intact(path: str, starts: list[int], headers: list[bytes], size: int) -> None:
    flat = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _HEADER_BYTES)
    bad = np.flatnonzero(~checksums_fit(flat))
    if bad.size:
        raise _broken(path, starts[bad[0]], headers[bad[0]], size)


def _broken(path: str, offset: int, header: bytes, size: int) -> DataError:
    """What is wrong with the record at `offset`."""
    whole = len(header) == _HEADER_BYTES
    if not whole or checksums_fit(np.frombuffer(header, np.uint8)[None])[0]:
        return DataError(
            f"{path} is cut short: its record at byte {offset} goes beyond the file's end at "
            f"byte {size}. Write or copy the file anew."
        )
    if offset == 0 and header.startswith(_GZIP):
        return DataError(
            f"{path} is compressed (gzip), in which no record can be reached alone. Expected an "
            "uncompressed TFRecord file: gunzip it, or read it with tf.data.TFRecordDataset("
            "files, compression_type='GZIP'), which every worker then reads in full."
        )
    said = "is no uncompressed TFRecord file" if offset == 0 else "is damaged"
    return DataError(
        f"{path} {said}: the length of the record at byte {offset} doesn't have the checksum "
        "that follows it. Expected a file of tf.io.TFRecordWriter without compression."
    )


def checksums_fit(headers: np.ndarray) -> np.ndarray:
    """Whether each header's length has the checksum that follows it.

    Args:
        headers: uint8, [records, 12].

    Returns:
        bool, [records].
    """
    crc = np.full(len(headers), 0xFFFF_FFFF, np.uint32)
    for column in headers[:, :8].T:
        crc = _crc_table()[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    crc ^= np.uint32(0xFFFF_FFFF)
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282_EAD8)
    return masked == np.ascontiguousarray(headers[:, 8:12]).view("<u4")[:, 0]


@functools.cache
def _crc_table() -> np.ndarray:
    """CRC-32C (Castagnoli, RFC 3720, reflected) of each byte."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(0x82F6_3B78), crc >> 1).astype(np.uint32)
    return crc


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> object: ...


def _buffered(path: str) -> Any:
    return remote.open_file(path) if remote.is_remote(path) else open(path, "rb")  # noqa: SIM115


def _open(path: str) -> _Local | _Remote:
    return _Remote(path) if remote.is_remote(path) else _Local(path)


class _Local:
    """A file that several threads read from at once; closed when nobody refers to it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer at the file's end."""
        parts = []
        while size > 0 and (part := os.pread(self._file, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Remote:
    """A file that is named by a URL."""

    def __init__(self, path: str) -> None:
        self._file = remote.open_file(path)
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer at the file's end."""
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size) if size else b""
