"""What a check says."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

_NARROWEST = 30
OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the report.

    Attributes:
        check: Its name, the same every time.
        state: `OK`; `WARNING` for what may well be meant, or costs only time; `ERROR` for what
            a job fails of, or trains something else by.
        text: What was found; of the others than `OK` also what was expected and what to do.
    """

    check: str
    state: str
    text: str


def ok(check: str, text: str) -> Result:
    """Nothing to do."""
    return Result(check=check, state=OK, text=text)


def warning(check: str, text: str) -> Result:
    """Something to look at."""
    return Result(check=check, state=WARNING, text=text)


def error(check: str, text: str) -> Result:
    """Something to mend."""
    return Result(check=check, state=ERROR, text=text)


def row(result: Result, width: int, columns: int | None) -> str:
    """A line of the report; what does not fit stands under its own column.

    Args:
        result: What a check says.
        width: Of the names of all checks.
        columns: Of the terminal; None without one, whose lines are as long as they are.
    """
    head = f"{result.state:8} {result.check:{width}}  "
    lines = result.text.split("\n")
    if columns is not None and columns - len(head) >= _NARROWEST:
        lines = [
            part
            for line in lines
            for part in textwrap.wrap(
                line, columns - len(head), break_long_words=False, break_on_hyphens=False
            )
            or [""]
        ]
    return head + ("\n" + " " * len(head)).join(lines)


def summary(results: Sequence[Result]) -> str:
    """The last line of the report."""
    errors = sum(each.state == ERROR for each in results)
    warnings = sum(each.state == WARNING for each in results)
    if not errors and not warnings:
        return f"All {len(results)} checks are ok."
    counts = [(errors, "error"), (warnings, "warning")]
    said = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count]
    return f"{' and '.join(said)} in {len(results)} checks."
