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
        workers: How many trained together, on all nodes; 0 where none did.
        steps: That workers of this node have finished; 0 where they are not counted.
    """

    code: int
    heading: str = ""
    body: str = ""
    summary: str = ""
    history: tuple[Ended, ...] = ()
    workers: int = 0
    steps: int = 0
