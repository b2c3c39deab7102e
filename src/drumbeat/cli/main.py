"""The command `drumbeat`. Options are read here; everything else is `drumbeat.launch`."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

from drumbeat.launch.signals import exit_quietly


def main() -> None:
    """Entry point of the command; exits the process."""
    # Until the agent takes the signals over, its imports should end as quietly as it does.
    exit_quietly()
    from drumbeat.cli.options import app
    from drumbeat.errors import DrumbeatError

    try:
        try:
            _check_folder()
            _check_first(sys.argv[1:])
            app(prog_name="drumbeat")
        finally:
            _flush()
    except DrumbeatError as error:
        _end(error.printed(), error.exit_code)
    except BrokenPipeError:  # whoever reads has enough, as head has
        _silence(1)
        sys.exit(1)
    except OSError as error:
        _silence(1)
        # Of the machine, wherever it shows first: no space, no descriptors, no permission.
        place = f"{error.filename}: " if isinstance(error.filename, (str, bytes)) else ""
        _end(f"drumbeat: {place}{error.strerror or error}.", 1)


def _flush() -> None:
    """Writes what print has kept, while a failure can still be told."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _end(text: str, code: int) -> NoReturn:
    """Ends the process with a message, as far as there is somewhere to write it."""
    try:
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)
    except OSError:
        _silence(2)
    sys.exit(code)


def _silence(stream: int) -> None:
    """Has what can't be written not be tried again while Python ends, with another exit code."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def _check_folder() -> None:
    """Says that the working folder is gone, before anything looks for a file in it.

    Raises:
        ConfigError: It is.
    """
    from drumbeat.errors import ConfigError

    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(
            f"The working folder can't be used: {error.strerror or error}. It was removed, or you "
            "may not enter it; change to another one."
        ) from None


def _check_first(words: list[str]) -> None:
    """Says what is missing where a script or an option of `run` comes first.

    Raises:
        ConfigError: There is no command.
    """
    from drumbeat.errors import ConfigError

    first = words[0] if words else ""
    # typer's own message would know neither of the commands that have the option.
    is_option = first.startswith("-") and first not in ("-h", "--help", "--version")
    if is_option or first.endswith(".py"):
        script = first if first.endswith(".py") else "train.py"
        raise ConfigError(
            f"{first} is not a command; expected run or check, then its options, then the "
            f"script: drumbeat run -n 2 {script}"
        )
