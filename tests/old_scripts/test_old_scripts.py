"""Each script here is one habit of TensorFlow 2.0 to 2.15; all run unmodified under drumbeat."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from drumbeat.porting.engine import port

FOLDER = Path(__file__).parent
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("test_"))
_WEIGHTS = re.compile(r"^weights (\[.*\])$", re.MULTILINE)
DEADLINE_S = 240
# What the last Keras 2 refuses as well: these were written for an earlier one.
NOT_ON_KERAS_2 = {
    "ai_platform_census": "a shape that is a string",
    "auto_shard_options": "decay=, gone since TensorFlow 2.11",
    "horovod_like": "predict_classes, gone since TensorFlow 2.6",
    "mixed_precision": "mixed_precision.experimental, gone since TensorFlow 2.9",
    "sagemaker_cifar": "decay=, gone since TensorFlow 2.11",
}

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 30)]


def weights_after(script: Path, workers: int, folder: Path, *options: str) -> list[str]:
    """Runs a script and returns what each worker printed of its weights at the end."""
    command = [sys.executable, "-m", "drumbeat", "run", "-n", str(workers), *options]
    command += ["--run-dir", "run", str(script)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [folder / "run" / f"worker-{rank}" / "output.log" for rank in range(workers)]
    found = [_WEIGHTS.findall(log.read_text(encoding="utf-8")) for log in logs]
    assert all(len(lines) == 1 for lines in found), found
    return [lines[0] for lines in found]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_runs_and_all_workers_end_alike(script: Path, workers: int, tmp_path: Path) -> None:
    weights = weights_after(script, workers, tmp_path)
    assert len(set(weights)) == 1, weights


@pytest.mark.parametrize(
    "script",
    [path for path in SCRIPTS if path.stem not in NOT_ON_KERAS_2],
    ids=lambda path: path.stem,
)
def test_it_runs_on_keras_2(script: Path, tmp_path: Path) -> None:
    weights = weights_after(script, 2, tmp_path, "--keras", "2")
    assert len(set(weights)) == 1, weights


@pytest.mark.timeout(2 * DEADLINE_S + 30)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_ported_it_trains_the_same_model(script: Path, tmp_path: Path) -> None:
    """`drumbeat port` leaves nothing that Keras 3 doesn't have, and no number changed."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    ported = after / script.name
    ported.write_text(port(script.read_text(encoding="utf-8")).text, encoding="utf-8")
    was = weights_after(script, 2, before, "--seed", "7")
    now = weights_after(ported, 2, after, "--seed", "7", "--strict-names")
    np.testing.assert_allclose(json.loads(now[0]), json.loads(was[0]), rtol=1e-5, atol=1e-6)


def test_there_are_enough_of_them() -> None:
    assert len(SCRIPTS) >= 20
