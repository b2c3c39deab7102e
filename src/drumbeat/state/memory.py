"""The memory in which a node keeps its job's state, beyond the life of any worker.

Anonymous files (memfd_create(2)) that the agent makes and every worker of every
attempt gets the descriptors of: nothing has a name that could be left behind, the
size of /dev/shm, 64 MB in a container, is no limit, and they are gone with the last
process that has them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

from drumbeat.errors import StateError
from drumbeat.state import format as form
from drumbeat.state.anonymous import FDS_VARIABLE, anonymous
from drumbeat.state.format import ALIGN_BYTES, HEADER_BYTES, Header, State

_DROPPED = b"dropped"
_SLACK_BYTES = 1 << 16
_DROPPED_AT = HEADER_BYTES - len(_DROPPED)


class SnapshotMemory:
    """Two buffers that take turns, and an archive that only grows.

    One process at a time writes: the worker that has local rank 0. A snapshot is
    complete or absent: a writer that is killed leaves the other buffer as it was.
    """

    def __init__(self, fds: tuple[int, int, int]) -> None:
        """Args: descriptors of the two buffers and the archive."""
        self.fds = fds
        self._maps: dict[int, mmap.mmap] = {}

    @classmethod
    def create(cls) -> SnapshotMemory:
        """New, empty memory; to be closed.

        Raises:
            OSError: The system has no more descriptors or memory.
        """
        return cls((anonymous("buffer-0"), anonymous("buffer-1"), anonymous("archive")))

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> SnapshotMemory | None:
        """The memory whose descriptors the agent has given to this worker, if it has."""
        text = env.get(FDS_VARIABLE, "")
        if not text:
            return None
        first, second, archive = (int(part) for part in text.split(","))
        return cls((first, second, archive))

    def close(self) -> None:
        """Gives the descriptors back."""
        self._maps.clear()
        for fd in self.fds:
            os.close(fd)

    def steps(self) -> list[int]:
        """The steps of the complete snapshots, newest first. Only their headers are read."""
        headers = (_header(fd) for fd in self.fds[:2])
        return sorted({header.step for header in headers if header is not None}, reverse=True)

    def write(self, state: State) -> None:
        """Keeps `state` in place of the older snapshot.

        Raises:
            StateError: There is not enough memory; the snapshots are as they were.
        """
        fd = self._older()
        size_bytes = form.size_of(state)
        _reserve(fd, size_bytes)
        form.pack_into(memoryview(self._map(fd)), state)

    def read(self, step: int) -> State:
        """The snapshot of `step`; its arrays are views that last until the next `write`.

        Raises:
            StateError: There is none, or its checksums do not fit.
        """
        return form.unpack(memoryview(self._map(self._holding(step))))

    def packed(self, step: int) -> bytes:
        """The snapshot of `step` as bytes, for another node or for a backup.

        Raises:
            StateError: There is none.
        """
        fd = self._holding(step)
        header = _header(fd)
        assert header is not None  # noqa: S101
        return os.pread(fd, header.size_bytes, 0)

    def put(self, packed: bytes) -> None:
        """Keeps a snapshot that `packed` gave, in place of the older one.

        Raises:
            StateError: It is damaged, or there is not enough memory.
        """
        form.unpack(packed)
        fd = self._older()
        _reserve(fd, len(packed))
        view = memoryview(self._map(fd))
        view[:HEADER_BYTES] = bytes(HEADER_BYTES)
        view[HEADER_BYTES : len(packed)] = packed[HEADER_BYTES:]
        view[:HEADER_BYTES] = packed[:HEADER_BYTES]

    def discard(self, step: int) -> None:
        """Forgets the snapshot of `step`, such as one that turned out to be damaged."""
        os.pwrite(self._holding(step), bytes(HEADER_BYTES), 0)

    def archive_append(self, state: State) -> None:
        """Adds `state` to the archive.

        Raises:
            StateError: There is not enough memory; the archive is as it was.
        """
        fd = self.fds[2]
        end = sum(header.size_bytes for _, header in self._entries())
        size_bytes = form.size_of(state)
        # A header of zeros behind it marks the end.
        _reserve(fd, end + size_bytes + ALIGN_BYTES)
        form.pack_into(memoryview(self._map(fd))[end:], state)

    def archive(self) -> list[State]:
        """All that was added, in order. One that was dropped has no arrays any more.

        Raises:
            StateError: One is damaged.
        """
        states = []
        for at, _ in self._entries():
            view = memoryview(self._map(self.fds[2]))[at:]
            dropped = bytes(view[_DROPPED_AT:HEADER_BYTES]) == _DROPPED
            state = form.unpack(view, verify=not dropped)
            states.append(State(state.step, state.meta) if dropped else state)
        return states

    def archive_sizes(self) -> list[int]:
        """Bytes of memory that each entry of the archive takes; 0 for one that was dropped."""
        fd = self.fds[2]
        sizes = []
        for at, header in self._entries():
            mark = os.pread(fd, len(_DROPPED), at + _DROPPED_AT)
            sizes.append(0 if mark == _DROPPED else header.size_bytes)
        return sizes

    def newest_step(self) -> int:
        """The newest step kept, in a snapshot or at a training's end; -1 for none."""
        ends = zip(self._entries(), self.archive_sizes(), strict=True)
        kept = [header.step for (_, header), size_bytes in ends if size_bytes]
        return max([-1, *self.steps(), *kept])

    def archive_drop(self, number: int) -> None:
        """Frees the arrays of an entry; its `meta` stays.

        Args:
            number: Its position, from 0.
        """
        fd = self.fds[2]
        at, header = self._entries()[number]
        os.pwrite(fd, _DROPPED, at + _DROPPED_AT)
        page = mmap.PAGESIZE
        start = -(-(at + HEADER_BYTES + header.index_bytes) // page) * page
        stop = (at + header.size_bytes) // page * page
        if start < stop and hasattr(mmap, "MADV_REMOVE"):
            self._map(fd).madvise(mmap.MADV_REMOVE, start, stop - start)

    def archive_bytes(self) -> bytes:
        """The whole archive, for another node or for a backup."""
        return os.pread(self.fds[2], sum(header.size_bytes for _, header in self._entries()), 0)

    def put_archive(self, data: bytes) -> None:
        """Makes `data`, of `archive_bytes`, the archive.

        Raises:
            StateError: There is not enough memory.
        """
        fd = self.fds[2]
        os.pwrite(fd, bytes(HEADER_BYTES), 0)
        _reserve(fd, len(data) + ALIGN_BYTES)
        view = memoryview(self._map(fd))
        view[len(data) : len(data) + HEADER_BYTES] = bytes(HEADER_BYTES)
        view[HEADER_BYTES : len(data)] = data[HEADER_BYTES:]
        view[: min(HEADER_BYTES, len(data))] = data[:HEADER_BYTES]

    def _entries(self) -> list[tuple[int, Header]]:
        """Offset and header of each entry of the archive."""
        entries: list[tuple[int, Header]] = []
        at = 0
        while (header := _header(self.fds[2], at)) is not None:
            entries.append((at, header))
            at += header.size_bytes
        return entries

    def _older(self) -> int:
        """The buffer to write to next: one without a snapshot, or the older one."""
        headers = [(fd, _header(fd)) for fd in self.fds[:2]]
        return min(headers, key=lambda pair: -1 if pair[1] is None else pair[1].step)[0]

    def _holding(self, step: int) -> int:
        for fd in self.fds[:2]:
            header = _header(fd)
            if header is not None and header.step == step:
                return fd
        raise StateError(f"There is no complete snapshot of step {step}.")

    def _map(self, fd: int) -> mmap.mmap:
        size_bytes = os.fstat(fd).st_size
        mapped = self._maps.get(fd)
        if mapped is None or len(mapped) != size_bytes:
            # The old one lives on as long as an array looks into it.
            mapped = self._maps[fd] = mmap.mmap(fd, size_bytes)
        return mapped


def _header(fd: int, at: int = 0) -> Header | None:
    return Header.from_bytes(os.pread(fd, HEADER_BYTES, at))


def _reserve(fd: int, size_bytes: int) -> None:
    """Makes the file at least so long, and has the memory for it.

    Written to without, memory that is not there kills the process by SIGBUS.
    """
    if os.fstat(fd).st_size >= size_bytes:
        return
    # A little more: states grow by some bytes, and each new mapping costs as much as a copy.
    size_bytes += size_bytes // 128 + _SLACK_BYTES
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size_bytes)
        else:
            os.ftruncate(fd, size_bytes)
    except OSError as error:
        raise StateError(
            f"No memory for a snapshot of {size_bytes / 1e6:.0f} MB: {error.strerror}. Two of them "
            "are kept on each node; give it more memory, or --snapshot-every 0 for none."
        ) from None
