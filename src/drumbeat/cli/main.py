"""The command `drumbeat`. Options are read here; everything else is `drumbeat.launch`."""

from __future__ import annotations

import os
import sys

from drumbeat.launch.signals import exit_quietly


def main() -> None:
    """Entry point of the command; exits the process."""
    # Until the agent takes the signals over, its imports should end as quietly as it does.
    exit_quietly()
    from drumbeat.cli.options import app
    from drumbeat.errors import DrumbeatError

    try:
        _check_folder()
        _check_first(sys.argv[1:])
        app(prog_name="drumbeat")
    except DrumbeatError as error:
        print(error.printed(), file=sys.stderr)
        sys.exit(error.exit_code)


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
