"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass

from drumbeat.cluster.rehearsing import Rehearsing
from drumbeat.control.restart import Ended
from drumbeat.errors import PREEMPTED_CODE

_PREEMPTED = (
    "The workers have saved their state and stopped. The same command goes on from there "
    f"(exit code {PREEMPTED_CODE})."
)


def preempted(rehearsing: Rehearsing | None) -> str:
    """What to say where the workers have stopped as they were asked to."""
    return "The workers have stopped." if rehearsing else _PREEMPTED


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
        apart: A worker of this node trained a model that the others know nothing of; known in a
            rehearsal only.
    """

    code: int
    heading: str = ""
    body: str = ""
    summary: str = ""
    history: tuple[Ended, ...] = ()
    workers: int = 0
    steps: int = 0
    apart: bool = False
