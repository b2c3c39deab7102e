"""Trainings that are killed and go on: the same bytes as without (see resumed.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "resumed.py"
RUN = [sys.executable, "-m", "drumbeat", "run"]
STEPS = 40


def run(folder: Path, names: list[str], *options: str) -> tuple[list[dict], str]:
    """What each worker wrote, and what drumbeat said."""
    folder.mkdir()
    command = [*RUN, *options, "--seed", "3", "--run-dir", str(folder / "run")]
    command += [str(SCRIPT), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("?.json"))], text


def restarts(text: str) -> int:
    found = re.search(r"after (\d+) restart", text)
    return int(found[1]) if found else 0


def kill(rank: int, step: int) -> list[str]:
    return ["--inject", f"kill:rank={rank},step={step}"]


def check(
    tmp_path: Path, names: list[str], workers: int, kills: list[tuple[int, int]], *given: str
) -> None:
    size = ["-n", str(workers), *given]
    undisturbed, _ = run(tmp_path / "undisturbed", names, *size, "--snapshot-every", "0")
    options = [option for rank, step in kills for option in kill(rank, step)]
    disturbed, text = run(tmp_path / "disturbed", names, *size, "--snapshot-every", "4", *options)
    assert restarts(text) == len(kills), text[-4000:]
    assert disturbed == undisturbed


def test_killed_trainings_come_to_the_same(tmp_path: Path) -> None:
    # In the middle of an epoch, at its end, before the first snapshot and right behind one.
    kills = [(1, 17), (0, STEPS + 20), (1, 2 * STEPS + 2), (0, 3 * STEPS - 10 + 25)]
    check(tmp_path, ["arrays", "patience", "endless", "loop"], 2, kills)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "workers", "kills"),
    [
        (
            ["many_short", "unknown_length", "cached", "several_steps_at_once"],
            2,
            [(0, 33), (1, STEPS + 27), (0, 2 * STEPS + 33), (1, 3 * STEPS + 24)],
        ),
        (["mapped", "mapped"], 2, [(0, 7), (1, 13), (0, 36), (1, STEPS + 33)]),
        (
            ["eager", "accumulated_in_half_precision", "python_dataset"],
            2,
            [(0, 33), (1, STEPS + 27), (0, 2 * STEPS + 33)],
        ),
        (
            ["plain_lazy", "plain_two_networks", "arrays", "patience", "loop"],
            1,
            [(0, 17), (0, STEPS + 27), (0, 2 * STEPS + 1), (0, 3 * STEPS + 9), (0, 4 * STEPS)],
        ),
    ],
)
def test_more_kinds(
    tmp_path: Path, names: list[str], workers: int, kills: list[tuple[int, int]]
) -> None:
    check(tmp_path, names, workers, kills)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (1, ("--strategy", "mirrored", "--devices-per-worker", "2")),
        (2, ("--devices-per-worker", "2", "--processes-per-node", "2")),
    ],
)
def test_several_devices_in_a_process(
    tmp_path: Path, workers: int, options: tuple[str, ...]
) -> None:
    kills = [(workers - 1, 17), (0, STEPS + 27)]
    check(tmp_path, ["arrays", "loop", "eager"], workers, kills, *options)


@pytest.mark.slow
def test_it_goes_on_with_other_devices(tmp_path: Path) -> None:
    folder = ["--backup-dir", str(tmp_path / "backups"), "--backup-every", "0.05"]
    on_two = ["--strategy", "mirrored", "--devices-per-worker", "2"]
    command = [*RUN, *on_two, *folder, "--max-restarts", "0", *kill(0, STEPS + 30)]
    command += ["--run-dir", str(tmp_path / "killed"), str(SCRIPT), str(tmp_path), "arrays"]
    killed = subprocess.run([*command, "endless"], capture_output=True, timeout=300)
    assert killed.returncode
    _, text = run(tmp_path / "on", ["arrays", "endless"], *folder)
    assert re.search(r"Going on from step \d+", text)


@pytest.mark.slow
def test_exact_mode(tmp_path: Path) -> None:
    names = ["arrays", "mapped"]
    one, _ = run(tmp_path / "one", names, "-n", "1", "--exact-shards", "4")
    options = ["-n", "2", "--exact-shards", "4", "--snapshot-every", "4"]
    two, text = run(tmp_path / "two", names, *options, *kill(1, 17), *kill(0, STEPS + 7))
    assert restarts(text) == 2
    for worker in (*one, *two):
        del worker["arrays"]["noted"]  # its own
    assert two[0] == two[1] == one[0]


@pytest.mark.slow
def test_a_weight_that_changes_by_itself(tmp_path: Path) -> None:
    undisturbed, _ = run(tmp_path / "undisturbed", ["arrays"], "-n", "2")
    found, text = run(tmp_path / "flipped", ["bad_memory"], "-n", "2", "--snapshot-every", "2")
    assert restarts(text) == 1
    assert re.search(r"no longer have the same weights: \S+/kernel .* on worker 1\.", text)
    assert found[0]["bad_memory"]["weights"] == undisturbed[0]["arrays"]["weights"]
