"""Workers that make steps of their own and average their weights (see local.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from drumbeat.errors import StateError
from drumbeat.state.format import State
from drumbeat.training import snapshots
from drumbeat.training.holdings import Holdings

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "local.py"
RUN = [sys.executable, "-m", "drumbeat", "run", "-n", "2", "--seed", "3"]


def run(folder: Path, kinds: list[str], *options: str) -> tuple[list[dict], str]:
    """What each worker has found, and what drumbeat said."""
    folder.mkdir()
    command = [*RUN, *options, "--run-dir", str(folder / "run"), str(SCRIPT), str(folder), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("?.json"))], text


def test_steps_of_workers_own(tmp_path: Path) -> None:
    found, text = run(tmp_path / "a", ["averaged_in_every_step", "outer_steps", "learns"])
    for of_worker in found:
        in_every_step = of_worker["averaged_in_every_step"]
        assert in_every_step["gap"] < 1e-5
        np.testing.assert_allclose(*in_every_step["losses"], rtol=1e-5)
    assert found[0]["averaged_in_every_step"] == found[1]["averaged_in_every_step"]
    check_outer_steps([each["outer_steps"] for each in found])
    assert text.count("average their weights after every 2 steps") == 1
    assert "average their weights after every 8" not in text  # that was a fit
    sync, local = found[0]["learns"]["sync"], found[0]["learns"]["local"]
    assert local["accuracy"] > sync["accuracy"] - 0.02
    # 8 epochs of 14 steps.
    assert (sync["sums"] - local["sums"], sync["averages"]) == (8 * 14, 0)
    assert local["averages"] == 8 * 2
    assert local["weights"] == found[1]["learns"]["local"]["weights"] != sync["weights"]
    assert local["optimizer"] != found[1]["learns"]["local"]["optimizer"]


def check_outer_steps(found: list[dict]) -> None:
    """Rounds of two steps, each worker's of another length, and one that was ended early."""
    pull, rate, momentum, weight, kept = np.array([1.0, 2.0, 3.0]), 0.5, 0.75, np.ones(3), 0.0
    for round_ in range(3):
        steps = 1 if round_ == 2 else 2
        for rank in range(2):
            own = [weight - 0.1 * (rank + 1) * pull * (step + 1) for step in range(steps)]
            np.testing.assert_allclose(found[rank]["seen"][2 * round_], own[0], rtol=1e-5)
        way = 0.1 * 1.5 * pull * steps
        kept = momentum * kept + way
        weight = weight - rate * (way + momentum * kept)
        for each in found:
            np.testing.assert_allclose(each["seen"][2 * round_ + 1], weight, rtol=1e-5, atol=1e-6)
    assert [each["steps"] for each in found] == [5, 5]


@pytest.mark.parametrize(
    ("settings", "workers", "told"),
    [
        ("8 nesterov:0.7,0.9", 2, "sync_every and outer: 8 nesterov:0.7,0.9"),
        ("8", 2, "now it is one in which they sum gradients"),
    ],
)
def test_a_state_is_for_the_same_training(settings: str, workers: int, told: str) -> None:
    state = State(3, {"averaged": ["", settings], "workers": workers, "paths": []}, {})
    with pytest.raises(StateError, match=re.escape(told)):
        snapshots.put_back(state, Holdings(), rank=0, size=2)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "alike"), [("killed", "weights"), ("killed_loop", "alike")])
def test_a_killed_training_comes_to_the_same(tmp_path: Path, kind: str, alike: str) -> None:
    """Before the first snapshot, within a round, and between two epochs."""
    undisturbed, _ = run(tmp_path / "undisturbed", [kind], "--snapshot-every", "0")
    faults = [("1", "3"), ("0", "15"), ("1", "17")]
    inject = [f"--inject=kill:rank={rank},step={step}" for rank, step in faults]
    found, text = run(tmp_path / "killed", [kind], "--snapshot-every", "4", *inject)
    assert "after 3 restarts" in text, text[-4000:]
    assert found == undisturbed
    first, second = (each[kind] for each in found)
    assert first[alike] == second[alike]
    own = "optimizer" if kind == "killed" else "own"
    assert first[own] != second[own]


@pytest.mark.slow
def test_it_learns_in_all_ways(tmp_path: Path) -> None:
    found, _ = run(tmp_path / "a", ["learns_with_outer", "refused"])
    first, second = (each["learns_with_outer"] for each in found)
    for name, of_worker in first.items():
        assert of_worker["accuracy"] > 0.93, name
        assert of_worker["weights"] == second[name]["weights"], name
    for name in ("several at once", "eager"):
        assert first[name]["weights"] == first["local"]["weights"], name
    assert all("synchronized=True" in each["refused"] for each in found)
