from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_python.py"


@pytest.mark.parametrize(
    ("version", "fine"),
    [((2, 7), False), ((3, 9), False), ((3, 10), True), ((3, 13), True), ((3, 14), False)],
)
def test_only_supported_pythons_pass(version: tuple[int, int], fine: bool) -> None:
    message = runpy.run_path(str(TOOL))["problem"](version)
    assert (message == "") == fine
    if not fine:
        assert "{}.{}".format(*version) in message
        assert "PYTHON=python3.13" in message
