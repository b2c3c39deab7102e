"""Steps that XLA compiles: the same numbers, chosen once, and kept (see jitted.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumbeat.training import jit
from drumbeat.training.jit_record import Record, Times

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("jitted.py")
NEVER = float("inf")
DENSE = Times(first_s=0.8, plain_s=0.14)


def run(folder: Path, kind: str, *options: str) -> tuple[list[dict[str, Any]], str]:
    """What each worker wrote, and what drumbeat said."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "drumbeat", "run", "-n", "2", *options]
    command += ["--run-dir", str(folder / "run"), str(SCRIPT), str(folder), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("?.json"))], text


def assert_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["history"].keys() == expected["history"].keys()
    pairs = [(found["history"][name], value) for name, value in expected["history"].items()]
    for value, wanted in (*pairs, *zip(found["state"], expected["state"], strict=True)):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("many") / "out", "many")[0]


def assert_same_but_for_rounding(workers: list[dict[str, Any]]) -> None:
    on, off = workers[0]["on"], workers[0]["off"]
    assert (on["compiled"], off["compiled"]) == (True, False)
    assert_close(on, off)
    assert on["state"] != off["state"]  # or else nothing was compiled
    assert workers[1]["on"]["state"] == on["state"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "words"])
def test_compiled_steps_compute_the_same(many: list[dict[str, Any]], name: str) -> None:
    assert_same_but_for_rounding([worker[name] for worker in many])
    assert many[0]["said"] == []


@pytest.mark.slow
def test_convolutions_are_compiled_only_when_asked_for(tmp_path: Path) -> None:
    workers, _ = run(tmp_path / "out", "convolution")
    assert_same_but_for_rounding(workers)
    assert workers[0]["auto"] == workers[0]["off"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own_step", "its train_step is its own"),
        ("normal_noise", "XLA draws other random numbers (StatelessRandomNormalV2)"),
    ],
)
def test_what_cant_be_compiled_is_not_and_that_is_said_once(
    many: list[dict[str, Any]], name: str, reason: str
) -> None:
    for worker, expected in zip(many, ([reason], []), strict=True):
        assert not worker[name]["compiled"]
        assert worker[name]["said"] == [
            f"XLA doesn't compile the steps of this model: {each}." for each in expected
        ]


def test_auto_compiles_what_pays(many: list[dict[str, Any]]) -> None:
    for worker in many:
        assert worker["measured"] == worker["dense"]["on"]


def test_a_trial_leaves_no_trace(many: list[dict[str, Any]]) -> None:
    for worker in many:
        assert worker["traces"] == {"changed within": [True, True], "changed after": False}


@pytest.mark.parametrize(
    ("times", "steps", "tries", "compiles"),
    [
        pytest.param(DENSE, 1500, True, False, id="enough"),
        pytest.param(DENSE, 1400, False, False, id="compiling takes more than 2%"),
        pytest.param(Times(0.8, 0.14, 1.5, 0.11), 100, False, True, id="known"),
        pytest.param(Times(0.8, 0.14, 1.5, 0.11), 40, False, False, id="too few for one more"),
        pytest.param(Times(0.8, 0.14, 1.5, 0.12), 9**9, True, False, id="not faster by 15%"),
        pytest.param(Times(0.8, 0.14, NEVER, NEVER), 9**9, True, False, id="fails"),
        pytest.param(Times(NEVER, NEVER), 9**9, False, False, id="fails as it is"),
    ],
)
def test_rule(times: Times, steps: int, tries: bool, compiles: bool) -> None:
    assert (jit.may_pay(times, steps), jit.pays(times, steps)) == (tries, compiles)


def test_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, user, times = tmp_path / "a" / "job", tmp_path / "user", Times(1, 2, NEVER, NEVER)
    for attempt, known in ((1, None), (2, True)):
        monkeypatch.setattr(Record, "_chosen_here", {})  # another process
        record = Record(job, user, attempt)
        assert record.in_job("model") is known
        record.keep("model", True)
        assert record.in_job("model") is True
    record.keep("other", False)
    record.keep_for_user("model", times)
    assert (record.of_user("model"), record.of_user("other")) == (times, None)
    assert json.loads(job.read_text()) == {"model": True, "other": False}
    monkeypatch.setattr(Record, "_chosen_here", {})
    for text in ("", "[]", '{"model": 1}'):
        job.write_text(text)
        user.write_text(text)
        assert (record.in_job("model"), record.of_user("model")) == (None, None)
    Record.adopt({"model": False})  # from a snapshot
    assert record.in_job("model") is False
    assert Record.chosen() == {"model": False}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "option"), [("fit", "on"), ("chooses", "auto")])
def test_killed_trainings_come_to_the_same(tmp_path: Path, kind: str, option: str) -> None:
    options = ("--jit", option, "--seed", "3")
    undisturbed, _ = run(tmp_path / "undisturbed", kind, *options, "--snapshot-every", "0")
    inject = ["--inject=kill:rank=1,step=1", "--inject=kill:rank=0,step=5"]
    killed, text = run(tmp_path / "killed", kind, *options, "--snapshot-every", "2", *inject)
    assert "after 2 restarts" in text, text[-4000:]
    assert killed == undisturbed
    assert killed[0]["compiled"]
    assert killed[0]["state"] == killed[1]["state"]
