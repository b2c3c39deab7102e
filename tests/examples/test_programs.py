"""The example programs run alone, as any Python script, and unchanged on two and three workers."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE_S = 200
EPOCHS = 3
# Far above chance (0.1), far below what so few epochs reach (0.93 and more).
LEARNED = 0.85

PROGRAMS = {
    "numpy": ("mnist_three_ways.py", "--way", "numpy"),
    "dataset": ("mnist_three_ways.py", "--way", "dataset"),
    "strategy": ("mnist_three_ways.py", "--way", "strategy"),
    "multi_worker": ("multi_worker.py",),
    "custom_loop": ("custom_loop.py",),
    "demo": ("demo.py",),
}
MODELS = {
    "numpy": "numpy.keras",
    "dataset": "dataset.keras",
    "strategy": "strategy.keras",
    "multi_worker": "model.keras",
    "custom_loop": "checkpoints/checkpoint",
    "demo": "model.keras",
}


def run_example(
    folder: Path, name: str, *, workers: int, epochs: int = EPOCHS
) -> subprocess.CompletedProcess[str]:
    (folder / "scratch").mkdir(exist_ok=True)
    script, *options = PROGRAMS[name]
    script_line = [str(EXAMPLES / script), *options, "--epochs", str(epochs)]
    start = ["-m", "drumbeat", "run", "-n", str(workers), "--run-dir", str(folder / "run"), "--"]
    command = [sys.executable, *(start if workers > 1 else []), *script_line]
    env = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    if workers == 1:
        env |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    return subprocess.run(
        [*command, "--model-dir", str(folder / "out")],
        cwd=folder,
        env=env | {"TMPDIR": str(folder / "scratch"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def accuracies_in(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"test accuracy\W+([01]\.\d{4})", output)]


# The demo and multi_worker on two workers have tests of their own below.
@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param("dataset", 2, id="dataset-2"),
        *[
            pytest.param(
                "multi_worker", workers, id=f"multi_worker-{workers}", marks=pytest.mark.slow
            )
            for workers in (1, 3)
        ],
        *[
            pytest.param(name, workers, id=f"{name}-{workers}-slow", marks=pytest.mark.slow)
            for name in PROGRAMS
            if name != "multi_worker"
            for workers in (1, 2, 3)
        ],
    ],
)
def test_example_learns_and_saves(tmp_path: Path, name: str, workers: int) -> None:
    done = run_example(tmp_path, name, workers=workers)
    check_learned(done)
    assert (tmp_path / "out" / MODELS[name]).is_file()


def check_learned(done: subprocess.CompletedProcess[str], at_least: float = LEARNED) -> None:
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    accuracies = accuracies_in(output)
    assert accuracies, output
    assert len(set(accuracies)) == 1, "workers disagree:\n" + output
    assert accuracies[0] >= at_least


def test_prediction_is_whole_and_in_order_on_every_worker(tmp_path: Path) -> None:
    """The digits misread, counted from `predict`, are those that `evaluate` counted."""
    done = run_example(tmp_path, "multi_worker", workers=2)
    check_learned(done)
    lines = re.findall(
        r"(worker|chief) \d: .* accuracy ([01]\.\d+), (\d+) of (\d+) digits misread",
        done.stdout + done.stderr,
    )
    assert len(lines) == 2, done.stdout + done.stderr
    for _, accuracy, wrong, total in lines:
        assert total == "360"
        assert int(wrong) == round((1 - float(accuracy)) * 360)
    assert (tmp_path / "out" / MODELS["multi_worker"]).is_file()
    assert list((tmp_path / "scratch").glob("not-the-chief-*")) == []


@pytest.mark.slow
def test_custom_loop_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first = run_example(tmp_path, "custom_loop", workers=1, epochs=1)
    assert "epoch 1/1" in first.stdout
    second = run_example(tmp_path, "custom_loop", workers=2, epochs=2)
    check_learned(second)
    assert "epoch 2/2" in second.stdout
    assert "epoch 1/2" not in second.stdout


@pytest.mark.slow
def test_custom_loop_refuses_the_checkpoint_of_another_network(tmp_path: Path) -> None:
    write_other_checkpoint = (
        "import tensorflow as tf\n"
        "checkpoint = tf.train.Checkpoint(epochs_done=tf.Variable([1, 2], dtype=tf.int64))\n"
        "tf.train.CheckpointManager(checkpoint, 'out/checkpoints', max_to_keep=1).save()\n"
    )
    command = [sys.executable, "-c", write_other_checkpoint]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    done = run_example(tmp_path, "custom_loop", workers=1, epochs=1)
    assert done.returncode == 1
    assert "holds another network" in done.stderr
    assert "--model-dir" in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_reaches_its_accuracy_and_shows_where_things_are(tmp_path: Path) -> None:
    done = run_example(tmp_path, "demo", workers=2, epochs=15)
    check_learned(done, at_least=0.97)
    assert re.search(r"training speed\W+[\d,]+ examples/s", done.stdout + done.stderr)
    out = tmp_path / "out"
    for made in (out / "model.keras", out / "best.keras", out / "train.csv"):
        assert made.is_file()
    with (out / "train.csv").open() as file:
        assert [int(row["epoch"]) for row in csv.DictReader(file)] == list(range(15))
    assert list((out / "tensorboard").rglob("events.out.tfevents.*"))


def test_wrong_option_is_explained(tmp_path: Path) -> None:
    done = run_example(tmp_path, "numpy", workers=1, epochs=0)
    assert done.returncode == 2
    assert "'0' is not a whole number of 1 or more" in done.stderr
    assert "Traceback" not in done.stderr
