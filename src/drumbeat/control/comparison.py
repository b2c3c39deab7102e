"""The runs of a script that are compared. Pure."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from drumbeat.control.differences import Run, StepDifference, sensitivities, step_difference


@dataclass(frozen=True)
class Comparison:
    """The runs that are compared.

    Attributes:
        one: On one worker.
        many: On several.
        again: On one worker once more, nudged after its first step; where there was
            reason to.
    """

    one: Run
    many: Run
    again: Run | None = None

    @functools.cached_property
    def steps(self) -> int:
        """How many steps both runs have."""
        return min(self.one.steps, self.many.steps)

    @functools.cached_property
    def differences(self) -> tuple[StepDifference, ...]:
        """Step by step; empty where each worker trained a model of its own, or another one."""
        steps = range(1, self.steps + 1)
        if not all(self.is_same_model(s) and self.many.is_together(s) for s in steps):
            return ()
        found = sensitivities(self.one, self.again, self.steps)
        return tuple(
            step_difference(self.one, self.many, s, sensitivity)
            for s, sensitivity in zip(steps, found, strict=True)
        )

    @property
    def n(self) -> int:
        """How many workers the larger run had."""
        return self.many.world_size

    def is_same_model(self, step: int) -> bool:
        """Whether a step updates variables of the same shapes by the same optimizer."""
        a, b = self.one.at(step), self.many.at(step)
        shapes = [[v.shape for v in record.variables] for record in (a, b)]
        return shapes[0] == shapes[1] and a.optimizer == b.optimizer


def some(names: Sequence[str], limit: int = 4) -> str:
    """The first of `names`, and how many more there are."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def workers(count: int) -> str:
    """How a number of workers is written: "one worker", "2 workers"."""
    return "one worker" if count == 1 else f"{count} workers"
