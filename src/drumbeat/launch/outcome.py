"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass

from drumbeat.control.restart import Ended


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the run ended: the exit code, and what to show last.

    Attributes:
        code: The agent's exit code.
        heading: Who failed and how; "" if nobody did.
        body: The traceback or whatever else explains it.
        summary: One line about a success.
        history: How the attempts before the last one ended.
    """

    code: int
    heading: str = ""
    body: str = ""
    summary: str = ""
    history: tuple[Ended, ...] = ()
