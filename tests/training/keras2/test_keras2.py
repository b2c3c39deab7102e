"""Models of tf_keras on 1 and 2 workers: the same curve and the same files (see scenarios.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
RUN = [sys.executable, "-m", "drumbeat", "run"]
# Rounding only: the rows of a batch are summed in another order.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
QUICK = ("arrays", "rows_for_some", "a_step_is_one_collective", "files")
OTHERS = (
    "clipped_and_weighted",
    "custom_loop",
    "folders",
    "masked_sequences",
    "on_batch",
    "own_train_step",
    "stopping",
)
NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


def run(script: str, folder: Path, names: list[str], *options: str) -> str:
    command = [*RUN, *options, "--run-dir", str(folder / "run"), str(HERE / script), str(folder)]
    done = subprocess.run(
        [*command, *names], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with what each scenario returned on each worker of 1 and of 2."""
    folder = tmp_path_factory.mktemp("keras2")
    wanted = {item.callspec.params.get("name") for item in request.session.items if _has(item)}
    names = [name for name in (*QUICK, *OTHERS) if name in wanted]
    for size in (1, 2):
        run("scenarios.py", folder, names, "-n", str(size), "--max-restarts", "0")
    return folder


def _has(item: pytest.Item) -> bool:
    return hasattr(item, "callspec") and Path(item.path) == Path(__file__)


def load(folder: Path, name: str, size: int, rank: int) -> dict[str, np.ndarray]:
    trouble = folder / f"{name}.{size}.{rank}.txt"
    assert not trouble.exists(), trouble.read_text()
    with np.load(folder / f"{name}.{size}.{rank}.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("name", NAMES)
def test_two_workers_train_as_one(outcomes: Path, name: str) -> None:
    one, chief, other = (load(outcomes, name, *who) for who in ((1, 0), (2, 0), (2, 1)))
    assert one.keys() == chief.keys() == other.keys()
    for key in one:
        if key.startswith("own_"):
            continue
        np.testing.assert_array_equal(chief[key], other[key], err_msg=key)
        if one[key].dtype.kind == "f":
            np.testing.assert_allclose(chief[key], one[key], err_msg=key, **TOLERANCE)
        else:
            np.testing.assert_array_equal(chief[key], one[key], err_msg=key)
    if "loaded" in one:
        for loaded in chief["loaded"]:
            np.testing.assert_allclose(loaded, chief["original"], **TOLERANCE)
    if "epochs" in one:
        assert chief["epochs"].tolist() == [2]
    if "own_largest" in one:
        assert max(chief["own_largest"], other["own_largest"]) <= 1
    if "own_more" in one:
        # Four steps more are four sums of gradients more.
        assert (one["own_more"], chief["own_more"]) == (0, 4)
        assert "stop_training" not in chief["own_in_steps"]


def test_killed_trainings_come_to_the_same(tmp_path: Path) -> None:
    names = ["pipelines", "arrays", "several_steps_at_once"]
    options = ["--keras", "2", "-n", "2", "--seed", "3"]
    # Within an epoch, right behind the first step of a fit, at its end, among steps made at once.
    kills = [(1, 8), (0, 21), (1, 40), (0, 47)]
    injected = [o for r, s in kills for o in ("--inject", f"kill:rank={r},step={s}")]
    found = []
    for kind, more in (("plain", ["--snapshot-every", "0"]), ("killed", ["--snapshot-every", "3"])):
        folder = tmp_path / kind
        folder.mkdir()
        text = run("resumed.py", folder, names, *options, *more, *(injected * (kind == "killed")))
        found.append([json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)])
    assert re.search(rf"after {len(kills)} restart", text), text[-4000:]
    assert found[0] == found[1]


@pytest.mark.parametrize("options", [("--exact",), ("--sync-every", "4"), ("--jit", "on")])
def test_what_is_for_keras_3_is_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    command = [*RUN, "-n", "2", *options, "--run-dir", str(tmp_path / "run")]
    command += [str(HERE / "scenarios.py"), str(tmp_path), "arrays"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode
    assert "A model of Keras 2 (tf_keras) is to be trained with" in done.stdout + done.stderr
