"""A job that has ended well, and what is started in the folder of its backups afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drumbeat.errors import ConfigError
from drumbeat.launch import ended
from drumbeat.state.backups import Backups, Content
from drumbeat.state.folders import open_folder
from drumbeat.state.manifest import About

SOURCE = Path(__file__).parents[2] / "src"


@dataclass
class Settings:
    command: str
    args: tuple[str, ...] = ("--epochs", "3")
    is_module: bool = False


@pytest.fixture
def settings(tmp_path: Path, monkeypatch) -> Any:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("fit()")
    Path("backups").mkdir()
    return Settings("train.py")


def test_the_same_job_may_come_again_and_another_one_not(tmp_path, settings):
    folder = open_folder(tmp_path / "backups")
    ended.check(folder, settings)
    ended.note(folder, settings)
    ended.check(folder, settings)
    other: Any = Settings("train.py", ("--epochs", "5"))
    with pytest.raises(ConfigError, match=r"'3'\] then, \['train.py', '--epochs', '5'\] now"):
        ended.check(folder, other)
    Path("train.py").write_text("fit(lr=0.5)")
    with pytest.raises(ConfigError, match="train.py has been edited since"):
        ended.check(folder, settings)
    folder.remove(ended.FILE)
    ended.check(folder, settings)


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 5000, b"[1]", b"\xff"])
def test_a_note_that_is_damaged_says_nothing(tmp_path, settings, text):
    folder = open_folder(tmp_path / "backups")
    folder.write(ended.FILE, text)
    ended.check(folder, settings)


def test_a_module_is_told_by_its_name_and_arguments(tmp_path, settings):
    folder = open_folder(tmp_path / "backups")
    module: Any = Settings("package.train", is_module=True)
    ended.note(folder, module)
    ended.check(folder, module)
    with pytest.raises(ConfigError, match=r"\['-m', 'package.train', '--epochs', '3'\] then"):
        ended.check(folder, settings)


@pytest.mark.tensorflow
def test_drumbeat_run_notes_and_refuses_it(tmp_path, settings):
    def run(text: str) -> subprocess.CompletedProcess[str]:
        Path("train.py").write_text(text)
        return subprocess.run(
            [sys.executable, "-m", "drumbeat", "run", "--backup-dir", "backups", "train.py"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SOURCE)}, text=True,
            capture_output=True, timeout=100, check=False,
        )  # fmt: skip

    about = About(job="a", step=1, phase=1, epoch=0, world_size=1, finished=True)
    Backups(open_folder("backups")).write(Content(about=about, snapshot=None, phases=()))
    assert run("raise SystemExit(3)").returncode == 3
    assert run("print('mended')").returncode == 0
    refused = run("print('other')")
    assert refused.returncode == 2
    assert "train.py has been edited since" in refused.stderr
    assert "Traceback" not in refused.stderr
