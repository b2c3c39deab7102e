"""Several devices in one process: what a script sees of them (see devices.py), and their names.

That whole trainings come to the same is among tests/training/test_parity.py.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.errors import ConfigError
from drumbeat.strategies.placement import checked, first_devices

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("devices.py")


def check_names() -> list[str]:
    functions = [n for n in ast.parse(SCRIPT.read_text()).body if isinstance(n, ast.FunctionDef)]
    return [n.name for n in functions if any(getattr(d, "id", "") for d in n.decorator_list)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("devices")
    command = [sys.executable, "-m", "drumbeat", "run", "--devices-per-worker", "3"]
    command += ["--run-dir", str(folder / "run"), str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    return re.sub(r"^\[worker 0\] ?", "", done.stdout + done.stderr, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", check_names())
def test_several_devices_in_one_process(said: str, name: str) -> None:
    assert f"{name}: ok" in said.splitlines(), said[said.find(f"{name}:") :][:4000]


@pytest.mark.parametrize("given", [["GPU:7"], ["CPU:0", "/cpu:0"], ["nonsense/:"], []])
def test_devices_that_are_none(given: list[str]) -> None:
    with pytest.raises(ConfigError, match="/device:CPU:0.*each once"):
        checked(given)


def test_names_of_devices() -> None:
    assert checked(["/cpu:0"]) == checked(["CPU:0"]) == ("/device:CPU:0",)
    assert first_devices(1) == ()
    with pytest.raises(ConfigError, match="was to train on 9 devices, but this process has"):
        first_devices(9)
