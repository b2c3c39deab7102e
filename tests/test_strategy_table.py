"""`make strategy-table` in short: what is called a yes, and how the rest is told."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "strategy_table.py"
spec = importlib.util.spec_from_file_location("strategy_table", SCRIPT)
assert spec is not None
assert spec.loader is not None
table = importlib.util.module_from_spec(spec)
sys.modules["strategy_table"] = table
spec.loader.exec_module(table)
Result = table.Result
ONE = Result(found={"loss": 0.5, "weights": [1.0, 0.5, -2.0]})


@pytest.mark.parametrize(
    ("row", "cell", "found", "expected"),
    [
        ("mirrored", "fit", {"loss": 0.50001, "weights": [1.0, 0.5, -2.0001]}, ""),
        (
            "mirrored",
            "fit",
            {"loss": 0.51, "weights": [1.0, 0.5, -2.0]},
            "loss 0.51, on one device 0.5",
        ),
        ("mirrored", "fit", {"loss": 0.5, "weights": [1.2, 0.5, -2.0]}, "weights differ .* by 0.1"),
        ("mirrored", "fit", {"loss": float("nan"), "weights": [1.0, 0.5, -2.0]}, "loss nan"),
        ("mirrored", "fit", {"loss": 0.5, "weights": [1.0]}, "1 numbers, on one device 3"),
        ("mirrored", "mixed-precision", {"loss": 0.505}, ""),
        ("parameter-server", "fit", {"loss": 0.6, "weights": [0.0, 0.0, 0.0]}, ""),
        ("parameter-server", "fit", {"loss": 0.9, "weights": [1.0, 0.5, -2.0]}, "loss 0.9"),
        ("mirrored", "fit", None, "ValueError: no"),
    ],
)
def test_yes_is_what_gave_the_numbers_of_one_device(row, cell, found, expected) -> None:
    reason = table.compare(row, cell, Result(found=found, reason="ValueError: no"), ONE)
    assert re.search(expected, reason) if expected else not reason


def test_predictions_of_parameter_servers_have_to_be_the_same() -> None:
    one = Result(found={"exact": [1.0, 2.0, 3.0]})
    other = Result(found={"exact": [1.0, 2.0, 3.1]})
    assert "exact differ" in table.compare("parameter-server", "predict", other, one)


def test_reasons_become_footnotes_with_what_is_known_upstream() -> None:
    perreplica = table.short("ValueError", "Attempt to convert a value (PerReplica:{\n  0: …")
    found = {
        table.ALONE: {"multi-worker": {"fit": perreplica, "uneven-data": perreplica}},
        table.DRUMBEAT: {"multi-worker": {"fit": "", "uneven-data": "loss 2, on one device 1"}},
    }
    lines = table.markdown(found).splitlines()
    assert lines[0] == "|  |  | fit | uneven data |"
    assert lines[2] == "| multi-worker | Keras 3 alone | no (1) | no (1) |"
    assert lines[3] == "|  | with drumbeat | yes | no (2) |"
    assert lines[5].startswith("1. ValueError: Attempt to convert a value (PerReplica:{ 0: …")
    assert lines[5].endswith("[keras#20585](https://github.com/keras-team/keras/issues/20585)")
    assert lines[6] == "2. loss 2, on one device 1"


def test_the_docs_have_the_whole_table() -> None:
    text = table.PAGE.read_text().split(table.BEGIN)[1].split(table.END)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [line.split("|")[1].strip() for line in lines[::2]] == list(table.ROWS)
    issues = set(re.findall(r"^(\d+)\. .*\]\(https", text, re.M))
    for line in lines[1::2]:
        cells = [cell.strip() for cell in line.split("|")[3:-1]]
        assert len(cells) == len(table.CELLS)
        assert set(re.findall(r"no \((\d+)\)", line)) <= issues
        assert all(cell == "yes" or cell.startswith("no (") for cell in cells)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_two_cells_are_run() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rows", "mirrored", "--cells", "uneven-data,restart"],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| mirrored | Keras 3 alone | no (1) | yes |" in done.stdout
    assert "|  | with drumbeat | yes | yes |" in done.stdout
