"""`drumbeat port`: rewrites an old script for Keras 3."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from drumbeat.errors import ConfigError

if TYPE_CHECKING:
    from drumbeat.porting.context import Note


def port(
    scripts: Annotated[list[str], typer.Argument(metavar="SCRIPT...", help="Python files.")],
    write: Annotated[
        bool, typer.Option("--write", metavar="", help="Change the files; else show a diff.")
    ] = False,
) -> None:
    """Rewrite scripts of TensorFlow 2.0 to 2.15 for Keras 3.

    Shows what would change as a diff, and below it the lines that you need to
    look at yourself. A ported script trains the same model, without drumbeat
    too; porting it again changes nothing. docs/old-scripts.md lists the names.
    """
    failed = [not _port_one(path, write=write) for path in scripts]
    raise typer.Exit(ConfigError.exit_code if any(failed) else 0)


def _port_one(path: str, *, write: bool) -> bool:
    from drumbeat.porting import source  # `drumbeat run` starts sooner without it

    try:
        script = source.read(path)
        ported = script.ported()
        diff = script.diff(ported.text)
        if write and diff:
            script.replace(ported.text)
    except ConfigError as error:
        print(error.printed(), file=sys.stderr)
        return False
    if not write:
        sys.stdout.write(diff)
        sys.stdout.flush()
    notes = ported.notes_after if write else ported.notes
    print(_summary(path, bool(diff), notes, write=write), file=sys.stderr)
    for note in notes:
        print(f"{path}: look at line {note.line}: {note.text}", file=sys.stderr)
    return True


def _summary(path: str, changes: bool, notes: Sequence[Note], *, write: bool) -> str:
    what = ("ported" if write else "--write applies this") if changes else "nothing to port"
    left = f"; {len(notes)} left to you" if notes else ""
    return f"{path}: {what}{left}."
