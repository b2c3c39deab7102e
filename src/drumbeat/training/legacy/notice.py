"""Tells the user, once for each, that a name of the script is an old one."""

from __future__ import annotations

import logging
import sys

from drumbeat.legacy_names import Old

logger = logging.getLogger("drumbeat")

_LIBRARIES = ("keras", "tensorflow", "tf_keras", "drumbeat", "importlib", "functools")
_told: set[str] = set()
_HINT = " (drumbeat run --strict-names leaves such names as they are.)"


def tell(old: Old) -> None:
    """Shows the notice, with the line of the script, the first time."""
    if old.name in _told:
        return
    hint = "" if _told else _HINT
    _told.add(old.name)
    logger.warning("%s%s%s", old.notice, _place(), hint)


def _place() -> str:
    """The innermost line that is the user's own."""
    frame = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in _LIBRARIES and not frame.f_code.co_filename.startswith(
            "<"
        ):
            return f" {frame.f_code.co_filename}, line {frame.f_lineno}."
        frame = frame.f_back
    return ""
