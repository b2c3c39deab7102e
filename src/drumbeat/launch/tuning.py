"""What was measured on this machine and is kept for the next run: a file in the user's cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumbeat.launch.calibration import Finding, chosen
from drumbeat.state.small_files import check_writable, of_user, write_json

FORMAT = 1
_FILE = "tune.json"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of one kind of machine, TensorFlow and worker.

    Attributes:
        findings: What was measured.
        measured: When, ISO 8601.
    """

    findings: tuple[Finding, ...]
    measured: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """What is set otherwise than usual."""
        return chosen(self.findings)


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a measurement holds for; another machine is measured anew."""

    cpu: str
    cpus: int
    limit: float | None
    tensorflow: str
    threads: int

    def __str__(self) -> str:
        limit = "" if self.limit is None else f", limited to {self.limit:g}"
        threads = "1 core" if self.threads == 1 else f"{self.threads} cores"
        return (
            f"{self.cpu}, {self.cpus} CPUs{limit}; TensorFlow {self.tensorflow}; {threads} a worker"
        )


@dataclass
class Cache:
    """The file. One that can't be used is as one that is empty.

    Attributes:
        path: Where; None where there is no place for it.
    """

    path: Path | None
    _entries: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def of_user(cls, environ: Mapping[str, str]) -> Cache:
        """In XDG_CACHE_HOME, or ~/.cache."""
        cache = cls(of_user(_FILE, environ))
        cache._entries = cache._read()
        return cache

    @property
    def is_writable(self) -> bool:
        """Whether what is measured can be kept; the folder is made for that."""
        if self.path is None:
            return False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            check_writable(self.path.parent)
        except OSError:
            return False
        return True

    @property
    def entries(self) -> dict[str, Entry]:
        """All of it, by key in words."""
        return dict(self._entries)

    def get(self, key: Key) -> Entry | None:
        """What is known for `key`."""
        return self._entries.get(str(key))

    def put(self, key: Key, entry: Entry) -> bool:
        """Keeps it, beside what others have written meanwhile; whether that succeeded."""
        self._entries = {**self._read(), str(key): entry}
        return self._write()

    def clear(self) -> bool:
        """Forgets everything; whether there was anything.

        Raises:
            OSError: The file can't be removed.
        """
        self._entries = {}
        if self.path is None or not self.path.exists():
            return False
        self.path.unlink()
        return True

    def _read(self) -> dict[str, Entry]:
        if self.path is None:
            return {}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                return {}
            return {str(key): _entry(value) for key, value in content["entries"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self) -> bool:
        if self.path is None:
            return False
        entries = {
            key: {"measured": e.measured, "findings": [f.to_json() for f in e.findings]}
            for key, e in self._entries.items()
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, {"format": FORMAT, "entries": entries})
        except OSError:
            return False
        return True


def _entry(value: Mapping[str, Any]) -> Entry:
    findings = tuple(_finding(each) for each in value["findings"])
    return Entry(findings=findings, measured=str(value["measured"]))


def _finding(value: Mapping[str, Any]) -> Finding:
    return Finding(
        name=str(value["name"]),
        # Whoever can write the file must not set any variable of the workers with it.
        variables={n: str(int(v)) for n, v in value["variables"].items() if n in TUNED},
        gain=float(value["gain"]),
        low=float(value["low"]),
        high=float(value["high"]),
        by_operation={str(n): float(v) for n, v in value["by_operation"].items()},
        is_taken=bool(value["is_taken"]),
    )


TUNED = ("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
"""The variables that are chosen by measurement."""
