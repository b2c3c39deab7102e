"""Trainings with compressed gradients (see compressed.py): killed, resized, and how they learn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from drumbeat.collectives.compression import residuals
from drumbeat.collectives.compression.residuals import Owner
from drumbeat.state.format import State, pack
from drumbeat.training import holdings, snapshots
from drumbeat.training.holdings import Kind
from drumbeat.training.resizing import names_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "compressed.py"
RUN = [sys.executable, "-m", "drumbeat", "run", "-n", "2"]


def run(folder: Path, *options: str, seed: int = 1, epochs: int = 3) -> tuple[list[dict], str]:
    """What each worker wrote, and what drumbeat said."""
    folder.mkdir()
    command = [*RUN, *options, "--seed", "3", "--run-dir", str(folder / "run")]
    command += [str(SCRIPT), str(folder), str(seed), str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("?.json"))], text


def killed(folder: Path, *options: str) -> tuple[list[dict], str]:
    """The same with a kill before the first snapshot, one in an epoch and one at its end."""
    faults = [("1", "3"), ("0", "21"), ("1", "28")]
    inject = [f"--inject=kill:rank={rank},step={step}" for rank, step in faults]
    found, text = run(folder, *options, "--snapshot-every", "8", *inject)
    assert "after 3 restarts" in text, text[-4000:]
    return found, text


@pytest.mark.slow
@pytest.mark.parametrize("method", ["int8", "powersgd:1", "topk:0.05"])
def test_killed_trainings_come_to_the_same(tmp_path: Path, method: str) -> None:
    options = ("--compress", method)
    undisturbed, _ = run(tmp_path / "undisturbed", *options, "--snapshot-every", "0")
    assert undisturbed[0] == undisturbed[1]
    assert killed(tmp_path / "killed", *options)[0] == undisturbed


@pytest.mark.slow
def test_auto_keeps_to_its_choice_in_all_attempts(tmp_path: Path) -> None:
    found, text = killed(tmp_path / "killed", "--compress", "auto")
    assert len(re.findall("--compress auto: the sum of .* MB of gradients takes", text)) == 1
    (method,) = json.loads((tmp_path / "killed/run/compression.json").read_text()).values()
    options = ("--compress", method, "--snapshot-every", "0")
    assert found == run(tmp_path / "undisturbed", *options)[0]


@pytest.mark.slow
def test_it_learns_as_well_as_without(tmp_path: Path) -> None:
    """Over three seeds, the mean accuracy differs by no more than the seeds do."""
    accuracies = {
        method: [
            run(tmp_path / f"{method}-{seed}", "--compress", method, seed=seed, epochs=12)[0][0][
                "accuracy"
            ]
            for seed in range(3)
        ]
        for method in ("none", "bf16", "int8", "powersgd:4", "topk:0.05")
    }
    usual = accuracies.pop("none")
    assert np.mean(usual) > 0.93
    for method, found in accuracies.items():
        assert np.mean(found) > min(usual) - 0.01, (method, found, usual)


class Plain:
    """What a phase would hold of a training: an optimizer with residuals."""

    def __init__(self) -> None:
        self.weight = tf.Variable(tf.zeros([3, 4]))
        self.optimizer = keras.optimizers.SGD()
        self.optimizer.build([keras.Variable(np.zeros([3, 4], "float32"), name="w")])

    @property
    def holdings(self) -> holdings.Holdings:
        return holdings.of([self.optimizer])


def taken(values: list[float]) -> tuple[State, Plain]:
    """A state of as many workers as `values`, each of which owes that in each element."""
    plain = Plain()
    group = residuals.group(Owner(plain.optimizer, ("w", "b")), [0, 1], [(3, 4), (2,)])
    group.use("powersgd:1")
    group.factor("factor of w", np.full([4, 1], 7, np.float32))
    held = plain.holdings
    names = names_of(held.held)
    own = [
        {
            name: np.full_like(each.view, value)
            for each, name in zip(held.held, names, strict=True)
            if each.path == "residual of w"
        }
        for value in values
    ]
    arrays = {
        name: each.view.copy()
        for each, name in zip(held.held, names, strict=True)
        if each.path != "residual of w"
    }
    arrays |= {
        f"own{r}": np.frombuffer(pack(State(3, {}, each)), np.uint8) for r, each in enumerate(own)
    }
    meta = {
        "paths": [each.path for each in held.mains],
        "trained": [[]],
        "compressed": [[group.to_json()]],
        "workers": len(values),
        "shards": 1,
        "units": [1] * len(values),
    }
    return State(3, meta, arrays), plain


@pytest.mark.parametrize(("size", "expected"), [(2, [3.0, 5.0]), (1, [8.0]), (4, [2.0] * 4)])
def test_another_number_of_workers_owes_as_much_together(size: int, expected: list[float]) -> None:
    state, _ = taken([3.0, 5.0])
    for rank in range(size):
        plain = Plain()
        assert not [each for each in plain.holdings.held if each.kind is Kind.RESIDUAL]
        assert snapshots.build_optimizers(state, plain.holdings)
        snapshots.put_back(state, plain.holdings, rank, size)
        (group,) = residuals.groups_of(plain.optimizer)
        assert (group.method, group.names) == ("powersgd:1", ("w", "b"))
        weight, bias, factor = [memory.array for memory in group.memories]
        np.testing.assert_array_equal(weight, np.full([3, 4], expected[rank]))
        np.testing.assert_array_equal(bias, np.zeros([2]))
        np.testing.assert_array_equal(factor, np.full([4, 1], 7))
