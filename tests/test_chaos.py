"""`make chaos` in short, and that it finds what it looks for."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "chaos.py"
# A snapshot is damaged, the chief is killed, runs out of memory and crashes, in both of two fits.
SHORT = ["--faults", "4", "--seed", "159", "--shapes", "2", "--epochs", "2", "1"]


def chaos(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
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
def test_what_is_killed_and_damaged_at_random_leaves_no_trace(tmp_path: Path) -> None:
    done = chaos(*SHORT, "--out", str(tmp_path / "out"), timeout_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith("4 of 4 faults survived in 1 jobs, seed 159"), verdict
    assert "every job ended with the bytes of the undisturbed one" in verdict
    assert [f"| {kind} | 1 |" in done.stdout for kind in ("kill", "oom", "corrupt-snapshot")] == [
        True
    ] * 3


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(3600)
def test_chaos(tmp_path: Path) -> None:
    done = chaos("--seed", "1", "--out", str(tmp_path / "out"), timeout_s=3500)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("chaos_check")


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([(1, (0, 1)), (2, (2, 3))], []),
        # The second step was thrown away, and made again.
        ([(1, (0, 1)), (2, (3, 1)), (2, (2, 3))], []),
        ([(1, (0, 1)), (2, (2, 3)), (2, (3, 1))], ["epoch 1: not once each"]),
        ([(1, (0, 1)), (2, (2,))], ["epoch 1: not once each"]),
        ([(1, (0, 1)), (2, (2, 3)), (3, (0, 1))], ["epoch 2: not once each"]),
    ],
)
def test_an_example_that_was_not_trained_once_is_found(
    check: Any, steps: list[tuple[int, tuple[int, ...]]], found: list[str]
) -> None:
    made = [check.Made(step, float(k), 1, ids) for k, (step, ids) in enumerate(steps)]
    assert check.not_once([made], steps_per_epoch=2, examples=4) == found


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ('{"weights": "a", "history": [1]}', []),
        ('{"weights": "b", "history": [1]}', ["rank 0: other weights"]),
        ("", ["rank 0: other weights, history"]),
    ],
)
def test_a_result_that_differs_is_found(
    check: Any, tmp_path: Path, result: str, found: list[str]
) -> None:
    jobs = importlib.import_module("chaos_jobs")
    folders = [tmp_path / name for name in ("disturbed", "undisturbed")]
    for folder, text in zip(folders, (result, '{"weights": "a", "history": [1]}'), strict=True):
        folder.mkdir()
        if text:
            (folder / "result-0.json").write_text(text)
    ended = [jobs.Ended(folder=folder) for folder in folders]
    made = [[check.Made(1, 0.0, 1, (0,))]]
    assert check.differences(*ended, made, made) == found
