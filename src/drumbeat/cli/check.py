"""`drumbeat check`: does a script train the same model on several workers as on one?"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Optional

import typer

from drumbeat.cli import verdict
from drumbeat.cluster.recording import Recording, StepRecord
from drumbeat.control import hang
from drumbeat.control.differences import Run
from drumbeat.control.findings import compare
from drumbeat.errors import ConfigError
from drumbeat.launch import environment, files, parent, settings
from drumbeat.launch.agent import Outcome
from drumbeat.launch.settings import RunArguments
from drumbeat.launch.start import LIMIT_CODE, allowed_cpus, supervise

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_WORKERS = 2
MAX_STEPS = 1000
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


def check(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT",
            help="The script, or with -m the module; what follows it belongs to it.",
        ),
    ],
    workers: Annotated[
        int, typer.Option("-n", "--workers", metavar="N", help="Workers to compare with one.")
    ] = DEFAULT_WORKERS,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", help="Optimizer steps to compare.")
    ] = 5,
    module: Annotated[
        bool, typer.Option("-m", "--module", metavar="", help="SCRIPT is the name of a module.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="For each of the runs.")
    ] = DEFAULT_TIMEOUT_S,
    run_dir: Annotated[
        Optional[str],  # noqa: UP045  (typer evaluates it, on Python 3.10 too)
        typer.Option(
            "--run-dir", metavar="FOLDER", help="For logs (default runs/<script>-check-<time>/)."
        ),
    ] = None,
) -> None:
    """Compare a script's first steps on one worker and on N.

    Runs the script twice, ends it after a few optimizer steps, and says in plain
    words whether both train the same model, and if not, why. The exit code is 0
    when they do, within rounding, and 1 when not.
    """
    plan = _plan(tuple(command), module, workers, steps, timeout, run_dir)
    absent = {"-n", "--workers"} if workers == DEFAULT_WORKERS else set()
    if late := settings.note_on_late_options("check", command, absent):
        print(late, flush=True)
    raise typer.Exit(_check(plan))


def _plan(
    command: tuple[str, ...],
    is_module: bool,
    workers: int,
    steps: int,
    timeout_s: float,
    run_dir: str | None,
) -> Plan:
    arguments = RunArguments(command=command, is_module=is_module)
    settings.check_command(arguments)
    if not 2 <= workers <= settings.MAX_PROCESSES:
        raise ConfigError(
            f"-n is {workers}; expected 2 to {settings.MAX_PROCESSES}: the workers are compared "
            "with one."
        )
    if not 1 <= steps <= MAX_STEPS:
        raise ConfigError(f"--steps is {steps}; expected 1 to {MAX_STEPS}.")
    if not 0 < timeout_s < float("inf"):
        raise ConfigError(f"--timeout is {timeout_s}; expected a number of seconds above 0.")
    name = settings.run_name(arguments, datetime.now())
    stem, date, clock = name.rsplit("-", 2)
    return Plan(
        command=command,
        is_module=is_module,
        workers=workers,
        steps=steps,
        timeout_s=timeout_s,
        folder=files.make_folder(
            Path(run_dir) if run_dir else None, f"{stem}-check-{date}-{clock}"
        ),
        environ=_environ(os.environ, workers),
    )


def _environ(environ: Mapping[str, str], workers: int) -> dict[str, str]:
    """The environment of all runs: alone, a worker counts on as many threads as among others.

    The kernels of one thread and of several round differently.
    """
    share = environment.share_of(allowed_cpus(), (), 0, workers)
    threads = {name: str(share.threads) for name in environment.THREAD_VARIABLES}
    # The job is one of this machine, wherever it is that this runs.
    return {**threads, **{k: v for k, v in environ.items() if k != "TF_CONFIG"}}


def _check(plan: Plan) -> int:
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
