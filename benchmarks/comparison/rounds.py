"""Runs cases in turns, and again where something else disturbed them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .launchers import Case, run
from .machine import QUIET_CORES, WINDOW_S, wait_for_quiet

TRIES = 3


class Rounds:
    """Runs cases, each a few times where it has to be.

    Args:
        patience_s: For waiting until others are quiet, and for repeating, in all.
        run: Runs a case once.
        wait: Returns once others are quiet, or at a deadline.
    """

    def __init__(
        self,
        patience_s: float,
        run: Callable[[Case], dict[str, Any]] = run,
        wait: Callable[[float], None] = wait_for_quiet,
    ) -> None:
        self._patience_s = patience_s
        self._run = run
        self._wait = wait
        self._failed: dict[tuple[str, str], dict[str, Any]] = {}

    def turns(self, number: int, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
        """Each case once, every other round in reverse.

        A run that was disturbed or failed is repeated, `TRIES` times at most and as long
        as there is patience; all but the least disturbed one are dropped. A case that
        failed in an earlier round isn't tried again.
        """
        for case in list(cases)[:: -1 if number % 2 else 1]:
            key = (case.group, case.name)
            if key in self._failed:
                continue
            best = self._best(number, case)
            if "failed" in best:
                self._failed[key] = best
            yield best

    def _best(self, number: int, case: Case) -> dict[str, Any]:
        tries: list[dict[str, Any]] = []
        while not tries or self._again(tries):
            began_s = time.monotonic()
            self._wait(began_s + self._patience_s)
            self._patience_s -= max(0.0, time.monotonic() - began_s - WINDOW_S)
            tries.append({"round": number, **self._run(case)})
            if len(tries) > 1:
                self._patience_s -= tries[-1]["took_s"]
            print(line(tries[-1]), file=sys.stderr, flush=True)
        return min(tries, key=_disturbance) | {"tries": len(tries)}

    def _again(self, tries: Sequence[Mapping[str, Any]]) -> bool:
        last = tries[-1]
        good = "failed" not in last and last["others_cores"] <= QUIET_CORES
        limit = 2 if "failed" in last else TRIES
        return not good and len(tries) < limit and self._patience_s > 0


def _disturbance(one: Mapping[str, Any]) -> tuple[bool, float]:
    return "failed" in one, one["others_cores"]


def line(one: Mapping[str, Any]) -> str:
    """What is said of a run once it has ended."""
    where = f"round {one['round'] + 1}, {one['group']}, {one['peer']}"
    if "failed" in one:
        said = f"failed: {one['failed']['error']} (exit codes {one['failed']['exit_codes']})"
    else:
        step_ms = 1e3 * min(one["epoch_s"]) / one["steps"]
        said = f"{step_ms:.1f} ms a step at best, loss {one['first_loss']:.5f}"
        said += f", {one['losses'][1]:.5f}" if len(one["losses"]) > 1 else ""
    return f"{where}: {said}; {one['took_s']:.0f} s, others {one['others_cores']:.2f} cores"
