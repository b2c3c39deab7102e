"""`drumbeat install-hook`, `drumbeat remove-hook`: bare `python script.py` as under drumbeat."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from drumbeat.errors import ConfigError

# Python runs the lines of such a file that begin with import, whenever it starts.
_FILE = "drumbeat-hook.pth"
_LINE = "import drumbeat.hook; drumbeat.hook.install()\n"


def path() -> Path:
    """The hook's place in this environment."""
    return Path(sysconfig.get_path("purelib")) / _FILE


def install_hook() -> None:
    """Have every Python of this environment train under drumbeat where TF_CONFIG is set.

    For machines on which something starts `python script.py` that can't be made to start
    `drumbeat run`. DRUMBEAT_NO_HOOK=1 turns it off for one process, `drumbeat remove-hook` for all.
    """
    try:
        path().write_text(_LINE, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path()} can't be written: {error.strerror}. Expected an environment of your own; "
            "make one with python3 -m venv, or write `import drumbeat.auto` into the script."
        ) from None
    print(f"Wrote {path()}. drumbeat remove-hook takes it away.")


def remove_hook() -> None:
    """Take away what `drumbeat install-hook` wrote."""
    try:
        path().unlink()
    except FileNotFoundError:
        print(f"There is no {path()}.")
    except OSError as error:
        raise ConfigError(f"{path()} can't be removed: {error.strerror}.") from None
    else:
        print(f"Removed {path()}.")
