"""Which job was submitted last from a folder, for `drumbeat status` and its like."""

from __future__ import annotations

import json
from pathlib import Path

from drumbeat.errors import ConfigError

FILE = Path(".drumbeat") / "submitted.json"


def remember(folder: Path, platform: str, job_id: str) -> None:
    """Notes the job; a folder that can't be written is none of the user's worries."""
    known = _read(folder) | {platform: job_id}
    try:
        (folder / FILE).parent.mkdir(exist_ok=True)
        (folder / FILE).write_text(json.dumps(known, indent=1) + "\n")
    except OSError:
        return


def last(folder: Path, platform: str) -> str:
    """The id of the job that was submitted last.

    Raises:
        ConfigError: There is none.
    """
    known = _read(folder)
    if platform not in known:
        raise ConfigError(
            f"No job was submitted to {platform} from {folder}; expected its id after the "
            "platform's name."
        )
    return known[platform]


def _read(folder: Path) -> dict[str, str]:
    try:
        known = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {str(key): value for key, value in known.items() if isinstance(value, str)}
