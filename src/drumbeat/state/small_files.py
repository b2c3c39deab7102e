"""Small files that are replaced in one step, and where a user's are kept from run to run."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def of_user(name: str, environ: Mapping[str, str]) -> Path | None:
    """Where drumbeat keeps a file for later runs: in XDG_CACHE_HOME, or ~/.cache; None without."""
    home = environ.get("HOME", "")
    given = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    return Path(given) / "drumbeat" / name if os.path.isabs(given) else None


def check_writable(folder: Path) -> None:
    """Writes a file there, and removes it.

    Raises:
        OSError: That is not possible.
    """
    probe = _beside(folder / "probe")
    probe.write_bytes(b" ")
    probe.unlink()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces `path` in one step; several processes may do so at a time.

    Raises:
        OSError: The disk is full or the folder is gone.
    """
    new = _beside(path)
    try:
        new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def _beside(path: Path) -> Path:
    """This process's own place for what is to become `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.new")
