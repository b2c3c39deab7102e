"""What was found about compiling steps: kept for the job, and for later jobs on the machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, ClassVar

from drumbeat.cluster.identity import Identity
from drumbeat.state import small_files

_FILE = "jit.json"


@dataclass(frozen=True)
class Times:
    """How long a step takes without what workers do together, by the slowest worker.

    Attributes:
        first_s: The first one as it is, in which it is traced.
        plain_s: A later one.
        first_compiled_s: The first one that is compiled; 0 where that wasn't tried, infinity
            where it can't be.
        compiled_s: A later one.
    """

    first_s: float
    plain_s: float
    first_compiled_s: float = 0
    compiled_s: float = 0


class Record:
    """Two files by key: of the job in its folder, and of the user in the cache.

    The job's holds what it uses, so that all its attempts train alike, the user's holds
    times. What can't be read is as if it were not there, and what can't be written is not
    kept.

    Args:
        of_job: Path, or None.
        of_user: Path, or None.
        attempt: Of the job, from 1; what the first finds in the job's file is another job's.
    """

    _chosen_here: ClassVar[dict[str, bool]] = {}

    def __init__(self, of_job: Path | None, of_user: Path | None, attempt: int = 1) -> None:
        self._of_job = of_job
        self._of_user = of_user
        self._attempt = attempt

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Record:
        """In the run's folder, and in XDG_CACHE_HOME or ~/.cache."""
        identity = Identity.from_env(env)
        of_job = Path(identity.run_dir) / _FILE if identity and identity.run_dir else None
        attempt = 1 if identity is None else identity.attempt
        return cls(of_job, small_files.of_user(_FILE, env), attempt)

    @classmethod
    def chosen(cls) -> dict[str, bool]:
        """All that this job has chosen so far, for its snapshots."""
        return dict(cls._chosen_here)

    @classmethod
    def adopt(cls, chosen: Mapping[str, bool]) -> None:
        """The job goes on from a snapshot with these choices, maybe on another machine."""
        cls._chosen_here.update(chosen)

    def in_job(self, key: str) -> bool | None:
        """What an earlier attempt of the job, or an earlier `fit`, has chosen."""
        if key in self._chosen_here or self._attempt == 1:
            return self._chosen_here.get(key)
        chosen = _read(self._of_job).get(key)
        return chosen if isinstance(chosen, bool) else None

    def keep(self, key: str, chosen: bool) -> None:
        """Writes down what the job uses."""
        if self.in_job(key) != chosen:
            _add(self._of_job, key, chosen)
        self._chosen_here[key] = chosen

    def of_user(self, key: str) -> Times | None:
        """What was measured on this machine."""
        try:
            return Times(*map(float, _read(self._of_user)[key]))
        except (KeyError, TypeError, ValueError):
            return None

    def keep_for_user(self, key: str, times: Times) -> None:
        """Writes down what was measured."""
        _add(self._of_user, key, astuple(times))


def _read(path: Path | None) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        if path is not None:
            found = json.loads(path.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
    return {}


def _add(path: Path | None, key: str, value: Any) -> None:
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        small_files.write_json(path, {**_read(path), key: value})
