"""The runs of `drumbeat check`, and their comparison."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from drumbeat.cli import verdict
from drumbeat.cluster.recording import Recording, StepRecord
from drumbeat.control import hang
from drumbeat.control.differences import Run
from drumbeat.control.findings import compare
from drumbeat.launch import parent
from drumbeat.launch.outcome import Outcome
from drumbeat.launch.settings import RunArguments
from drumbeat.launch.start import LIMIT_CODE, supervise

# How long to wait for what may never come, see `_Enough`.
FOLLOW_S = 10.0
_SEED = 0  # The runs have to draw alike; which numbers does not matter.
# Kinds of findings that may be the script's own chance; a second run on one worker shows it.
_MAY_BE_CHANCE = {"initial_weights", "rows", "gradient", "random"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be checked.

    Attributes:
        command: The script or module, then its own arguments.
        is_module: The command is a module's name.
        workers: How many workers are compared with one, at least 2.
        steps: How many optimizer steps.
        timeout_s: Deadline of each run.
        folder: Where the runs have their folders; exists.
        environ: The environment of the runs.
    """

    command: tuple[str, ...]
    is_module: bool
    workers: int
    steps: int
    timeout_s: float
    folder: Path
    environ: Mapping[str, str]


def run_check(plan: Plan) -> int:
    """Runs the script as often as it takes, says what was found, and returns the exit code.

    Raises:
        typer.Exit: The user has interrupted it.
    """
    one = _run(plan, 1, "one-worker")
    screen = verdict.Screen(" ".join(plan.command[:1]), plan.steps)
    if one.ending == "failed" or one.steps == 0:
        return screen.show(compare(one, one), one, one, plan.folder)
    many = _run(plan, plan.workers, f"{plan.workers}-workers")
    findings = compare(one, many)
    if any(finding.kind in _MAY_BE_CHANCE for finding in findings):
        again = _run(plan, 1, "one-worker-again", nudge=True)
        findings = compare(one, many, again)
    return screen.show(findings, one, many, plan.folder)


def _run(plan: Plan, workers: int, name: str, *, nudge: bool = False) -> Run:
    """Runs the script and reads what the workers recorded.

    Raises:
        typer.Exit: The user has interrupted it.
    """
    folder = plan.folder / name
    # A nudge after step 1 shows from step 2 on; so alone there has to be one step more.
    steps = plan.steps + 1 if workers == 1 else plan.steps
    recording = Recording(folder=folder / "steps", steps=steps, nudge=nudge)
    shutil.rmtree(recording.folder, ignore_errors=True)
    recording.folder.mkdir(parents=True)
    again = " again" if nudge else ""
    print(f"Running {plan.command[0]} on {_workers(workers)}{again}…", flush=True)
    with (folder / "screen.log").open("wb") as log:
        outcome = supervise(
            RunArguments(
                command=plan.command,
                is_module=plan.is_module,
                workers=workers,
                nodes=1,
                run_dir=str(folder),
                seed=_SEED,
                collective_timeout_s=plan.timeout_s,
                max_restarts=0,  # a failure is what is looked for
                snapshot_every=0,
                jit="off",  # what records a step is called from within it
            ),
            {**plan.environ, **recording.to_env()},
            argv=sys.argv,
            preload=parent.DEFAULT_PRELOAD,
            output_fd=log.fileno(),
            enough=_Enough(recording, plan.steps, workers),
            limit_s=plan.timeout_s,
        )
    if outcome.code > 128 and not outcome.heading:
        raise typer.Exit(outcome.code)
    records = tuple(_read(recording, rank) for rank in range(workers))
    ended = tuple(recording.end_path(rank).exists() for rank in range(workers))
    shutil.rmtree(recording.folder, ignore_errors=True)
    return Run(
        workers=records,
        ended=ended,
        ending=_ending(outcome, records, plan.steps),
        text=_text(outcome),
    )


class _Enough:
    """Says when a run has shown what there is to see.

    That is when all steps are recorded. Where only the last ones don't come, that are asked
    for but not needed, or the script has ended on some workers and others wait for them in a
    collective, it is some time later.
    """

    def __init__(self, recording: Recording, needed: int, workers: int) -> None:
        self._recording = recording
        self._needed = needed
        self._workers = workers
        self._nearly_s = math.inf

    def __call__(self) -> bool:
        if self._recording.have_made(self._recording.steps, self._workers):
            return True
        ended = any(self._recording.end_path(rank).exists() for rank in range(self._workers))
        if ended or self._recording.have_made(self._needed, self._workers):
            self._nearly_s = min(self._nearly_s, time.monotonic())
        return time.monotonic() - self._nearly_s > FOLLOW_S


def _read(recording: Recording, rank: int) -> tuple[StepRecord, ...]:
    found = []
    for step in range(1, recording.steps + 1):
        path = recording.path(rank, step)
        if not path.exists():
            break
        found.append(StepRecord.from_bytes(path.read_bytes()))
    return tuple(found)


def _ending(outcome: Outcome, records: tuple[tuple[StepRecord, ...], ...], steps: int) -> str:
    if all(len(made) >= steps for made in records):
        return "steps"
    if outcome.code == LIMIT_CODE and not outcome.body:
        return "limit"
    if hang.HAS_ENDED in outcome.heading:
        return "script"  # on some workers, for which the others waited
    return "failed" if outcome.code else "script"


def _text(outcome: Outcome) -> str:
    return "\n".join(part for part in (outcome.heading, outcome.body) if part)


def _workers(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers"
