"""What a backup's manifest says, and how it is written: JSON with a checksum of itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from drumbeat import __version__
from drumbeat.errors import StateError

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class About:
    """What a manifest says about its backup.

    Attributes:
        job: Name of the run that wrote it.
        step: Finished training steps of the whole job.
        phase: Index of the phase it was in.
        epoch: Epoch it was in, from 0.
        world_size: How many workers wrote it.
        seed: What the workers were seeded with; None for nothing. A job that goes on
            from the backup needs the same one for the same order of data.
        onednn: TF_ENABLE_ONEDNN_OPTS of the workers, which decides how they round; "" for
            TensorFlow's default.
        finished: The phase was at its end.
        drumbeat: The version that wrote it.
        time: When, ISO 8601 in UTC.
    """

    job: str
    step: int
    phase: int
    epoch: int
    world_size: int
    seed: int | None = None
    onednn: str = ""
    finished: bool = False
    drumbeat: str = __version__
    time: str = ""


@dataclass(frozen=True)
class Listed:
    """A state file as a manifest lists it."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A manifest, see `Content` in backups.py for what it lists."""

    about: About
    snapshot: Listed | None
    phases: tuple[Listed, ...]

    @property
    def files(self) -> tuple[Listed, ...]:
        """All that it lists, the snapshot first."""
        return self.phases if self.snapshot is None else (self.snapshot, *self.phases)


class Damaged(Exception):
    """Why a backup can't be used."""


def encode(manifest: Manifest) -> bytes:
    """The manifest's file."""
    record = {"format": FORMAT, **dataclasses.asdict(manifest)}
    return json.dumps({**record, "sha256": _sum(record)}, indent=1).encode()


def decode(data: bytes) -> Manifest:
    """Inverse of `encode`.

    Raises:
        Damaged: It isn't what was written.
        StateError: It is of a newer format.
    """
    try:
        record = json.loads(data)
        given = record.pop("sha256")
    except (ValueError, KeyError, AttributeError):
        raise Damaged("its manifest is cut off or changed") from None
    if given != _sum(record):
        raise Damaged("its manifest has changed since it was written")
    if record.pop("format") != FORMAT:
        raise StateError(
            f"The newest backup was written by drumbeat {record['about']['drumbeat']}, whose "
            "format this version does not know. Use that version, or another folder."
        )
    snapshot, phases = record["snapshot"], record["phases"]
    return Manifest(
        About(**record["about"]),
        None if snapshot is None else Listed(**snapshot),
        tuple(Listed(**listed) for listed in phases),
    )


def _sum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
