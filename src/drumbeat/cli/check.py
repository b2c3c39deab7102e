"""`drumbeat check`: does a script train the same model on several workers as on one?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from drumbeat.errors import ConfigError
from drumbeat.launch import checks, environment, files, settings
from drumbeat.launch.settings import RunArguments
from drumbeat.launch.start import allowed_cpus

if TYPE_CHECKING:
    from drumbeat.cli.comparing import Plan

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_WORKERS = 2
MAX_STEPS = 1000


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
    from drumbeat.cli.comparing import run_check  # `drumbeat run` starts sooner without it

    plan = _plan(tuple(command), module, workers, steps, timeout, run_dir)
    absent = {"-n", "--workers"} if workers == DEFAULT_WORKERS else set()
    if late := checks.note_on_late_options("check", command, absent):
        print(late, flush=True)
    raise typer.Exit(run_check(plan))


def _plan(
    command: tuple[str, ...],
    is_module: bool,
    workers: int,
    steps: int,
    timeout_s: float,
    run_dir: str | None,
) -> Plan:
    from drumbeat.cli.comparing import Plan

    arguments = RunArguments(command=command, is_module=is_module)
    checks.check_command(arguments)
    if not 2 <= workers <= checks.MAX_PROCESSES:
        raise ConfigError(
            f"-n is {workers}; expected 2 to {checks.MAX_PROCESSES}: the workers are compared "
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
