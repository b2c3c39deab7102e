"""Runs one agent from start to exit code: what `drumbeat run` does after reading its options."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from drumbeat.launch import environment, files
from drumbeat.launch.agent import Agent, Machine, Outcome
from drumbeat.launch.console import Console
from drumbeat.launch.settings import RunArguments, RunSettings, plan_run
from drumbeat.launch.signals import exit_quietly

STDOUT_FD = 1


def run_job(
    arguments: RunArguments,
    environ: Mapping[str, str],
    *,
    argv: list[str],
    preload: str,
) -> int:
    """Runs the job, or this node's part of it, and returns the exit code.

    0: every worker succeeded. 128 + signal: the agent was stopped by it.
    Otherwise the code of the worker that failed first, or of the error.

    Args:
        arguments: The command line.
        environ: The environment; workers inherit it.
        argv: The command line as typed, for the record.
        preload: Module that the parent imports; offers `install()`.

    Raises:
        ConfigError: The arguments or the environment can't be used.
    """
    cpus = allowed_cpus()
    now = datetime.now()
    settings = plan_run(arguments, environ, cpus=len(cpus), now=now)
    run_dir = files.make_run_dir(settings)
    machine = Machine(
        cpus=cpus,
        gpus=environment.find_gpus(environ),
        mpi=environment.mpi_is_installed(),
        environ=environ,
        folder=Path.cwd(),
    )
    job_file = files.job_file(run_dir, settings.node_rank)
    record = files.describe_run(
        settings, folder=machine.folder, argv=argv, started=now.astimezone().isoformat()
    )
    _write(job_file, record)
    console = Console(STDOUT_FD, environ)
    outcome = Outcome(code=1, heading="drumbeat itself failed.")
    try:
        outcome = asyncio.run(_run(settings, machine, run_dir, preload, console))
    finally:
        exit_quietly()
        ended = datetime.now().astimezone().isoformat()
        _write(job_file, {**record, "ended": ended, "exit_code": outcome.code})
        if outcome.heading:
            console.report(outcome.heading, outcome.body)
        if outcome.summary:
            console.note(outcome.summary)
        console.close()
    return outcome.code


def allowed_cpus() -> tuple[int, ...]:
    """The CPUs this process may use; their number alone where the system does not say which."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


async def _run(
    settings: RunSettings, machine: Machine, run_dir: Path, preload: str, console: Console
) -> Outcome:
    agent = Agent(settings, machine=machine, run_dir=run_dir, preload=preload, console=console)
    return await agent.run()


def _write(path: Path, record: dict[str, Any]) -> None:
    try:
        files.write_json(path, record)
    except OSError as error:
        print(f"Can't write {path}: {error.strerror or error}.", file=sys.stderr)
