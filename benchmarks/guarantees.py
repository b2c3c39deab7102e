"""Shows that the number of workers doesn't change the trained model, for each kind of model.

    make guarantees            # or: .venv/bin/python benchmarks/guarantees.py --write

Trains the models of `guarantees_train.py` with `drumbeat run` on 1, 2, 3 and 4 workers
and compares the weights; then in exact mode on 1, 2, 4 and 8, and compares every byte.
Exits with 1 when something differs by more than was promised.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "guarantees_train.py"
PAGE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- make guarantees: begin -->", "<!-- make guarantees: end -->"
RUN_TIMEOUT_S = 1800  # each takes a minute or two on idle cores
DONE = "done"
PLAIN, EXACT = (1, 2, 3, 4), (1, 2, 4, 8)
FLOAT32 = 1e-5


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What is promised of one kind of model.

    Attributes:
        title: Its row in the table.
        bound: Largest relative difference of weights between numbers of workers; None
            where none is promised and only exact mode is tried.
    """

    title: str
    bound: float | None = FLOAT32


PROMISES = {
    "dense": Promise(title="dense, Adam"),
    "cnn_batch_norm_synchronized": Promise(
        title="CNN, BatchNormalization(synchronized=True), SGD with momentum"
    ),
    "cnn_batch_norm": Promise(
        title="CNN, BatchNormalization of each worker's own rows", bound=None
    ),
    "transformer_dropout": Promise(
        title="transformer block, dropout, AdamW, cosine schedule, clipping"
    ),
    "embedding_adam": Promise(title="embedding, sparse gradients, Adam"),
    "embedding_adagrad": Promise(title="embedding, sparse gradients, Adagrad"),
    "outputs_weights_masks": Promise(
        title="GRU, two outputs, loss weights, sample weights, masks, RMSprop"
    ),
    "mixed_float16": Promise(title="dense, SGD, mixed_float16 with loss scaling", bound=0.2),
    "mixed_bfloat16": Promise(title="dense, SGD, mixed_bfloat16", bound=0.2),
}


class Broken(Exception):
    """A run failed; the text is the end of its output."""


def train(folder: Path, workers: int, shards: int | None, arguments: Sequence[str]) -> None:
    """One `drumbeat run`, in exact mode with `shards`; its results are in `folder` afterwards."""
    if (folder / DONE).exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    exact = [] if shards is None else ["--exact-shards", str(shards)]
    command = [sys.executable, "-m", "drumbeat", "run", "-n", str(workers), *exact]
    command += ["--run-dir", str(folder / "run"), str(SCRIPT), "--out", str(folder), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, cwd=ROOT, check=False
    )
    if done.returncode:
        raise Broken(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")
    (folder / DONE).touch()


def reports(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What each worker said of a kind, in rank order."""
    paths = sorted(folder.glob(f"{kind}.*.json"), key=lambda path: int(path.suffixes[-2][1:]))
    return [json.loads(path.read_text()) for path in paths]


def difference(one: Path, many: Path) -> float:
    """Largest relative difference of two trainings' weights.

    Of each variable: the largest difference of an entry, by the largest entry.
    """
    with np.load(one) as left, np.load(many) as right:
        names = [name for name in left if name.startswith("weight")]
        return max(_of_variable(left[name], right[name]) for name in names)


def _of_variable(left: np.ndarray, right: np.ndarray) -> float:
    left, right = left.astype(np.float64), right.astype(np.float64)
    apart = float(np.max(np.abs(left - right), initial=0))
    if not np.isfinite(left).all() or not np.isfinite(right).all():
        return float("inf")
    return apart / float(np.max(np.abs(left), initial=0)) if apart else 0.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of the table: its text, and whether the promise holds."""

    text: str
    kept: bool = True

    def __str__(self) -> str:
        return self.text if self.kept else f"**{self.text}**"


def compare(folder: Path, kind: str, workers: int) -> Cell:
    """A kind on one worker and on several: the largest relative difference of its weights."""
    bound = PROMISES[kind].bound
    if bound is None:
        return Cell(text="–")
    if len({report["digest"] for report in reports(folder / str(workers), kind)}) != 1:
        return Cell(text="the workers differ", kept=False)
    apart = difference(folder / "1" / f"{kind}.npz", folder / str(workers) / f"{kind}.npz")
    return Cell(text=f"{apart:.1e}", kept=apart <= bound)


def compare_bytes(folder: Path, kind: str, sizes: Sequence[int]) -> Cell:
    """A kind in exact mode on several numbers of workers."""
    digests = {
        size: {report["digest"] for report in reports(folder / f"exact-{size}", kind)}
        for size in sizes
    }
    first = digests[sizes[0]]
    differing = [str(size) for size in sizes if digests[size] != first]
    if len(first) != 1 or differing:
        return Cell(text=f"not with {', '.join(differing) or sizes[0]}", kept=False)
    return Cell(text="same bytes")


def table(folder: Path, kinds: Sequence[str], plain: Sequence[int], exact: Sequence[int]) -> Any:
    """The rows of the table as (title, cells)."""
    rows = []
    for kind in kinds:
        cells = [compare(folder, kind, workers) for workers in plain[1:]]
        cells += [compare_bytes(folder, kind, exact)] if exact else []
        rows.append((PROMISES[kind].title, cells))
    return rows


def markdown(rows: Any, plain: Sequence[int], exact: Sequence[int]) -> str:
    head = ["model", *(f"1 vs {workers}" for workers in plain[1:])]
    head += [f"exact: {', '.join(map(str, exact))}"] if exact else []
    lines = [head, ["---"] * len(head), *([title, *map(str, cells)] for title, cells in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(page: Path, text: str) -> None:
    """Puts `text` between the markers of `page`."""
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    parser.add_argument("--kinds", nargs="+", choices=list(PROMISES), default=list(PROMISES))
    parser.add_argument("--plain", nargs="*", type=int, default=PLAIN, metavar="WORKERS")
    parser.add_argument("--exact", nargs="*", type=int, default=EXACT, metavar="WORKERS")
    parser.add_argument("--shards", type=int, default=8, help="virtual shards of exact mode")
    parser.add_argument("--rows", type=int, default=1797, help="fewer are quicker")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder for results; takes up those it has")
    options = parser.parse_args()
    arguments = ["--rows", str(options.rows), "--epochs", str(options.epochs), "--kinds"]
    with tempfile.TemporaryDirectory(prefix="drumbeat-guarantees-") as name:
        folder = (options.keep or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        runs = [(f"{workers}", workers, None) for workers in options.plain]
        runs += [(f"exact-{workers}", workers, options.shards) for workers in options.exact]
        for label, workers, shards in runs:
            began = time.monotonic()
            kinds = [k for k in options.kinds if shards or PROMISES[k].bound is not None]
            try:
                train(folder / label, workers, shards, [*arguments, *kinds])
            except (Broken, subprocess.TimeoutExpired) as error:
                print(error, file=sys.stderr)
                return 1
            print(f"{label}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        rows = table(folder, options.kinds, options.plain, options.exact)
    text = markdown(rows, options.plain, options.exact)
    print(text)
    if options.write:
        write(PAGE, text)
    kept = all(cell.kept for _, cells in rows for cell in cells)
    if not kept:
        print("Bold: more than was promised.", file=sys.stderr)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
