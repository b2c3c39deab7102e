"""What is refused before anything is looked at closely: the command and plain numbers."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drumbeat.cluster import strategy_names
from drumbeat.cluster.identity import check_jit
from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.launch.sizes import Range

if TYPE_CHECKING:
    from drumbeat.launch.place import Place
    from drumbeat.launch.settings import RunArguments

COLLECTIVES_CHOICES = ("auto", "mpi", "tensorflow")
MAX_PROCESSES = 1024


def absent(arguments: RunArguments, place: Place) -> set[str]:
    """Options that were not given and that one expects to act wherever they are."""
    missing = set()
    if arguments.workers is None and not place.platform:
        missing |= {"-n", "--workers", "--nodes", "--node-rank"}
    if arguments.strategy == strategy_names.AUTO and not place.platform:
        missing |= {"--strategy", "--ps"} - ({"--ps"} if arguments.ps else set())
    if arguments.exact is None and not arguments.shares:
        missing |= {"--exact", "--exact-shards", "--shares"}
    return missing


def note_on_late_options(verb: str, command: Sequence[str], absent: Collection[str]) -> str:
    """Says that an option in `absent`, not given before the script, follows it; else ""."""
    for word in command[1:]:
        name = word.split("=")[0]
        if name in absent:
            return (
                f"What follows the script belongs to it, also {name}, which drumbeat does not act "
                "on there. drumbeat's options come before the script: "
                f"drumbeat {verb} {name} … {command[0]}"
            )
    return ""


def check_command(arguments: RunArguments) -> None:
    """Looks whether there is something to run.

    Raises:
        ConfigError: No command, or the script is missing, a folder or unreadable.
    """
    if not arguments.command:
        raise ConfigError("What should run? Give a script: drumbeat run -n 2 train.py")
    name = arguments.command[0]
    if arguments.is_module:
        if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(
                f"-m {shown(name)} is not the name of a module; expected one such as "
                "package.train. Leave out -m to run a file."
            )
        return
    path = Path(name)
    if arguments.exact and name.isdecimal() and not path.exists():
        raise ConfigError(
            f"--exact takes no number, so {name} would be the script. Use --exact-shards {name} "
            "for that many virtual shards."
        )
    if path.is_dir():
        raise ConfigError(f"{name} is a folder; expected a Python script.")
    if not path.exists():
        raise ConfigError(_missing(path))
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{name} can't be read by this user; change its permissions.")


def _missing(path: Path) -> str:
    dotted = str(path).replace("/", ".")
    if path.suffix == "" and (Path(f"{path}.py")).exists():
        return f"{path} does not exist; did you mean {path}.py?"
    if dotted.isidentifier():
        return f"{path} does not exist in {Path.cwd()}. To run a module, put -m before its name."
    return f"{path} does not exist (looked in {Path.cwd()}); expected a Python script."


def check_numbers(arguments: RunArguments) -> None:
    """Looks at each number, and at words of which there are few.

    Raises:
        ConfigError: One is out of range.
    """
    given = arguments.workers
    limits = (
        ("-n", given.most if isinstance(given, Range) else given, 1, MAX_PROCESSES, "workers"),
        ("--ps", arguments.ps, 0, MAX_PROCESSES, "parameter servers"),
        ("--devices-per-worker", arguments.devices_per_worker, 1, MAX_PROCESSES, "devices"),
        ("--processes-per-node", arguments.processes_per_node, 1, MAX_PROCESSES, "processes"),
        ("--nodes", arguments.nodes, 1, MAX_PROCESSES, "nodes"),
        ("--node-rank", arguments.node_rank, 0, MAX_PROCESSES - 1, "this node's number"),
        ("--exact-shards", arguments.exact, 1, MAX_PROCESSES, "virtual shards"),
        ("--seed", arguments.seed, 0, 2**32 - 1, "seed"),
        ("--snapshot-every", arguments.snapshot_every, 0, 2**31, "steps; 0 for none"),
        ("--max-restarts", arguments.max_restarts, 0, 1_000_000, "restarts without progress"),
        ("--hang-timeout", arguments.hang_timeout_s, 0, 1_000_000, "seconds; 0 for never"),
    )
    for option, value, low, high, meaning in limits:
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{option} is {value} ({meaning}); expected {low} to {high}.")
    timeouts = (
        ("--start-timeout", arguments.start_timeout_s),
        ("--collective-timeout", arguments.collective_timeout_s),
        ("--rejoin-timeout", arguments.rejoin_timeout_s),
        ("--backup-every", arguments.backup_every_s),
        ("--grace", arguments.grace_s),
    )
    for option, seconds in timeouts:
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ConfigError(f"{option} is {seconds}; expected a number of seconds above 0.")
    if arguments.backup_every_s is not None and arguments.backup_dir is None:
        raise ConfigError(
            f"--backup-every is {arguments.backup_every_s:g}, but there is no folder for backups; "
            "expected --backup-dir with it. drumbeat.callbacks.BackupAndRestore has its own every=."
        )
    check_jit(arguments.jit, arguments.exact)
    if arguments.collectives not in COLLECTIVES_CHOICES:
        raise ConfigError(
            f"--collectives is {shown(arguments.collectives)}; expected one of "
            f"{listed(COLLECTIVES_CHOICES)}."
        )
