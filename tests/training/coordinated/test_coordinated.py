"""Keras's `fit`, `evaluate` and `predict` with parameter servers (see served.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parent / "served.py"
EXAMPLE = Path(__file__).parents[3] / "examples" / "wide_and_deep.py"
RUN = [sys.executable, "-m", "drumbeat", "run", "--seed", "3"]


def run(folder: Path, names: list[str], *options: str) -> tuple[dict[str, Any], str]:
    """What was found by each name, and what drumbeat said."""
    command = [*RUN, *options, "--run-dir", str(folder / "run"), str(SCRIPT), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in names}, text


def check_as_alone(found: dict[str, Any]) -> None:
    """With one worker, what comes out is what Keras alone comes to."""
    for what in ("weights", "optimizer", "history", "evaluated", "predicted"):
        assert found[what] < 1e-4, found
    assert found["keys"]
    tasks = [[device.partition("/task:")[2][0] for device in each] for each in found["devices"]]
    assert sorted(tasks[0]) == ["0", "1"]
    assert all(each == tasks[0] for each in tasks), "slots are beside the parts that they are of"


@pytest.mark.slow
def test_one_worker_is_keras_alone_whatever_dies(tmp_path: Path) -> None:
    """A ps, and with it the variables: Keras alone has made 14 steps, the served model 10."""
    options = ["--snapshot-every", "5", "--inject", "kill:rank=2,step=24"]
    found, text = run(tmp_path, ["sparse", "clipped"], "-n", "1", "--ps", "2", *options)
    check_as_alone(found["sparse"])
    check_as_alone(found["clipped"])
    assert "ps 0 on" in text
    assert "from the last snapshot (step 20) (attempt 2)" in text


@pytest.mark.slow
def test_more_kinds_on_one_worker(tmp_path: Path) -> None:
    found, _ = run(tmp_path, ["scaled", "accumulated", "saved"], "-n", "1", "--ps", "2")
    check_as_alone(found["scaled"])
    check_as_alone(found["accumulated"])
    saved = found["saved"]
    assert (saved["loaded"], saved["restored"], saved["whole"]) == (0.0, 0.0, [501, 8])


@pytest.mark.slow
def test_two_workers(tmp_path: Path) -> None:
    names = ["counted", "functions", "told", "mixed", "wrong"]
    found, _ = run(tmp_path, names, "-n", "2", "--ps", "1")
    counted = found["counted"]
    assert (counted["updates"], counted["rows"]) == (4 * 31, 310)
    assert counted["losses"][-1] < 0.7 * counted["losses"][0]
    assert len(counted["staleness"]) == 4
    assert all(0 <= late < 4 for late in counted["staleness"])
    assert sum(counted["staleness"]) > 0
    assert "/job:ps" in counted["device"]
    functions = found["functions"]
    assert functions["seen"] == [[2, 0], [2, 1]]
    # 155 rows on each worker: 16 batches.
    assert functions["updates"] == [64, 96, 102]
    assert functions["tested"][0] == pytest.approx(functions["tested"][1], rel=1e-4)
    assert "Give steps_per_epoch" in functions["refused"][0]
    assert "returned int; expected a tf.data.Dataset" in functions["refused"][1]
    told = found["told"]
    ten = [[["begin", n], ["end", n, ["accuracy", "loss"]]] for n in range(10)]
    assert told["seen"] == [each for pair in ten for each in pair]
    assert told["keys"] == ["accuracy", "learning_rate", "loss", "val_accuracy", "val_loss"]
    assert told["saved"]
    assert told["rate"] == pytest.approx(0.005)
    # Those under way when it was stopped are finished.
    assert 10 <= told["updates"] <= 13
    assert found["mixed"]["losses"][-1] < found["mixed"]["losses"][0]
    assert "/job:ps" in found["mixed"]["scale"]
    assert "A step failed on worker" in found["wrong"]["message"]
    assert "row numbers outside of the table's 501 rows" in found["wrong"]["message"].replace(
        "\\", ""
    )
    assert len(found["wrong"]["message"]) < 300
    assert found["wrong"]["losses"][0] < 10


@pytest.mark.slow
def test_wide_and_deep_reaches_the_same_loss_though_a_worker_dies(tmp_path: Path) -> None:
    losses = []
    kill = ["--inject", "kill:rank=1,step=60"]
    small = ["--rows", "60000", "--epochs", "2"]
    for number, options in enumerate(
        (["-n", "1", "--ps", "1", "--evaluator"], ["-n", "2", "--ps", "2", *kill])
    ):
        folder = str(tmp_path / str(number))
        command = [*RUN, *options, "--run-dir", folder, str(EXAMPLE), *small]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        if not number:
            # The chief's own validation has the same rows.
            last = done.stdout.rpartition("Evaluation after epoch 2: ")[2].splitlines()[0]
            assert float(last.rpartition("loss ")[2]) == pytest.approx(
                float(done.stdout.rpartition("val_loss: ")[2].split()[0]), abs=2e-4
            )
        losses.append(float(done.stdout.rpartition("validation loss: ")[2].split()[0]))
    assert "It is started again; the others go on." in done.stdout
    assert "/job:ps/replica:0/task:1" in done.stdout
    assert losses[1] == pytest.approx(losses[0], abs=0.03)
    assert losses[1] < 0.5
