"""Tells the user, once for each, that a name of the script is an old one."""

from __future__ import annotations

import logging
import sys
import types

from drumbeat.legacy_names import Old

logger = logging.getLogger("drumbeat")

_LIBRARIES = ("keras", "tensorflow", "tf_keras", "drumbeat", "importlib", "functools")
_HINT = " (drumbeat run --strict-names leaves such names as they are.)"

_told: set[str] = set()
_mute: list[bool] = []


def mute() -> None:
    """Tells nothing in this process: another one does, which runs the same script."""
    _mute.append(True)


def tell(old: Old) -> None:
    """Shows the notice, with the line of the script, the first time."""
    if _mute or old.name in _told:
        return
    hint = "" if _told else _HINT
    _told.add(old.name)
    logger.warning("%s%s%s", old.notice, _place(), hint)


def users_only(name: str) -> None:
    """To be called by an attribute of old that libraries look for, and find something else.

    Raises:
        AttributeError: It was not the user's code that asked.
    """
    if not _is_users(sys._getframe(2)):
        raise AttributeError(name)


def _place() -> str:
    """The innermost line that is the user's own."""
    frame = sys._getframe(2)
    while frame is not None:
        if _is_users(frame):
            return f" {frame.f_code.co_filename}, line {frame.f_lineno}."
        frame = frame.f_back
    return ""


def _is_users(frame: types.FrameType) -> bool:
    library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return library not in _LIBRARIES and not frame.f_code.co_filename.startswith("<")
