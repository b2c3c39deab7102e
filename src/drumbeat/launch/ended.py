"""Beside a job's backups: that the job has ended well, and what it ran.

Started again, a finished job trains nothing: its trainings are passed over. That is what one wants
of the same script, and of one whose end was mended after a failure. Of another script or other
arguments after a success it would be a model that silently isn't theirs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.state.folders import Folder

if TYPE_CHECKING:
    from drumbeat.launch.settings import RunSettings

FILE = "drumbeat-ended.json"


def note(folder: Folder, settings: RunSettings) -> None:
    """Notes it; a folder that can't be written any more is no reason to fail after a success."""
    with contextlib.suppress(OSError):
        folder.write(FILE, json.dumps(_what(settings), indent=1).encode())


def check(folder: Folder, settings: RunSettings) -> None:
    """Refuses another job where one has ended well.

    Raises:
        ConfigError: The script or its arguments are not those of the job that has ended.
    """
    try:
        known = json.loads(folder.read(FILE))
    except (OSError, ValueError, RecursionError):
        return
    what = _what(settings)
    if not isinstance(known, dict) or known == what:
        return
    if known.get("command") != what["command"]:
        change = f"{shown(known.get('command'))} then, {shown(what['command'])} now"
    else:
        change = f"{settings.command} has been edited since"
    raise ConfigError(
        f"The job that left its backups in {folder.name} has ended well, and this is another one: "
        f"{change}. It would train nothing, since finished trainings are passed over. To train "
        f"anew, give another folder or empty this one; to pass them over all the same, remove "
        f"{FILE} there."
    )


def _what(settings: RunSettings) -> dict[str, object]:
    with_module = ["-m"] if settings.is_module else []
    digest = ""
    if not settings.is_module:
        with contextlib.suppress(OSError):
            digest = hashlib.sha256(Path(settings.command).read_bytes()).hexdigest()
    return {"command": [*with_module, settings.command, *settings.args], "sha256": digest}
