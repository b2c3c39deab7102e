"""The Dockerfile and .dockerignore, read as Docker reads them."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path

import pytest

from drumbeat import __version__
from drumbeat.platforms import docker
from drumbeat.platforms.jobfile.model import Job

KNOWN = {"FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "CMD"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def job(**keys: object) -> Job:
    return Job.model_validate(
        {"name": "digits", "script": "train.py", "image": "team/digits:1", **keys}
    )


def instructions(wanted: Job) -> list[tuple[str, str]]:
    """Name and arguments of each, lines that are continued as one."""
    text = re.sub(r"\\\n\s*", "", docker.render(wanted).main)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def arguments(wanted: Job, name: str) -> list[str]:
    return [rest for each, rest in instructions(wanted) if each == name]


def is_ignored(path: str, wanted: Job) -> bool:
    """By the last pattern that matches it or a folder that it is in."""
    ignored = False
    for line in docker.render(wanted).files[".dockerignore"].splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = path.split("/")
        starts = range(len(parts)) if line.startswith("**/") else [0]
        heads = {
            "/".join(parts[start:end])
            for start in starts
            for end in range(start + 1, len(parts) + 1)
        }
        if any(
            fnmatch.fnmatchcase(head, pattern) and head.count("/") == pattern.count("/")
            for head in heads
        ):
            ignored = not line.startswith("!")
    return ignored


def test_only_known_instructions_in_an_order_that_keeps_layers():
    found = instructions(job(docker={"packages": ["git"]}))
    names = [name for name, _ in found]
    assert set(names) <= KNOWN
    assert names[0] == "FROM"
    assert names[-1] == "CMD"
    texts = [rest for _, rest in found]
    code = next(
        i for i, (name, rest) in enumerate(found) if name == "COPY" and rest.endswith(". .")
    )
    installed = [i for i, text in enumerate(texts) if "pip install" in text or "apt-get" in text]
    assert max(installed) < code, "a change of the code would install everything anew"
    assert names.index("USER") > code


def test_the_base_is_pinned():
    [base] = arguments(job(), "FROM")
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm", base)
    assert "@sha256:" in docker.render(job()).main
    assert arguments(job(docker={"base": "me/base@sha256:ab"}), "FROM") == ["me/base@sha256:ab"]


def test_it_runs_as_somebody_without_rights_who_owns_the_folders():
    mounts = [{"name": "out", "path": "/out"}, {"name": "d", "path": "/data", "read_only": True}]
    wanted = job(mounts=mounts)
    assert arguments(wanted, "USER") == ["1000:1000"]
    assert "install -d -o 1000 -g 1000 /work /out" in arguments(wanted, "RUN")[0]
    assert "/data" not in arguments(wanted, "RUN")[0]
    assert arguments(wanted, "COPY")[-1] == "--chown=1000:1000 . ."


@pytest.mark.parametrize(
    ("keys", "pip"),
    [
        ({}, f"pip install drumbeat=={__version__}"),
        ({"data": "gs://b/d"}, f"pip install 'drumbeat[gcs]=={__version__}'"),
        (
            {"data": "gs://b/d", "run": {"backup_dir": "s3://b/k"}},
            f"pip install 'drumbeat[gcs,s3]=={__version__}'",
        ),
        (
            {"devices": {"type": "gpu"}, "workers": 1},
            f"pip install drumbeat=={__version__} 'tensorflow[and-cuda]<2.22,>=2.21'",
        ),
        (
            {"docker": {"drumbeat": "drumbeat @ https://x/y.zip"}},
            "pip install 'drumbeat @ https://x/y.zip'",
        ),
    ],
)
def test_drumbeat_is_installed_with_what_the_job_needs(keys, pip):
    assert pip in arguments(job(**keys), "RUN")


def test_a_wheel_of_the_folder():
    wanted = job(docker={"drumbeat": "./wheels/drumbeat-0.1.0-py3-none-any.whl"}, output="s3://b/o")
    wheel = "/tmp/drumbeat-0.1.0-py3-none-any.whl"
    assert arguments(wanted, "COPY")[0] == f"./wheels/drumbeat-0.1.0-py3-none-any.whl {wheel}"
    assert f"pip install '{wheel}[s3]'" in arguments(wanted, "RUN")
    assert not is_ignored("wheels/drumbeat-0.1.0-py3-none-any.whl", wanted)


def test_requirements_where_there_are_some(tmp_path):
    assert "requirements" not in docker.render(job()).main
    (tmp_path / "requirements.txt").write_text("scikit-learn\n")
    assert "requirements.txt ./" in arguments(job(), "COPY")
    assert "pip install -r requirements.txt" in arguments(job(), "RUN")
    own = job(docker={"requirements": "docker/needs.txt"})
    assert "docker/needs.txt ./" in arguments(own, "COPY")
    assert "pip install -r needs.txt" in arguments(own, "RUN")


def test_packages_leave_no_lists():
    [run] = [
        each
        for each in arguments(job(docker={"packages": ["git", "curl"]}), "RUN")
        if "apt" in each
    ]
    assert "--no-install-recommends curl git" in run
    assert run.endswith("rm -rf /var/lib/apt/lists/*")


def test_the_command_is_the_jobs():
    [text] = arguments(job(args=["--name", 'a "b"']), "CMD")
    assert json.loads(text) == ["drumbeat", "run", "train.py", "--name", 'a "b"']


def test_gpus_ask_for_the_driver():
    wanted = job(devices={"type": "gpu"}, workers=1)
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in arguments(wanted, "ENV")[0]
    assert "container toolkit" in " ".join(docker.render(wanted).notes)


def test_nothing_secret_is_written():
    secrets = [{"name": "hub", "env": "HUB_TOKEN"}]
    wanted = job(secrets=secrets, environment={"API": "x"})
    assert "HUB_TOKEN" not in docker.render(wanted).main
    assert "DRUMBEAT_TOKEN" not in docker.render(wanted).main


STAYS_OUT = """
    .git/config .env deploy/.env .env.local sa.json keys/sa.json gcp-sa.json prod-key.json
    a/service-account.json application_default_credentials.json .aws/credentials .ssh/id_rsa
    x/server.key tls.pem secrets/gcp/x .venv/bin/python venv/x runs/train-1/log data/train.csv
    pkg/__pycache__/a.pyc model.keras .drumbeat/submitted.json compose.yaml Dockerfile"""
GOES_IN = "train.py package/model.py drumbeat.yaml requirements.txt config.json a/data.py"


@pytest.mark.parametrize("path", STAYS_OUT.split())
def test_keys_environments_and_data_stay_out(path):
    assert is_ignored(path, job())


@pytest.mark.parametrize("path", GOES_IN.split())
def test_code_goes_in(path):
    assert not is_ignored(path, job())


def test_the_jobs_script_goes_in_wherever_it_lies():
    assert is_ignored("data/x.py", job())
    assert not is_ignored("data/x.py", job(script="data/x.py"))
