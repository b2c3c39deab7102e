"""Whatever is typed: a result or a message, never a traceback."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from drumbeat.cli.options import app
from drumbeat.errors import DrumbeatError
from drumbeat.platforms import registry

_SPEC = importlib.util.spec_from_file_location(
    "fuzzing", Path(__file__).parents[1] / "platforms" / "fuzzing.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
fuzzing = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fuzzing)

pytestmark = pytest.mark.timeout(120 + fuzzing.EXAMPLES)
JOB = "name: digits\nscript: train.py\nimage: img:1\n"
# Nobody can log in anywhere, and no program of a platform is found.
NOBODY = {
    "PATH": "",
    "HOME": "/nonexistent",
    "KUBECONFIG": "/nonexistent",
    "GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent",
    "CLOUDSDK_CONFIG": "/nonexistent",
    "NO_GCE_CHECK": "true",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "RAY_ADDRESS": "http://127.0.0.1:1",
}
FILES: dict[str, str | bytes] = {
    "drumbeat.yaml": JOB,
    "broken.yaml": "a: [",
    "other.yaml": "a: 1",
    "list.yaml": "[1, 2]",
    "empty.yaml": "",
    "tfjob.yaml": json.dumps({"kind": "TFJob", "apiVersion": "kubeflow.org/v1", "spec": {}}),
    "jobset.yaml": json.dumps({"kind": "JobSet", "spec": []}),
    "compose.yaml": json.dumps({"services": {"a": None}}),
    "vertex.yaml": json.dumps({"workerPoolSpecs": [{}]}),
    "config.yaml": json.dumps({"trainingInput": {"scaleTier": 1}}),
    "script.sh": "#!/bin/bash\n#SBATCH --nodes=x\n",
    "nul.yaml": b"\0\0",
    "latin.yaml": "name: é".encode("latin-1"),
    "pyproject.toml": "[tool.drumbeat]\nname = 3",
    "train.py": "import tensorflow",
}
ODD = [*FILES, "missing.yaml", "folder", "", "-", "--", "..", "/", "/dev/null", "a\nb", "é",
       "\udcff", "--help", "--no-such-option", "-f", "--set", "--json", "0", "-1", "1e9",
       "workers=x"]  # fmt: skip
WORDS = st.lists(st.sampled_from([*ODD, *registry.PLATFORMS]), max_size=4)


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TF_CONFIG", "DRUMBEAT_TOKEN", "DRUMBEAT_DATA", "DRUMBEAT_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in NOBODY.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "folder").mkdir()
    for name, content in FILES.items():
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)

    def run(*words: str) -> str:
        result: Any = CliRunner().invoke(app, list(words))
        if isinstance(result.exception, DrumbeatError):
            return fuzzing.message(result.exception)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.output.strip()
        return result.output

    return run


@fuzzing.fuzz
@given(words=WORDS)
def test_doctor(cli, words):
    cli("doctor", *words)


@fuzzing.fuzz
@given(words=WORDS)
def test_render(cli, words):
    cli("render", *words)


@fuzzing.fuzz
@given(words=WORDS, command=st.sampled_from(["submit", "status", "logs", "stop"]))
def test_without_a_job_file_that_can_be_used(cli, words, command):
    """Nothing is submitted, or asked of anybody: there is no job."""
    cli(command, *words, "-f", "broken.yaml")


@pytest.mark.parametrize("file", [*FILES, "missing.yaml", "folder", "", "a\nb", "\udcff"])
def test_rehearse_of_what_is_no_manifest(cli, file):
    assert cli("rehearse", file)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("command", ["doctor", "render"])
def test_each_file(cli, command, file):
    if command == "doctor":
        cli("doctor", file)
    else:
        for platform in ("jobset", "ai-platform"):
            cli("render", platform, "-f", file)


@pytest.mark.parametrize("name", registry.PLATFORMS)
def test_a_job_without_anything_more(cli, name):
    cli("render", name)
    cli("render", name, "--set", "image=null", "--set", "workers=7")


@pytest.mark.parametrize("command", ["submit", "status", "logs", "stop"])
@pytest.mark.parametrize(
    "name",
    [
        # Ray's client takes seconds to import.
        pytest.param(name, marks=pytest.mark.slow if name == "ray" else ())
        for name in registry.PLATFORMS
    ],
)
def test_a_platform_that_nobody_can_reach(cli, name, command):
    words = [] if command == "submit" else ["nobody-17"]
    assert cli(command, name, *words)
