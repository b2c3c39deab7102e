"""The command as a user types it: options, mistakes, help."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.errors import ConfigError

SOURCE = Path(__file__).parents[2] / "src"


def drumbeat(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "drumbeat", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200", **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_version_and_help(tmp_path):
    version = drumbeat("--version", folder=tmp_path)
    assert version.returncode == 0
    assert version.stdout.startswith("drumbeat 0.")
    usage = drumbeat("run", "--help", folder=tmp_path)
    assert usage.returncode == 0
    for option in ("--ps", "--nodes", "--node-rank", "--rendezvous", "--run-dir", "--collectives"):
        assert option in usage.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-n", "0", "train.py"], "drumbeat: -n is 0 (workers); expected 1 to 1024."),
        (["run", "-n", "two", "train.py"], "-n is 'two'; expected a number of workers"),
        (["run", "nope.py"], "drumbeat: nope.py does not exist"),
        (["run", "."], "drumbeat: . is a folder; expected a Python script."),
        (["run", "train"], "did you mean train.py?"),
        (["run", "--rendevous", "a:1", "train.py"], "--rendezvous"),
        (["run", "--nodes", "2", "--node-rank", "2", "train.py"], "expected 0 to 1"),
        (["run", "--run-dir", "train.py/x", "train.py"], "The run's folder train.py/x can't be"),
        (["run", "-n", "2"], "Missing argument"),
        (["run", "--exact", "4", "train.py"], "Use --exact-shards 4 for that many"),
        (["ran", "train.py"], "No such command 'ran'"),
        (["trian.py", "-n", "2"], "trian.py is not a command; expected run or check"),
        (["-n", "2", "train.py"], "the script: drumbeat run -n 2 train.py"),
    ],
)
def test_a_mistake_is_explained_without_a_traceback(tmp_path, arguments, message):
    (tmp_path / "train.py").write_text("")
    result = drumbeat(*arguments, folder=tmp_path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()


def test_each_line_of_several_problems_says_whose_it_is(tmp_path):
    (tmp_path / "drumbeat.yaml").write_text("name: A\nscript: a.py\nworkers: 0\n")
    result = drumbeat("render", "slurm", folder=tmp_path)
    said = result.stderr.splitlines()
    assert len(said) == 2
    assert all(line.startswith("drumbeat: drumbeat.yaml:") for line in said)
    assert ConfigError("a\n  b\nc").printed() == "drumbeat: a\n  b\ndrumbeat: c"
    assert ConfigError("").printed() == "drumbeat: "


@pytest.mark.parametrize("command", [[], ["run"], ["doctor"], ["rehearse"], ["whoami"]])
def test_help_has_a_short_option_and_fills_its_lines(command, tmp_path):
    short, long = (
        drumbeat(*command, option, folder=tmp_path, COLUMNS="80") for option in ("-h", "--help")
    )
    assert short.returncode == 0
    assert short.stdout == long.stdout
    text = short.stdout.partition("\u256d")[0]
    paragraphs = [each.splitlines() for each in re.split(r"\n\s*\n", text.strip())]
    for lines in paragraphs:
        for line, following in itertools.pairwise(lines):
            # The next line's first word had no room.
            assert len(f"{line.rstrip()} {following.split()[0]}") > 79, line


def test_a_malformed_tf_config_is_explained(tmp_path):
    (tmp_path / "train.py").write_text("")
    result = drumbeat("run", "train.py", folder=tmp_path, TF_CONFIG="{'cluster': 1}")
    assert result.returncode == 2
    assert result.stderr.startswith("drumbeat: TF_CONFIG:")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read and write everything")
def test_permissions_are_explained(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train.py").chmod(0)
    result = drumbeat("run", "train.py", folder=tmp_path)
    assert result.returncode == 2
    assert "can't be read" in result.stderr


def test_a_working_folder_that_is_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = (
        'rmdir "$PWD" && exec "$0" -c "from drumbeat.cli.main import main; main()" render slurm'
    )
    done = subprocess.run(
        ["bash", "-c", script, sys.executable],
        cwd=gone,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("drumbeat: The working folder can't be used")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ('"$0" -m drumbeat render >/dev/full', 1, "drumbeat: No space left on device."),
        ('"$0" -m drumbeat --help >/dev/full', 1, "drumbeat: No space left on device."),
        ('"$0" -m drumbeat render nowhere 2>/dev/full', 2, ""),
        ('"$0" -m drumbeat render | true; exit ${PIPESTATUS[0]}', 1, ""),
    ],
)
def test_a_screen_that_takes_nothing(tmp_path, script, code, message):
    done = subprocess.run(
        ["bash", "-c", script, sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.strip() == message
    assert done.returncode == code


def test_what_the_machine_lacks_is_said_without_a_traceback(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N2\nsrun drumbeat run train.py\n")
    script = 'ulimit -n 12; exec "$0" -m drumbeat rehearse job.sbatch --timeout 60'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode in (1, 2), done.stdout
    assert done.stderr.startswith("drumbeat: ")
    assert done.stderr.endswith("Too many open files.\n")
    assert "Traceback" not in done.stderr


def test_the_option_for_another_folder_is_that_of_the_command(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N2\nsrun drumbeat run train.py\n")
    (tmp_path / "runs").write_text("no folder")
    result = drumbeat("rehearse", "job.sbatch", folder=tmp_path)
    assert result.returncode == 2
    assert "Give another one with --folder." in result.stderr
