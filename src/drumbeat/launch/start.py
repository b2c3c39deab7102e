"""Runs one agent from start to exit code: what `drumbeat run` does after reading its options."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumbeat.launch import ended, environment, files, generation
from drumbeat.launch.backends import environ_of
from drumbeat.launch.console import Console
from drumbeat.launch.forker import Forker
from drumbeat.launch.machine import Machine, cpu_limit
from drumbeat.launch.outcome import Outcome
from drumbeat.launch.parent import DEFAULT_PRELOAD
from drumbeat.launch.place import environ_here
from drumbeat.launch.settings import RunArguments, RunSettings, plan_run
from drumbeat.launch.signals import exit_quietly
from drumbeat.launch.tuner import Tuner
from drumbeat.launch.tuning import Cache
from drumbeat.state.folders import open_folder
from drumbeat.state.small_files import write_json

if TYPE_CHECKING:
    from drumbeat.launch.agent import Agent

STDOUT_FD = 1
LIMIT_CODE = 124  # As timeout(1) has it.
_POLL_S = 0.05


def run_job(
    arguments: RunArguments,
    environ: Mapping[str, str],
    *,
    argv: list[str],
    preload: str,
) -> int:
    """Runs the job, or this node's part of it, on the screen and returns the exit code.

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
    environ = environ_here(environ)
    cache = Cache.of_user(environ)
    return supervise(arguments, environ, argv=argv, preload=preload, cache=cache).code


def supervise(
    arguments: RunArguments,
    environ: Mapping[str, str],
    *,
    argv: list[str],
    preload: str,
    output_fd: int = STDOUT_FD,
    enough: Callable[[], bool] | None = None,
    limit_s: float | None = None,
    cache: Cache | None = None,
) -> Outcome:
    """As `run_job`, for callers that want to know how the job ended and when to end it.

    Args:
        arguments: See `run_job`.
        environ: See `run_job`.
        argv: See `run_job`.
        preload: See `run_job`.
        output_fd: Where the job's output goes.
        enough: Asked often; the job is ended, with code 0, once it says True.
        limit_s: The job is ended, with code `LIMIT_CODE`, when it has taken that long.
        cache: What was measured on this machine; None to use the usual settings, and to
            measure nothing.

    Raises:
        ConfigError: The arguments or the environment can't be used, or the folder for
            backups.
    """
    environ = generation.environ_with(arguments.keras, environ)
    cpus, limit = allowed_cpus(), cpu_limit()
    now = datetime.now()
    environ, backend_note = environ_of(arguments.backend, environ)
    usable = len(cpus) if limit is None else min(len(cpus), math.ceil(limit))
    settings = plan_run(arguments, environ, cpus=usable, now=now)
    if settings.backup_dir is not None and settings.node_rank == 0:
        settings = _with_seed_of_backup(settings, settings.backup_dir)
    if settings.is_idle:
        print(f"[drumbeat] {settings.lone_task} has nothing to do in multi-worker training.")
        return Outcome(code=0)
    run_dir = files.make_run_dir(settings)
    machine = Machine(
        cpus=cpus,
        gpus=environment.find_gpus(environ),
        mpi=environment.mpi_is_installed(),
        environ=environ,
        folder=Path.cwd(),
        cpu_limit=limit,
        cache=cache,
    )
    console = Console(output_fd, environ)
    note = console.note
    if backend_note:
        note(backend_note)
    if generation.asks_for_2(settings.command, is_module=settings.is_module, environ=environ):
        preload = generation.PRELOAD if preload == DEFAULT_PRELOAD else preload
    tuner = Tuner(settings, machine, machine.share(0, settings.process_count), run_dir, note)
    forker = Forker(settings, tuner, preload=preload, run_dir=run_dir, note=note)
    forker.begin()
    # While that process imports TensorFlow, this one imports what it needs itself.
    from drumbeat.launch.agent import Agent

    job_file = files.job_file(run_dir, settings.node_rank)
    record = files.describe_run(
        settings, folder=machine.folder, argv=argv, started=now.astimezone().isoformat()
    )
    _write(job_file, record)
    agent = functools.partial(
        Agent, settings, machine=machine, run_dir=run_dir, forker=forker, console=console
    )
    outcome = Outcome(code=1, heading="drumbeat itself failed.")
    try:
        outcome = asyncio.run(_run(agent, enough, limit_s))
    finally:
        exit_quietly()
        ended_at = datetime.now().astimezone().isoformat()
        if settings.rehearsing is not None:
            files.write_report(settings.rehearsing.report, settings, outcome)
        failures = [asdict(failure) for failure in outcome.history]
        record |= {"ended": ended_at, "exit_code": outcome.code, "failures": failures}
        _write(job_file, record)
        if outcome.heading:
            console.report(outcome.heading, outcome.body)
        if outcome.summary:
            console.note(outcome.summary)
        console.close()
    if outcome.code == 0 and settings.backup_dir is not None and settings.node_rank == 0:
        ended.note(open_folder(settings.backup_dir), settings)
    return outcome


def _with_seed_of_backup(settings: RunSettings, backup_dir: str) -> RunSettings:
    """A job that goes on from a backup is seeded as before: its data comes in the same order.

    And it computes with the same kernels, whatever is fastest here.

    Raises:
        ConfigError: The folder can't be used, or is that of another job that has ended.
        StateError: It can't be read.
    """
    from drumbeat.state.backups import Backups

    folder = open_folder(backup_dir)
    folder.check()
    about = Backups(folder).newest_about()
    if about is not None:
        ended.check(folder, settings)
    if about is not None and about.onednn in ("0", "1") and settings.exact is None:
        settings = dataclasses.replace(settings, onednn=about.onednn)
    if about is None or about.seed is None or about.seed == settings.seed:
        return settings
    if settings.seed is not None:
        note = (
            f"--seed is {settings.seed}, that of the backups in {folder.name} is {about.seed}: "
            "what is shuffled or drawn without a seed of the script's own may differ from before."
        )
        return dataclasses.replace(settings, notes=(*settings.notes, note))
    # Its last 8 digits are what workers are seeded with.
    return dataclasses.replace(settings, job_id=secrets.token_hex(4) + f"{about.seed:08x}")


def allowed_cpus() -> tuple[int, ...]:
    """The CPUs this process may use; their number alone where the system does not say which."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


async def _run(
    make_agent: Callable[[], Agent], enough: Callable[[], bool] | None, limit_s: float | None
) -> Outcome:
    agent = make_agent()
    guard = asyncio.ensure_future(_guard(agent, enough, limit_s))
    try:
        return await agent.run()
    finally:
        guard.cancel()


async def _guard(agent: Agent, enough: Callable[[], bool] | None, limit_s: float | None) -> None:
    """Ends the agent's job when it is time to."""
    if enough is None and limit_s is None:
        return
    clock = asyncio.get_running_loop().time
    began_s = clock()
    while limit_s is None or clock() - began_s < limit_s:
        if enough is not None and enough():
            agent.stop(Outcome(code=0))
            return
        await asyncio.sleep(_POLL_S)
    heading = f"The job was ended after {limit_s:g} s."
    agent.stop(Outcome(code=LIMIT_CODE, heading=heading))


def _write(path: Path, record: dict[str, Any]) -> None:
    try:
        write_json(path, record)
    except OSError as error:
        print(f"Can't write {path}: {error.strerror or error}.", file=sys.stderr)
