"""The run's folder and its record."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from drumbeat.errors import ConfigError
from drumbeat.launch.files import job_file, make_run_dir
from drumbeat.launch.settings import RunArguments, RunSettings, plan_run
from drumbeat.state.small_files import write_json


def settings(run_dir: str | None = None) -> RunSettings:
    arguments = RunArguments(command=(__file__,), run_dir=run_dir)
    return plan_run(arguments, {}, cpus=1, now=datetime(2030, 1, 1))


def test_the_default_folder_is_never_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [make_run_dir(settings()) for _ in range(3)]
    assert [path.name for path in made] == [
        "test_files-20300101-000000",
        "test_files-20300101-000000-2",
        "test_files-20300101-000000-3",
    ]
    assert made[0].parent == tmp_path / "runs"
    assert all(list(path.iterdir()) == [] for path in made)


def test_a_given_folder_may_exist(tmp_path):
    wanted = str(tmp_path / "a" / "b")
    assert make_run_dir(settings(wanted)) == make_run_dir(settings(wanted)) == Path(wanted)


def test_a_folder_that_can_not_be_made_is_a_mistake(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Give another one with --run-dir"):
        make_run_dir(settings(str(tmp_path / "file" / "run")))


@pytest.mark.parametrize("has_runs", [False, True])
def test_where_nothing_can_be_written_the_default_is_a_temporary_folder(
    tmp_path, monkeypatch, has_runs
):
    """As in an image whose folder is another user's: root may write anywhere, so it is asked."""
    here, elsewhere = tmp_path / "image", tmp_path / "tmp"
    (here / "runs" if has_runs else here).mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    usual, given = settings(), settings(str(tmp_path / "given"))
    asked = []
    monkeypatch.setattr("os.access", lambda path, mode: asked.append(Path(path)))
    made = make_run_dir(usual)
    assert made.parent == elsewhere
    assert made.name.startswith("test_files-20300101-000000-")
    assert asked == [Path("runs") if has_runs else here]
    assert make_run_dir(given) == tmp_path / "given"


def test_the_record_is_replaced_in_one_step(tmp_path):
    path = job_file(tmp_path, 0)
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["job.json"]
    assert job_file(tmp_path, 1) != path
