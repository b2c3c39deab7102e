"""What was found about compiling steps: kept for the job, and for later jobs on the machine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from drumbeat.cluster.identity import Identity
from drumbeat.training.compiled import Parts

_FILE = "jit.json"


class Record:
    """Two files of choices by key: of the job, in its folder, and of the user, in the cache.

    The job's wins, so that all attempts of a job train alike. What can't be read is as if it
    were not there, and what can't be written is not kept.

    Args:
        of_job: Path, or None.
        of_user: Path, or None.
        attempt: Of the job, from 1; what the first finds in the job's file is another job's.
    """

    _chosen_here: ClassVar[dict[str, Parts]] = {}

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
        home = env.get("HOME", "")
        given = env.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
        of_user = Path(given) / "drumbeat" / _FILE if os.path.isabs(given) else None
        return cls(of_job, of_user, attempt)

    def in_job(self, key: str) -> Parts | None:
        """What an earlier attempt of the job, or an earlier `fit`, has chosen."""
        if key in self._chosen_here or self._attempt == 1:
            return self._chosen_here.get(key)
        return _read(self._of_job).get(key)

    def of_user(self, key: str) -> Parts | None:
        """What was measured on this machine."""
        return _read(self._of_user).get(key)

    def keep(self, key: str, parts: Parts) -> None:
        """Writes down what the job uses."""
        if self.in_job(key) != parts:
            _add(self._of_job, key, parts)
        self._chosen_here[key] = parts

    def keep_for_user(self, key: str, parts: Parts) -> None:
        """Writes down what was measured."""
        _add(self._of_user, key, parts)


def _read(path: Path | None) -> dict[str, Parts]:
    found: dict[str, Parts] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        if path is not None:
            for key, own in json.loads(path.read_text(encoding="utf-8")).items():
                found[key] = Parts(gradients=bool(own["gradients"]), update=bool(own["update"]))
    return found


def _add(path: Path | None, key: str, parts: Parts) -> None:
    if path is None:
        return
    chosen = {**_read(path), key: parts}
    text = {k: {"gradients": p.gradients, "update": p.update} for k, p in chosen.items()}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        new.write_text(json.dumps(text, indent=1), encoding="utf-8")
        os.replace(new, path)
