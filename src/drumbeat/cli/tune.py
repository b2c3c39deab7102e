"""`drumbeat tune`: shows what was measured to be fastest here, measures it anew, forgets it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from drumbeat.errors import ConfigError
from drumbeat.launch import environment
from drumbeat.launch.checks import MAX_PROCESSES
from drumbeat.launch.environment import Share
from drumbeat.launch.machine import Machine, cpu_limit
from drumbeat.launch.measuring import MeasuringError
from drumbeat.launch.start import allowed_cpus
from drumbeat.launch.tuner import find, key_of
from drumbeat.launch.tuning import TUNED, Cache, Entry, Key


def tune(
    workers: Annotated[
        int,
        typer.Option(
            "-n", "--workers", metavar="N", help="Workers that share this machine (default 1)."
        ),
    ] = 1,
    redo: Annotated[bool, typer.Option("--redo", metavar="", help="Measure anew.")] = False,
    clear: Annotated[
        bool, typer.Option("--clear", metavar="", help="Forget all that was measured.")
    ] = False,
) -> None:
    """Show which settings of TensorFlow are fastest on this machine.

    The first run on a machine measures them. A setting is changed only where that is clearly
    faster; a variable that you set yourself always wins, and --exact uses none of this.
    """
    if not 1 <= workers <= MAX_PROCESSES:
        raise ConfigError(f"-n is {workers}; expected 1 to {MAX_PROCESSES} workers.")
    here = _machine()
    assert here.cache is not None  # noqa: S101
    if clear:
        _clear(here.cache)
        if not redo:
            return
    share = here.share(0, workers)
    key = key_of(here, share)
    if redo:
        _measure(here, share, key)
    _show(here, share, key)


def _machine() -> Machine:
    environ = dict(os.environ)
    return Machine(
        cpus=allowed_cpus(),
        gpus=environment.find_gpus(environ),
        mpi=True,
        environ=environ,
        folder=Path.cwd(),
        cpu_limit=cpu_limit(),
        cache=Cache.of_user(environ),
    )


def _clear(cache: Cache) -> None:
    try:
        text = "Forgotten" if cache.clear() else "Nothing was known"
    except OSError as error:
        raise ConfigError(
            f"{cache.path} can't be removed: {error.strerror or error}. Remove it by hand."
        ) from None
    print(f"{text} ({cache.path}).")


def _measure(here: Machine, share: Share, key: Key) -> None:
    """Measures and keeps it.

    Raises:
        MeasuringError: TensorFlow can't be run, or takes too long.
        ConfigError: The user has decided what would be measured.
    """
    decided = [name for name in TUNED if name in here.environ]
    if decided:
        raise ConfigError(
            f"{', '.join(decided)} is set in the environment, and what you set always wins: there "
            "is nothing to measure. Unset it to have drumbeat choose."
        )
    print("Measuring; other programs that use the processor meanwhile disturb it.", flush=True)

    async def measured() -> Entry:
        begin = asyncio.get_running_loop().create_future()
        begin.set_result(None)
        return await find(here, share, begin)

    try:
        entry = asyncio.run(measured())
    except (MeasuringError, OSError) as error:
        raise MeasuringError(f"Nothing was measured: {error}.") from None
    assert here.cache is not None  # noqa: S101
    if not here.cache.put(key, entry):
        print(f"It can't be kept: {here.cache.path or 'there is no HOME'} can't be written.")


def _show(here: Machine, share: Share, key: Key) -> None:
    cache = here.cache
    assert cache is not None  # noqa: S101
    mine = cache.get(key)
    print(f"{key}")
    _show_entry(mine, "nothing is measured yet (the next run does it, or --redo)")
    usual = environment.usual_variables(share)
    chosen = {} if mine is None else mine.variables
    for name, value in usual.items():
        if name in here.environ:
            print(f"  {name}={here.environ[name]} (set in the environment, so it stays)")
        else:
            print(f"  {name}={chosen.get(name, value)}")
    for text, entry in cache.entries.items():
        if text != str(key):
            print(text)
            _show_entry(entry, "")
    print(f"Kept in {cache.path}" if cache.path else "Not kept: neither HOME nor XDG_CACHE_HOME.")


def _show_entry(entry: Entry | None, without: str) -> None:
    if entry is None:
        print(f"  {without}")
        return
    for finding in entry.findings:
        print(f"  {finding}")
    print(f"  measured {entry.measured}")
