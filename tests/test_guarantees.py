"""`make guarantees` in short, and what docs/guarantees.md says of the tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "guarantees.py"
PAGE = ROOT / "docs" / "guarantees.md"
# Too short a table to trust, but all steps of making one.
SHORT = ["--kinds", "dense", "transformer_dropout", "--rows", "267", "--epochs", "2"]
SHORT += ["--plain", "1", "2", "--exact", "1", "2", "--shards", "2"]


def run(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(300)
def test_short_table_of_guarantees() -> None:
    done = run(*SHORT, timeout_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if re.search(r"\d\.\de-\d\d", line)]
    assert [row.count("same bytes") for row in rows] == [1, 1], done.stdout


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(3600)
def test_whole_table_of_guarantees() -> None:
    done = run(timeout_s=3500)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_test_named_in_the_guarantees_exists() -> None:
    text = PAGE.read_text()
    paths = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    for path, name in paths:
        assert (ROOT / path).is_file(), path
        assert not name or name in functions_of(ROOT / path), f"{path}::{name}"
    assert len(paths) > 10


def test_every_promise_names_what_shows_it() -> None:
    promised = PAGE.read_text().split("\n## Promised\n")[1].split("\n## ")[0]
    cells = [row.split("|")[-2] for row in promised.splitlines() if row.startswith("|")]
    cells = [cell for cell in cells if cell.strip() not in ("shown by", "---")]
    scenarios = ROOT / "tests" / "training" / "scenarios.py"
    known = functions_of(scenarios) | optimizers_of(scenarios)
    for cell in cells:
        names = [name for name in re.findall(r"`([^`]+)`", cell) if not name.startswith("tests/")]
        assert set(names) <= known, cell
        assert names or "drawn" in cell or "`tests/" in cell, f"nothing shows it: {cell}"
    assert len(cells) > 20


def functions_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def optimizers_of(scenarios: Path) -> set[str]:
    """Scenarios that a table makes."""
    tables = [
        node.value
        for node in ast.parse(scenarios.read_text()).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "OPTIMIZERS"
    ]
    return {f"optimizer_{key.value}" for table in tables for key in table.keys}
