"""The command `drumbeat`. Options are read here; everything else is `drumbeat.launch`."""

from __future__ import annotations

import sys

from drumbeat.launch.signals import exit_quietly


def main() -> None:
    """Entry point of the command; exits the process."""
    # Until the agent takes the signals over, its imports should end as quietly as it does.
    exit_quietly()
    from drumbeat.cli.options import app
    from drumbeat.errors import DrumbeatError

    try:
        app(prog_name="drumbeat")
    except DrumbeatError as error:
        print(f"drumbeat: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
