"""`python -m drumbeat script.py` runs a script with `drumbeat.auto`; else it is the command."""

from __future__ import annotations

import os
import runpy
import sys

from drumbeat.cli.main import main
from drumbeat.errors import DrumbeatError


def _run_script() -> None:
    """Runs the script in this process, which TF_CONFIG describes."""
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    try:
        import drumbeat.auto  # noqa: F401
    except DrumbeatError as error:
        print(error.printed(), file=sys.stderr)
        sys.exit(error.exit_code)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].endswith(".py") and os.path.isfile(sys.argv[1]):
        _run_script()
    else:
        main()
