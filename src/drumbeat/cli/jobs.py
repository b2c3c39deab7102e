"""A job file and the platforms: `drumbeat init`, `render`, `submit`, `status`, `logs`, `stop`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from drumbeat.errors import ConfigError
from drumbeat.launch.signals import exit_by_raising

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drumbeat.platforms.jobfile import Job
    from drumbeat.platforms.platform import Client, Manifest, Platform, Rendered, Status

# What `drumbeat run` does not need is imported in the functions: it starts sooner.

PlatformName = Annotated[
    str, typer.Argument(metavar="PLATFORM", help="Its name; `drumbeat render` lists them.")
]
File = Annotated[
    Optional[str],  # noqa: UP045  (typer evaluates it, on Python 3.10 too)
    typer.Option(
        "-f", "--file", metavar="FILE", help="The job file (default: drumbeat.yaml here)."
    ),
]
Workers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("-n", "--workers", metavar="N", help="Wins over the job file's."),
]
Image = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--image", metavar="IMAGE", help="Wins over the job file's."),
]
Changes = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any other key of it, as in resources.memory=8Gi."
    ),
]
JobId = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="JOB", help="Its id (default: submitted last from this folder)."),
]


def init(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A script of this folder.")],
    workers: Annotated[int, typer.Option("-n", "--workers", metavar="N", help="How many.")] = 2,
    image: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--image", metavar="IMAGE", help="That the platforms run."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="In place of the one that is there.")
    ] = False,
) -> None:
    """Write a first drumbeat.yaml for a script.

    Beside it goes drumbeat.schema.json, by which editors complete and check the
    file.
    """
    from drumbeat.platforms.jobfile import first

    path = first.write(script, Path.cwd(), image=image, workers=workers, force=force)
    print(f"Wrote {path.name} and {first.SCHEMA_FILE}. Next: drumbeat render PLATFORM.")


def render(
    platform: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="PLATFORM", help="Its name; without one they are listed."),
    ] = None,
    file: File = None,
    output: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("-o", "--output", metavar="FOLDER", help="Write the files there."),
    ] = None,
    workers: Workers = None,
    image: Image = None,
    changes: Changes = None,
) -> None:
    """Show what a platform would be given for the job, or write it into a folder.

    The same job gives the same text. ai-platform converts an old config.yaml,
    given with -f, for Vertex AI.
    """
    from drumbeat.platforms import registry

    if platform is None:
        print("\n".join(f"{name:12} {registry.get(name).title}" for name in registry.PLATFORMS))
        return
    rendered = rendered_for(registry.get(platform), file, all_changes(changes, workers, image))
    if output is not None:
        _write(rendered, Path(output))
    else:
        _show(rendered)
    _say(rendered.notes)


def submit(
    platform: PlatformName,
    file: File = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar="", help="Show the calls that it would make."),
    ] = False,
    workers: Workers = None,
    image: Image = None,
    changes: Changes = None,
) -> None:
    """Start the job on a platform, through the platform's own client."""
    from drumbeat.platforms import command, needed, registry, submitted

    chosen = registry.get(platform)
    job = _job(file, all_changes(changes, workers, image))
    client, rendered = needed.both(lambda: _client(chosen, job), lambda: _render(chosen, job))
    _say(note for note in rendered.notes if note == command.NO_OUTPUT)
    _say(_of_script(job, _folder(file)))
    if dry_run:
        print("\n".join(client.plan(job, rendered)))
        return
    with exit_by_raising():
        job_id = client.submit(job, rendered)
    submitted.remember(_folder(file), platform, job_id)
    print(f"Submitted {job_id}. Next: drumbeat status {platform}, drumbeat logs {platform}.")


def status(platform: PlatformName, job: JobId = None, file: File = None) -> None:
    """Show how a submitted job is. The exit code is 1 where it has failed."""
    client, job_id = _submitted(platform, job, file)
    found = client.status(job_id)
    print(_told(found))
    for task, state in found.tasks.items():
        print(f"  {task}: {state}")
    raise typer.Exit(int(found.state == "failed"))


def logs(
    platform: PlatformName,
    job: JobId = None,
    task: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--task", metavar="TASK", help="Of this one alone; status names them."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", metavar="", help="Go on until the job has ended.")
    ] = False,
    file: File = None,
) -> None:
    """Show what a submitted job has printed.

    With --follow the exit code is 1 where it has failed.
    """
    client, job_id = _submitted(platform, job, file)
    with exit_by_raising():
        for line in client.logs(job_id, task=task, follow=follow):
            print(line, flush=True)
        if follow and (found := client.status(job_id)).state == "failed":
            _say([_told(found)])
            raise typer.Exit(1)


def stop(platform: PlatformName, job: JobId = None, file: File = None) -> None:
    """End a submitted job."""
    client, job_id = _submitted(platform, job, file)
    client.stop(job_id)
    print(f"Stopped {job_id}.")


def all_changes(changes: list[str] | None, workers: int | None, image: str | None) -> list[str]:
    """What the options of a command change in the job file, as KEY=VALUE."""
    found = list(changes or ())
    found += [f"workers={workers}"] if workers is not None else []
    return found + ([f"image={image}"] if image is not None else [])


def _job(file: str | None, changes: list[str]) -> Job:
    from drumbeat.platforms.jobfile import read

    return read.read(read.find(file, Path.cwd()), changes)


def _told(found: Status) -> str:
    return f"{found.job_id}: {found.state}" + (f" ({found.detail})" if found.detail else "")


def _folder(file: str | None) -> Path:
    return Path(file).parent if file else Path.cwd()


def _client(platform: Platform, job: Job) -> Client:
    if platform.connect is None:
        raise ConfigError(
            f"Nothing can be submitted to {platform.name}: it has files, and nobody to give them "
            f"to. `drumbeat render {platform.name}` shows them."
        )
    return platform.connect(job)


def _render(platform: Platform, job: Job) -> Rendered:
    assert platform.render is not None, "what has a client, or doesn't convert, renders"  # noqa: S101
    from drumbeat.platforms import command

    rendered = platform.render(job)
    has_place = command.backup_dir(job) is not None or not platform.has_own_disk(job)
    if has_place or platform.connect is None:
        return rendered
    return dataclasses.replace(rendered, notes=(*rendered.notes, command.NO_OUTPUT))


def _of_script(job: Job, folder: Path) -> Iterator[str]:
    if job.script is not None and not (folder / job.script).is_file():
        yield (
            f"{job.script} is not in the job file's folder. Correct script:, unless the image has "
            "it."
        )


def _submitted(platform: str, job_id: str | None, file: str | None) -> tuple[Client, str]:
    from drumbeat.platforms import registry, submitted

    client = _client(registry.get(platform), _job(file, []))
    return client, job_id or submitted.last(_folder(file), platform)


def rendered_for(platform: Platform, file: str | None, changes: list[str]) -> Rendered:
    """The job of a job file as the platform reads it.

    Raises:
        ConfigError: The job file can't be used, or not for this platform.
    """
    from drumbeat.platforms import registry

    if platform.convert is not None:
        if file is None or changes:
            raise ConfigError(
                f"render {platform.name} converts a file of {platform.title} as it is; expected "
                "-f config.yaml and no other option."
            )
        return platform.convert(registry.read_manifest(Path(file)))
    job = _job(file, changes)
    rendered = _render(platform, job)
    return dataclasses.replace(rendered, notes=(*rendered.notes, *_of_script(job, _folder(file))))


def manifest_for(platform: Platform, file: str | None, changes: list[str]) -> Manifest:
    """What the platform would be given first for the job of a job file.

    Raises:
        ConfigError: As `rendered_for`.
    """
    from drumbeat.platforms import registry

    if platform.convert is not None:
        raise ConfigError(
            f"{platform.title} has files of its own alone, which are rehearsed as they are; "
            "expected one: drumbeat rehearse config.yaml."
        )
    rendered = rendered_for(platform, file, changes)
    return registry.parse_manifest(rendered.main, Path(next(iter(rendered.files))))


def recognised(path: Path) -> tuple[Manifest, Platform] | None:
    """A platform's own file and whose it is; None for a job file, which may be called as one likes.

    Raises:
        ConfigError: It is neither, or can't be read.
    """
    from drumbeat.platforms import registry
    from drumbeat.platforms.jobfile import read

    if path.suffix == ".toml" or path.name in read.NAMES:
        return None
    manifest = registry.read_manifest(path)
    try:
        return manifest, registry.recognise(manifest)
    except ConfigError:
        if not manifest.text.startswith("#!") and read.looks_like_job(manifest.documents):
            return None
        raise


def _show(rendered: Rendered) -> None:
    if len(rendered.files) == 1:
        sys.stdout.write(rendered.main)
    else:
        for name, text in rendered.files.items():
            sys.stdout.write(f"# ---- {name}\n{text}")
    sys.stdout.flush()


def _write(rendered: Rendered, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in rendered.files.items():
            path = folder / name
            old = path.read_bytes() if path.is_file() else None
            if old == text.encode():
                print(f"Unchanged: {path}")
                continue
            path.write_text(text)
            print(f"Wrote {path}" if old is None else f"Changed {path}")
    except OSError as error:
        raise ConfigError(f"{folder} can't be written: {error.strerror or error}.") from None


def _say(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"drumbeat: {note}", file=sys.stderr)
