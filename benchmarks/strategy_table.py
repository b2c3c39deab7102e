"""Runs each strategy of tf.distribute through what a script does with it, and says what works.

    make strategy-table                  # or: .venv/bin/python benchmarks/strategy_table.py --write
    make strategy-table ARGS='--rows mirrored --cells fit,restart'

Twice: as Keras 3 and TensorFlow have it, in plain processes with TF_CONFIG, and by `drumbeat run`
with nothing but --strategy changed. A cell is "yes" where it ran and gave the numbers of one
device within rounding; parameter servers train asynchronously, so there a loss has to be near
that of one device. Exits with 1 when a cell with drumbeat is not "yes" and no issue says why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "strategy_table_train.py"
PAGE = ROOT / "docs" / "strategies.md"
BEGIN, END = "<!-- make strategy-table: begin -->", "<!-- make strategy-table: end -->"
ROWS = ("one-device", "mirrored", "central-storage", "multi-worker", "parameter-server")
RESTART = "restart"
CELLS = (
    "fit",
    "custom-loop",
    "evaluate",
    "predict",
    "uneven-data",
    "mixed-precision",
    "save",
    RESTART,
)
ALONE, DRUMBEAT = "Keras 3 alone", "with drumbeat"
START_S, CELL_S = 90.0, 60.0  # each takes some seconds on idle cores
CRASH_CODE = 9
ROUNDING, HALF_ROUNDING, ASYNCHRONOUS = 1e-4, 2e-2, 0.35
# What is known upstream of a reason, by what the reason says.
UPSTREAM = {
    "PerReplica": "[keras#20585](https://github.com/keras-team/keras/issues/20585)",
    "placeholder": "[keras#19246](https://github.com/keras-team/keras/issues/19246)",
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Of one cell.

    Attributes:
        found: Numbers by name; None where it did not come to an end.
        reason: Why not, in a few words.
    """

    found: dict[str, Any] | None = None
    reason: str = ""


class Jobs:
    """Starts the processes of a job, and ends those that it has started.

    Args:
        way: `ALONE` or `DRUMBEAT`.
        row: The strategy.
        folder: For all files.
    """

    def __init__(self, way: str, row: str, folder: Path) -> None:
        self._way = way
        self._row = row
        self._folder = folder
        self._log = folder / "output.txt"

    def cells(self, names: Sequence[str]) -> dict[str, Result]:
        """Each cell's result; they share a job as long as none fails."""
        results: dict[str, Result] = {}
        left = list(names)
        while left:
            results |= self._some(left)
            left = [name for name in left if name not in results]
        return results

    def _some(self, names: Sequence[str]) -> dict[str, Result]:
        """Results of the first ones: all, or up to the first that fails."""
        results: dict[str, Result] = {}
        with self._started(names) as chief:
            for number, name in enumerate(names):
                limit_s = CELL_S if number else START_S + CELL_S
                result = self._result(chief, name, limit_s)
                results[name] = result
                if result.found is None:
                    return results
            chief.wait(CELL_S)
        return results

    def _result(self, chief: subprocess.Popen[bytes], name: str, limit_s: float) -> Result:
        path = self._folder / f"{name}.json"
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            has_ended = chief.poll() is not None
            if path.exists():
                value = json.loads(path.read_text())
                if "error" in value:
                    return Result(reason=short(value["error"], value["text"]))
                return Result(found=value["numbers"])
            if has_ended:
                return Result(reason=f"ended with exit code {chief.returncode}")
            time.sleep(0.1)
        return Result(reason=f"had not ended after {limit_s:g} s")

    def restart(self) -> Result:
        """The result of the cell in which the chief dies once."""
        limit_s = 2 * START_S + CELL_S
        with self._started([RESTART]) as chief:
            result = self._result(chief, RESTART, limit_s)
        if self._way == DRUMBEAT or result.found is not None or "exit code" not in result.reason:
            return result
        if f"exit code {CRASH_CODE}" not in result.reason:
            return result
        with self._started([RESTART]) as chief:  # by hand
            return self._result(chief, RESTART, limit_s)

    @contextmanager
    def _started(self, names: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Within this, the job runs; yields its chief, or drumbeat."""
        for name in names:
            (self._folder / f"{name}.json").unlink(missing_ok=True)
        arguments = [str(SCRIPT), "--out", str(self._folder), "--cells", ",".join(names)]
        with ExitStack() as stack:
            if self._way == DRUMBEAT:
                started = [stack.enter_context(self._process(self._drumbeat(names, arguments)))]
            else:
                started = [
                    stack.enter_context(
                        self._process([sys.executable, *arguments, "--alone", self._row], config)
                    )
                    for config in configs(self._row)
                ]
            yield started[0]

    def _drumbeat(self, names: Sequence[str], arguments: list[str]) -> list[str]:
        command = [sys.executable, "-m", "drumbeat", "run", "-n", "2", "--ps", "1"]
        command += ["--strategy", self._row, "--run-dir", str(self._folder / "run")]
        # Started again, a cell that fails would fail again.
        command += [] if RESTART in names else ["--max-restarts", "0"]
        return [*command, *arguments]

    @contextmanager
    def _process(self, command: list[str], config: str = "") -> Iterator[subprocess.Popen[bytes]]:
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        env.pop("TF_CONFIG", None)
        if config:
            env["TF_CONFIG"] = config
        with self._log.open("ab") as log:
            started = subprocess.Popen(
                command, cwd=self._folder, env=env, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield started
        finally:
            if started.poll() is None and self._way == DRUMBEAT:
                started.send_signal(signal.SIGTERM)  # it ends what it has started
                try:
                    started.wait(CELL_S)
                except subprocess.TimeoutExpired:
                    print(f"{command} did not end", file=sys.stderr)
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()


def configs(row: str) -> list[str]:
    """A TF_CONFIG for each process of a job without drumbeat, the chief's first."""
    sizes = {
        "multi-worker": {"worker": 2},
        "parameter-server": {"chief": 1, "worker": 2, "ps": 1},
    }.get(row)
    if sizes is None:
        return [""]
    with ExitStack() as stack:
        cluster = {
            job: [f"127.0.0.1:{free_port(stack)}" for _ in range(count)]
            for job, count in sizes.items()
        }
    return [
        json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
        for job, count in sizes.items()
        for index in range(count)
    ]


def free_port(stack: ExitStack) -> int:
    held = stack.enter_context(socket.socket())
    held.bind(("127.0.0.1", 0))
    return held.getsockname()[1]


def short(error: str, text: str) -> str:
    """An exception in a line of a footnote."""
    text = re.sub(r"\s+", " ", text.replace("|", "/").replace("`", "'"))
    text = re.sub(r"/\S*/", "…/", text)
    return f"{error}: {text[:110]}{'…' if len(text) > 110 else ''}"


def compare(row: str, cell: str, result: Result, one: Result) -> str:
    """Why a cell is not "yes"; "" where it is."""
    if result.found is None:
        return result.reason
    if one.found is None:
        return f"nothing to compare with: {one.reason}"
    asynchronous = row == "parameter-server"
    for name, ours in result.found.items():
        theirs = one.found[name]
        if name == "loss":
            bound = HALF_ROUNDING if cell == "mixed-precision" else ROUNDING
            bound = ASYNCHRONOUS if asynchronous else bound
        elif name == "weights" and asynchronous:
            continue
        else:
            bound = ROUNDING
        left, right = np.atleast_1d(np.array(ours)), np.atleast_1d(np.array(theirs))
        if left.shape != right.shape:
            return f"{name}: {left.size} numbers, on one device {right.size}"
        apart = np.max(np.abs(left - right)) / np.max(np.abs(right))
        if not apart <= bound:
            return wrong(name, left, right, float(apart))
    return ""


def wrong(name: str, ours: np.ndarray, theirs: np.ndarray, apart: float) -> str:
    if ours.size <= 2:
        return f"{'loss' if name == 'exact' else name} {ours[0]:.4g}, on one device {theirs[0]:.4g}"
    return f"{name} differ from those of one device by {apart:.1g} of the largest"


def run(rows: Sequence[str], cells: Sequence[str], folder: Path) -> dict[str, Any]:
    """All that was asked for: way → row → cell → reason, "" for yes."""
    base = measure(ALONE, ROWS[0], cells, folder)
    found: dict[str, Any] = {ALONE: {}, DRUMBEAT: {}}
    for row in rows:
        for way in (ALONE, DRUMBEAT):
            is_base = (way, row) == (ALONE, ROWS[0])
            results = base if is_base else measure(way, row, cells, folder)
            found[way][row] = {
                cell: compare(row, cell, results[cell], base[cell]) for cell in cells
            }
    return found


def measure(way: str, row: str, cells: Sequence[str], folder: Path) -> dict[str, Result]:
    began_s = time.monotonic()
    place = folder / f"{way.replace(' ', '-')}-{row}"
    place.mkdir(parents=True, exist_ok=True)
    kept = place / "results.json"
    if kept.exists():
        results = {name: Result(**value) for name, value in json.loads(kept.read_text()).items()}
        if set(cells) <= set(results):
            return results
    jobs = Jobs(way, row, place)
    results = jobs.cells([cell for cell in cells if cell != RESTART])
    if RESTART in cells:
        results[RESTART] = jobs.restart()
    kept.write_text(json.dumps({name: asdict(result) for name, result in results.items()}))
    good = sum(result.found is not None for result in results.values())
    took_s = time.monotonic() - began_s
    print(f"{row}, {way}: {good} of {len(results)} ran, {took_s:.0f} s", file=sys.stderr)
    return results


class Notes:
    """Footnotes, each reason once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def cell(self, reason: str) -> str:
        if not reason:
            return "yes"
        number = self._numbers.setdefault(reason, len(self._numbers) + 1)
        return f"no ({number})"

    @property
    def lines(self) -> list[str]:
        return [f"{n}. {reason}{upstream(reason)}" for reason, n in self._numbers.items()]


def upstream(reason: str) -> str:
    return next((f"; {issue}" for part, issue in UPSTREAM.items() if part in reason), "")


def markdown(found: dict[str, Any]) -> str:
    notes = Notes()
    rows = list(found[ALONE])
    cells = list(found[ALONE][rows[0]])
    lines = [["", "", *(cell.replace("-", " ") for cell in cells)], ["---"] * (len(cells) + 2)]
    for row in rows:
        for way in (ALONE, DRUMBEAT):
            reasons = [found[way][row][cell] for cell in cells]
            title = row if way == ALONE else ""
            lines.append([title, way, *map(notes.cell, reasons)])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join([table, "\n".join(notes.lines)]) if notes.lines else table


def write(page: Path, text: str) -> None:
    """Puts `text` between the markers of `page`."""
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def names(text: str, known: Sequence[str]) -> list[str]:
    asked = text.split(",")
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return [name for name in known if name in asked]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    parser.add_argument("--rows", type=lambda text: names(text, ROWS), default=list(ROWS))
    parser.add_argument("--cells", type=lambda text: names(text, CELLS), default=list(CELLS))
    parser.add_argument("--json", type=Path, help="file for what was found")
    parser.add_argument("--keep", type=Path, help="folder for results; takes up those it has")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="drumbeat-strategies-") as name:
        folder = (options.keep or Path(name)).resolve()
        found = run(options.rows, options.cells, folder)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    text = markdown(found)
    print(text)
    if options.write:
        write(PAGE, text)
    missing = [
        f"{row}, {cell}: {reason}"
        for row, cells in found[DRUMBEAT].items()
        for cell, reason in cells.items()
        if reason and not upstream(reason)
    ]
    for line in missing:
        print(f"With drumbeat: {line}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
