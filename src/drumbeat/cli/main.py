"""The command `drumbeat`. Options are read here; everything else is `drumbeat.launch`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Entry point of the command; exits the process."""
    # Until the agent takes the signals over, its imports should end as quietly as it does.
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit_on_signal)
    from drumbeat.cli.options import app
    from drumbeat.errors import DrumbeatError

    try:
        app(prog_name="drumbeat")
    except DrumbeatError as error:
        print(f"drumbeat: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _exit_on_signal(number: int, _frame: object) -> None:
    os._exit(128 + number)
