"""How `drumbeat check` shows what it found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from drumbeat.control.comparison import Comparison, workers
from drumbeat.control.differences import Run, StepDifference
from drumbeat.control.finding import Finding


class Screen:
    """Writes the verdict to standard output.

    Args:
        script: What was checked.
        steps: How many steps were asked for.
    """

    def __init__(self, script: str, steps: int) -> None:
        self._script = script
        self._steps = steps
        self._console = Console(highlight=False)

    def show(self, findings: Sequence[Finding], one: Run, many: Run, folder: Path) -> int:
        """Writes the verdict, the findings and the table; returns the exit code."""
        comparison = Comparison(one, many)
        wrong = [finding for finding in findings if not finding.harmless]
        self._console.print()
        self._verdict(wrong, comparison)
        for number, finding in enumerate((*wrong, *(f for f in findings if f.harmless)), 1):
            self._finding(number, finding)
        self._console.print()
        if comparison.differences and one is not many:
            self._console.print(_table(comparison))
        self._console.print(f"The runs' output and logs are in {folder}", soft_wrap=True)
        return 1 if wrong else 0

    def _verdict(self, wrong: Sequence[Finding], comparison: Comparison) -> None:
        many = workers(comparison.n)
        if wrong:
            things = "1 thing" if len(wrong) == 1 else f"{len(wrong)} things"
            text = f"{self._script} is not the same on {many} as on one: {things} to look at."
            if comparison.one.ending != "failed" and comparison.many.ending == "failed":
                text = f"{self._script} runs on one worker, but not on {comparison.n}."
            elif all(finding.kind in ("failed", "limit", "no_steps") for finding in wrong):
                text = f"{self._script} could not be compared to the end: {things} to look at."
            self._console.print(Text(text, "bold red"))
            return
        steps = comparison.steps
        text = (
            f"{self._script} trains the same model on {many} as on one: after "
            f"{steps} step{'' if steps == 1 else 's'} the weights differ by "
            f"{_number(_last(comparison))} of their size, which is rounding."
        )
        self._console.print(Text(text, "bold green"))

    def _finding(self, number: int, finding: Finding) -> None:
        mark = "note: " if finding.harmless else ""
        self._console.print()
        self._console.print(Text(f"{number}. {mark}{finding.what}", "bold"))
        # What another program wrote, such as a traceback, stays as it is.
        self._console.print(Text(finding.why), soft_wrap="\n" in finding.why)
        self._console.print(Text(f"→ {finding.do}"))


def _last(comparison: Comparison) -> float:
    return comparison.differences[-1].weights if comparison.differences else 0.0


def _table(comparison: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    n = comparison.n
    pair = (f"on {n}", "apart")
    for name in ("step", "loss on 1", *pair, "gradient on 1", *pair, "weights\napart"):
        table.add_column(name, justify="right", no_wrap=True)
    for difference in comparison.differences:
        table.add_row(*_cells(difference))
    return table


def _cells(difference: StepDifference) -> list[str]:
    return [
        str(difference.step),
        *("?" if loss is None else f"{loss:.4g}" for loss in difference.losses),
        "?" if difference.loss is None else _number(difference.loss),
        *(f"{norm:.4g}" for norm in difference.gradient_norms),
        _number(difference.gradient),
        _number(difference.weights),
    ]


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"
