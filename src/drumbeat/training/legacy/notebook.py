"""What a notebook, converted to a script, asks of IPython."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path

from drumbeat import legacy_names as names
from drumbeat.training.legacy.notice import tell

_RUN = ("time", "timeit", "capture", "prun")


class _Shell:
    """Stands for IPython's shell: its commands belong to the notebook's machine, not to a job."""

    def system(self, command: str) -> None:
        """`!command`: not run."""
        del command
        tell(names.NOTEBOOK)

    def getoutput(self, command: str) -> list[str]:
        """`x = !command`: not run; no lines."""
        self.system(command)
        return []

    def run_line_magic(self, name: str, line: str) -> None:
        """`%name line`: not run."""
        del name, line
        tell(names.NOTEBOOK)

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        """`%%name line`: the cell is run where it was timed, and written where it was a file."""
        tell(names.NOTEBOOK)
        if name == "writefile":
            Path(line.split()[-1]).write_text(cell, encoding="utf-8")
        elif name in _RUN:
            exec(compile(cell, f"%%{name}", "exec"), sys._getframe(1).f_globals)

    # As nbconvert wrote them until 2018.
    magic = system
    run_cell = system


def install() -> None:
    """Give scripts `get_ipython`, unless IPython runs them."""
    if not hasattr(builtins, "get_ipython"):
        shell = _Shell()
        builtins.get_ipython = lambda: shell  # type: ignore[attr-defined]
