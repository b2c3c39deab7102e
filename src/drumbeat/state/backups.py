"""Backups: the state of a job on durable storage, each complete or not there.

A backup is a set of files and a manifest that lists them with sizes and checksums.
The manifest is written last, so what it lists was written whole. Files are named
after their content: the states of finished phases, which every later backup holds
too, are written once. Whatever happened to a file since is found when it is read, and
then the backup before is used.

Only files with the names below are ever removed:
  drumbeat-backup-<number>-<writer>.json   a manifest
  drumbeat-state-<checksum>.bin            a state
  .drumbeat-temporary-…                    half a file
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from drumbeat.errors import ConfigError, StateError
from drumbeat.state.folders import TEMPORARY_PREFIX, Entry, Folder
from drumbeat.state.format import HEADER_BYTES, Header
from drumbeat.state.manifest import About, Damaged, Listed, Manifest, decode, encode

DEFAULT_KEEP = 5
# Another process may be about to write the manifest of what looks like a leftover.
LEFTOVER_AGE_S = 3600.0
READ_TRIES = 3
READ_PAUSE_S = 2.0
_MANIFEST = re.compile(r"drumbeat-backup-(\d{6,})-([0-9a-f]{8})\.json")
_STATE = re.compile(r"drumbeat-state-[0-9a-f]{32}\.bin")
_DROPPED = b"dropped"
logger = logging.getLogger("drumbeat")


@dataclass(frozen=True, kw_only=True)
class Content:
    """What goes into a backup.

    Attributes:
        about: For the manifest.
        snapshot: The packed state to go on from; None where the phases are all.
        phases: The packed states at the end of finished phases, in their order.
    """

    about: About
    snapshot: bytes | None
    phases: tuple[bytes, ...] = ()


class Backups:
    """The backups in a folder. One process writes; others may read at the same time.

    Args:
        folder: Where they are.
        keep: How many complete ones to keep.
        clock: Seconds since 1970.
        pause: Sleeps a number of seconds, between tries to read.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        keep: int = DEFAULT_KEEP,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ConfigError(f"keep is {keep!r}; expected a whole number of backups, at least 1.")
        self._folder = folder
        self._keep = keep
        self._clock = clock
        self._pause = pause
        self._writer = secrets.token_hex(4)
        self._own: set[str] = set()
        self._damaged: set[str] = set()
        self._files: dict[str, tuple[Listed, ...]] = {}
        self._before: frozenset[str] | None = None
        self._told = False

    @property
    def folder(self) -> Folder:
        """Where they are."""
        return self._folder

    def write(self, content: Content) -> str:
        """Writes a backup, and then removes what is old; returns its manifest's name.

        Raises:
            OSError: It could not be written. The older ones are as they were.
        """
        present = self._folder.entries()
        snapshot = None
        if content.snapshot is not None:
            snapshot = self._write_state(content.snapshot, present)
        phases = [self._write_state(data, present) for data in content.phases]
        there = self._manifests(present)
        self._notice_others(there)
        number = 1 + (_order(there[0])[0] if there else 0)
        name = f"drumbeat-backup-{number:06d}-{self._writer}.json"
        about = dataclasses.replace(content.about, time=_iso(self._clock()))
        self._folder.write(name, encode(Manifest(about, snapshot, tuple(phases))))
        self._own.add(name)
        self._tidy()
        return name

    def newest(self) -> Content | None:
        """The newest backup that is complete and undamaged; None if there is none.

        Newer ones that are damaged are named in a warning.

        Raises:
            StateError: The folder can't be read now, or its newest backup is of a newer
                drumbeat. Beginning anew would be worse than saying so.
        """
        for name in self._manifests(self._patiently(self._folder.entries)):
            try:
                manifest = self._read_manifest(name)
                states = [self._read_state(listed) for listed in manifest.files]
            except Damaged as why:
                self._damaged.add(name)
                logger.warning(
                    "The backup %s in %s is damaged (%s); the one before is used.",
                    name,
                    self._folder.name,
                    why,
                )
                continue
            snapshot = states.pop(0) if manifest.snapshot is not None else None
            return Content(about=manifest.about, snapshot=snapshot, phases=tuple(states))
        if self._damaged:
            logger.warning(
                "No backup in %s is intact; training begins anew.",
                self._folder.name,
            )
        return None

    def newest_about(self) -> About | None:
        """What the newest readable manifest says; its states aren't looked at.

        Raises:
            StateError: See `newest`.
        """
        for name in self._manifests(self._patiently(self._folder.entries)):
            try:
                return self._read_manifest(name).about
            except Damaged:
                continue  # `newest` will tell
        return None

    def _write_state(self, data: bytes, present: dict[str, Entry]) -> Listed:
        digest = hashlib.sha256(data).hexdigest()
        listed = Listed(f"drumbeat-state-{digest[:32]}.bin", len(data), digest)
        there = present.get(listed.name)
        # One that this process has not written may be damaged.
        if listed.name not in self._own or there is None or there.size_bytes != len(data):
            self._folder.write(listed.name, data)
            self._own.add(listed.name)
        return listed

    def _manifests(self, present: Iterable[str]) -> list[str]:
        """The names of manifests among those `present`, newest first."""
        return sorted((n for n in present if _MANIFEST.fullmatch(n)), key=_order, reverse=True)

    def _read_manifest(self, name: str) -> Manifest:
        return decode(self._read(name))

    def _read_state(self, listed: Listed) -> bytes:
        data = self._read(listed.name)
        if len(data) != listed.size_bytes:
            raise Damaged(f"{listed.name} has {len(data)} bytes, expected {listed.size_bytes}")
        if hashlib.sha256(data).hexdigest() != listed.sha256:
            raise Damaged(f"{listed.name} has changed since it was written")
        return data

    def _read(self, name: str) -> bytes:
        try:
            return self._patiently(lambda: self._folder.read(name))
        except FileNotFoundError:
            raise Damaged(f"{name} is missing") from None

    def _patiently(self, act: Callable[[], Any]) -> Any:
        """Tries again where a network or disk fails: what is only out of reach isn't damaged."""
        for left in reversed(range(READ_TRIES)):
            try:
                return act()
            except FileNotFoundError:
                raise
            except OSError as error:
                if not left:
                    raise StateError(
                        f"The backups in {self._folder.name} can't be read: "
                        f"{error.strerror or error}. Start again when they can, or without them "
                        "to train anew."
                    ) from error
            self._pause(READ_PAUSE_S)
        raise AssertionError("unreachable")

    def _tidy(self) -> None:
        """Removes old backups and leftovers. What can't be removed now will be next time."""
        try:
            present = self._folder.entries()
            kept = self._kept(self._manifests(present))
            needed = {listed.name for name in kept for listed in self._files_of(name)}
            for name in [*self._manifests(present), *present]:
                if name not in kept and name not in needed and self._is_old(name, present[name]):
                    self._folder.remove(name)
                    self._own.discard(name)
        except (OSError, StateError) as error:
            logger.info("Old backups in %s stay for now: %s", self._folder.name, error)

    def _kept(self, manifests: list[str]) -> set[str]:
        intact = [name for name in manifests if name not in self._damaged]
        oldest = intact[: self._keep][-1]
        return {name for name in manifests if _order(name) >= _order(oldest)}

    def _files_of(self, name: str) -> tuple[Listed, ...]:
        if name not in self._files:
            try:
                self._files[name] = self._read_manifest(name).files
            except Damaged:
                self._files[name] = ()
        return self._files[name]

    def _is_old(self, name: str, entry: Entry) -> bool:
        """Whether to remove one of our files that no backup needs any more."""
        if _MANIFEST.fullmatch(name) or name in self._own:
            return True
        if not _STATE.fullmatch(name) and not name.startswith(TEMPORARY_PREFIX):
            return False
        return entry.modified_s is not None and self._clock() - entry.modified_s > LEFTOVER_AGE_S

    def _notice_others(self, manifests: list[str]) -> None:
        """Says once when another process writes here too: each removes the other's backups."""
        if self._before is None:
            self._before = frozenset(manifests) - self._own
        others = set(manifests) - self._own - self._before
        if others and not self._told:
            self._told = True
            logger.warning(
                "Another process writes backups to %s too (%s). Give each job a folder of its own: "
                "they remove each other's old backups, and go on from each other's.",
                self._folder.name,
                max(others, key=_order),
            )


def split_archive(archive: bytes) -> tuple[bytes, ...]:
    """The entries of a `SnapshotMemory`'s archive, one by one.

    Of one that was dropped, without the arrays that it no longer has.
    """
    entries, at = [], 0
    while (header := Header.from_bytes(archive[at : at + HEADER_BYTES])) is not None:
        size_bytes = header.size_bytes
        if archive[at : at + HEADER_BYTES].endswith(_DROPPED):
            size_bytes = HEADER_BYTES + header.index_bytes
        entries.append(archive[at : at + size_bytes])
        at += header.size_bytes
    return tuple(entries)


def join_archive(entries: Iterable[bytes]) -> bytes:
    """Inverse of `split_archive`."""
    whole = []
    for entry in entries:
        header = Header.from_bytes(entry[:HEADER_BYTES])
        assert header is not None  # noqa: S101
        whole.append(entry.ljust(header.size_bytes, b"\0"))
    return b"".join(whole)


def _order(name: str) -> tuple[int, str]:
    found = _MANIFEST.fullmatch(name)
    assert found is not None  # noqa: S101
    return int(found[1]), found[2]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
