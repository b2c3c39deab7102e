"""`drumbeat rehearse`: what a platform would run, as processes of this machine."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from drumbeat.cli.jobs import Changes, File, Image, Workers, all_changes, manifest_for, recognised
from drumbeat.errors import ConfigError

if TYPE_CHECKING:
    from drumbeat.platforms.platform import Manifest, Platform

DEFAULT_STEPS = 5
DEFAULT_TIMEOUT_S = 600.0
DEFAULT_MAX_PROCESSES = 8
_MAX_STEPS = 1_000_000


def rehearse(
    manifest: Annotated[
        str,
        typer.Argument(
            metavar="MANIFEST|PLATFORM",
            help="A file of a platform, or its name: then what is rendered of the job file.",
        ),
    ],
    platform: Annotated[
        Optional[str],  # noqa: UP045  (typer evaluates it, on Python 3.10 too)
        typer.Option("--as", metavar="PLATFORM", help="Whose the manifest is, if it's not clear."),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", help="Optimizer steps until the end.")
    ] = DEFAULT_STEPS,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="The end at the latest.")
    ] = DEFAULT_TIMEOUT_S,
    folder: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--folder",
            metavar="FOLDER",
            help="For logs and outputs (default runs/rehearse-<time>/).",
        ),
    ] = None,
    max_processes: Annotated[
        int,
        typer.Option("--max-processes", metavar="N", help="A larger job is refused."),
    ] = DEFAULT_MAX_PROCESSES,
    variables: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="One more variable, such as a secret; without a value, this shell's.",
        ),
    ] = None,
    file: File = None,
    workers: Workers = None,
    image: Image = None,
    changes: Changes = None,
) -> None:
    """Run what a platform would run, as processes of this machine, for a few steps.

    Each has exactly the variables that the platform would give it, with this
    machine's addresses. At the end it says whether they found each other, and what
    would be different on the platform. The exit code is 0 if all succeeded.
    """
    from drumbeat.cli import rehearsing
    from drumbeat.launch.files import make_folder

    if not 1 <= steps <= _MAX_STEPS:
        raise ConfigError(f"--steps is {steps}; expected 1 to {_MAX_STEPS:,}.")
    if not 0 < timeout < float("inf"):
        raise ConfigError(f"--timeout is {timeout}; expected a number of seconds above 0.")
    if max_processes < 1:
        raise ConfigError(f"--max-processes is {max_processes}; expected at least 1.")
    given, chosen = _manifest(manifest, platform, file, all_changes(changes, workers, image))
    options = rehearsing.Options(
        max_processes=max_processes,
        steps=steps,
        timeout_s=timeout,
        environ=os.environ,
        variables=variables or (),
        make_folder=lambda: make_folder(
            Path(folder) if folder else None,
            f"rehearse-{datetime.now():%Y%m%d-%H%M%S}",
            "--folder",
        ),
    )
    raise typer.Exit(rehearsing.rehearse(chosen, given, options))


def _manifest(
    name: str, whose: str | None, file: str | None, changes: list[str]
) -> tuple[Manifest, Platform]:
    """The file that is named, or what a platform that is named is given for the job file.

    Raises:
        ConfigError: It is neither, or can't be read.
    """
    from drumbeat.platforms import registry

    if name in registry.PLATFORMS and not Path(name).is_file():
        if whose not in (None, name):
            raise ConfigError(f"--as is {whose}, but {name} is a platform itself; leave --as out.")
        chosen = registry.get(name)
        return manifest_for(chosen, file, changes), chosen
    if file is not None or changes:
        raise ConfigError(
            f"{name} is rehearsed as it is; -f, -n, --image and --set change what is rendered of "
            "a job file: drumbeat rehearse PLATFORM."
        )
    if whose:
        given, chosen = registry.read_manifest(Path(name)), registry.get(whose)
        _check_kind(given, chosen)
        return given, chosen
    found = recognised(Path(name))
    if found is None:
        raise ConfigError(
            f"{name} is a job file, which many platforms can run; say which: drumbeat rehearse "
            f"PLATFORM -f {name}."
        )
    return found


def _check_kind(manifest: Manifest, platform: Platform) -> None:
    """That it isn't sure to be something else; a batch script needs no #SBATCH line.

    Raises:
        ConfigError: It is another platform's, or YAML that is taken for a script.
    """
    from drumbeat.platforms import registry

    if platform.recognises(manifest) or platform.rehearse is None:
        return
    others = [registry.get(each) for each in registry.PLATFORMS]
    titles = [each.title for each in others if each.recognises(manifest)]
    if titles:
        raise ConfigError(
            f"{manifest.path.name} is for {titles[0]}, and --as is {platform.name}. Leave --as out."
        )
    if platform.name == "slurm" and any(
        isinstance(each.value, (dict, list)) for each in manifest.documents
    ):
        raise ConfigError(
            f"{manifest.path.name} is YAML or JSON, and --as is slurm; expected a batch script."
        )
