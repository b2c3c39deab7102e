"""Names of old on Keras 3: each is used as scripts do (legacy_checks.py), and tells of itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.legacy_names import table

CHECKS = Path(__file__).with_name("legacy_checks.py")
NAMES = re.findall(r"^@check\ndef (\w+)", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    """What each check said, and what was written to stderr."""
    folder = tmp_path_factory.mktemp("legacy")
    command = [sys.executable, str(CHECKS), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_it_works(outcome: tuple[dict[str, str], str], name: str) -> None:
    assert not outcome[0][name], outcome[0][name]


def test_each_notice_is_shown_once_with_its_line(outcome: tuple[dict[str, str], str]) -> None:
    said = [line for line in outcome[1].splitlines() if " is gone since " in line]
    assert all("legacy_checks.py, line " in line for line in said), said
    assert len({line.partition(" is gone")[0] for line in said}) == len(said)
    # The rest of the table is the same code with another name in it.
    assert len(said) >= 30


def test_the_table_has_each_name_once() -> None:
    names = [old.name for old in table()]
    assert len(names) == len(set(names))
    assert all(old.now and old.write and old.since for old in table())
