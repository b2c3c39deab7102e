"""The folder of a run: made once, and described in `job.json`."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from drumbeat.cluster.rehearsing import Report
from drumbeat.errors import ConfigError
from drumbeat.launch.outcome import Outcome
from drumbeat.launch.settings import RunSettings
from drumbeat.state.small_files import check_writable, write_json
from drumbeat.state.step_times import WORKER_FILES, read_file

DEFAULT_PARENT = Path("runs")
_MAX_SAME_SECOND = 1000


def make_run_dir(settings: RunSettings) -> Path:
    """Makes the run's folder and returns its absolute path.

    Where none is given and nothing can be written here, as in the folder of an image whose user is
    another one, it is a temporary folder.

    Raises:
        ConfigError: It can't be made or written.
    """
    parent = DEFAULT_PARENT if DEFAULT_PARENT.exists() else Path.cwd()
    if settings.run_dir is None and not os.access(parent, os.W_OK):
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=f"{settings.run_name}-")).resolve()
    return make_folder(settings.run_dir, settings.run_name)


def make_folder(given: Path | None, name: str, option: str = "--run-dir") -> Path:
    """Makes the folder `given`, or else `runs/<name>`, and returns its absolute path.

    A folder that is given may exist; the default one never does, so that
    two runs that start in the same second do not share it.

    Args:
        given: As `option` names it.
        name: Of the default folder.
        option: Which names another one, for the message.

    Raises:
        ConfigError: It can't be made or written.
    """
    wanted = given or DEFAULT_PARENT / name
    try:
        if given is not None:
            wanted.mkdir(parents=True, exist_ok=True)
            made = wanted
        else:
            made = _make_unique(wanted)
        check_writable(made)
    except OSError as error:
        raise ConfigError(
            f"The run's folder {wanted} can't be written: {error.strerror or error}. Give another "
            f"one with {option}."
        ) from None
    return made.resolve()


def _make_unique(wanted: Path) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _MAX_SAME_SECOND):
        made = wanted if attempt == 1 else wanted.with_name(f"{wanted.name}-{attempt}")
        try:
            made.mkdir()
        except FileExistsError:
            continue
        return made
    raise FileExistsError(f"{wanted} and {_MAX_SAME_SECOND} others exist")


def describe_run(
    settings: RunSettings, *, folder: Path, argv: list[str], started: str
) -> dict[str, Any]:
    """What `job.json` says at the start: what was run, where, with which versions."""
    return {
        "argv": argv,
        "command": settings.command,
        "args": list(settings.args),
        "folder": str(folder),
        "host": socket.gethostname(),
        "node_rank": settings.node_rank,
        "nodes": settings.nodes,
        "workers": settings.workers,
        "ps": settings.ps,
        "strategy": settings.chosen_strategy,
        "max_restarts": settings.max_restarts,
        "started": started,
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("drumbeat", "tensorflow", "keras", "mpi4py")},
        },
        "platform": sys.platform,
    }


def job_file(run_dir: Path, node_rank: int) -> Path:
    """`job.json`; other nodes write one of their own beside it, if they share the folder."""
    return run_dir / ("job.json" if node_rank == 0 else f"job-node-{node_rank}.json")


def write_report(path: Path, settings: RunSettings, outcome: Outcome) -> None:
    """Tells a rehearsal how this node's part of it ended; nothing where that can't be written."""
    report = Report(
        node_rank=settings.node_rank,
        nodes=settings.nodes,
        workers=outcome.workers,
        steps=outcome.steps,
        apart=outcome.apart,
        task=str(settings.lone_task or ""),
        code=outcome.code,
    )
    with contextlib.suppress(OSError):
        path.write_bytes(report.to_bytes())


def write_times(run_dir: Path, node_rank: int) -> None:
    """Puts the step times that workers have left under `run_dir` into one `times.json` there.

    Nothing is written where there are none, or where the disk is full.
    """
    found = {path.parent.name: read_file(path) for path in sorted(run_dir.glob(WORKER_FILES))}
    epochs = {name: epochs for name, epochs in found.items() if epochs}
    if epochs:
        name = "times.json" if node_rank == 0 else f"times-node-{node_rank}.json"
        with contextlib.suppress(OSError):
            write_json(run_dir / name, {"workers": epochs})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
