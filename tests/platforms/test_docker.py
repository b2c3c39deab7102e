"""The Dockerfile and .dockerignore, read as Docker reads them."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from drumbeat import __version__
from drumbeat.cluster import launched_by
from drumbeat.errors import ConfigError
from drumbeat.platforms import left_out, registry
from drumbeat.platforms.docker import rehearsal, rules
from drumbeat.platforms.docker import render as docker
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Process
from drumbeat.platforms.ray import render as ray

NO_PLACES: Any = None  # a container alone needs none
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


def write(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")


def test_what_the_job_file_names_goes_in_but_no_key():
    write("data/x.npz", "data/y.npz", "models/pre.keras", "models/b.h5", "secrets/key", "train.py")
    wanted = job(data="data/x.npz", args=["models/pre.keras", "--base=models/b.h5", "secrets/key"])
    for path in ("data/x.npz", "models/pre.keras", "models/b.h5"):
        assert not is_ignored(path, wanted)
        assert is_ignored(path, job())
    for path in ("data/y.npz", "secrets/key", "data/.env"):
        assert is_ignored(path, wanted)
    assert is_ignored("data/.env", job(data="data"))
    assert not is_ignored("data/y.keras", job(data="data"))


@pytest.mark.parametrize(
    "keys",
    [{}, {"data": "data/x"}, {"data": "data"}, {"script": "secrets/train.py"},
     {"args": ["data/sub/z", "a b/[c]*.keras", "data/x"]}, {"script": "./data/train.py"}],
)  # fmt: skip
def test_ray_is_given_what_the_image_has(keys):
    """By Ray's own rule: as git's, it looks into no folder that is left out."""
    pathspec = pytest.importorskip("pathspec")
    write("data/x", "data/sub/z", "data/.env", "a b/[c]*.keras", "a b/c.keras", "secrets/train.py",
          "secrets/other", "data/train.py", "data/sub/other")  # fmt: skip
    excludes = ray.render(job(**keys)).main
    lines = YAML(typ="safe").load(excludes)["runtime_env"]["excludes"]
    spec = pathspec.PathSpec.from_lines("gitignore", lines)
    ignore = docker.render(job(**keys)).files[".dockerignore"].splitlines()
    for path in Path().rglob("*"):
        if path.is_file():
            heads = [path, *list(path.parents)[:-1]]
            by_ray = any(spec.match_file(str(head)) for head in heads)
            assert by_ray == left_out.is_left_out(str(path), ignore), path


def test_what_git_ignores_is_told_of_ray():
    """It takes .gitignore into account itself."""
    write("data/x.npz", "a/models/b", "train.py")
    wanted = job(data="data/x.npz", args=["a/models/b"])
    assert "gitignore" not in " ".join(ray.render(wanted).notes)
    for text, names in (
        ("*.npz\n# train.py", "data/x.npz"), ("models/\n!data", "a/models/b"), ("/models", ""),
        ("data\n!data\n", ""), ("data/\nmodels", "data/x.npz, a/models/b"), ("train.py",) * 2,
    ):  # fmt: skip
        Path(".gitignore").write_text(text)
        said = [each for each in ray.render(wanted).notes if "gitignore" in each]
        assert bool(said) == bool(names)
        assert not names or f"and so {names}. Set" in said[0]


@pytest.mark.parametrize(
    ("pattern", "path", "is_out"),
    [("a", "a/b", True), ("a", "b/a", False), ("**/a", "b/c/a", True), ("**/a", "a", True),
     ("*.py", "a/b.py", False), ("a?c", "abc", True), ("[ab]", "b", True), ("/a/", "a/x", True),
     ("# a", "# a", False), ("a/**", "a/b/c", True), ("\\*", "*", True), ("\\*", "a", False),
     ("[z-a]", "z", False), ("[", "[", True), ("./a", "a", True), ("", "a", False)],
)  # fmt: skip
def test_a_line_of_dockerignore(pattern, path, is_out):
    assert left_out.is_left_out(path, [pattern]) == is_out
    assert not left_out.is_left_out(path, [pattern, f"!{path.replace('*', chr(92) + '*')}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM alpine:3", "Dockerfile:1: FROM alpine:3: Alpine has no glibc"),
        ("FROM python:3.12-alpine3.20 AS a", "Alpine has no glibc"),
        ("FROM a\nENV AWS_SECRET_ACCESS_KEY=abcdefgh", "Dockerfile:2: the value of AWS_SECRET_ACC"),
        ("FROM a\nARG HUB_TOKEN=abcdefgh", "the value of HUB_TOKEN is in the image"),
        ("FROM a\nENV A=b X_PASSWORD='a b c d'", "the value of X_PASSWORD"),
        ("FROM a\nCOPY .env train.py /app/", ".env would be in the image"),
        ('FROM a\nCOPY ["keys/sa.json", "/x"]', "keys/sa.json would be in the image"),
        ("FROM a\nCOPY --chown=1:1 . .", "it copies the folder, and '.env' with it"),
    ],
)
def test_mistakes_in_a_dockerfile(text: str, message: str) -> None:
    write(".env", "train.py")
    found = rules.problems(registry.parse_manifest(text, Path("Dockerfile")))
    assert any(message in each for each in found), found
    assert "abcdefgh" not in " ".join(found)


def test_no_mistakes_in_a_dockerfile() -> None:
    write(".env", "train.py")
    write(".dockerignore")
    Path(".dockerignore").write_text(docker.render(job()).files[".dockerignore"])
    for text in (
        docker.render(job()).main,
        "FROM a\nENV TOKEN_FILE=/x HUB_TOKEN=\nARG HUB_TOKEN\nCOPY --from=b .env x\nCOPY . .",
        "FROM a\nENV HUB_TOKEN=$HUB_TOKEN ='\nCOPY 'a b",
    ):
        assert rules.problems(registry.parse_manifest(text, Path("Dockerfile"))) == []


@pytest.mark.parametrize("base", ["alpine:3", "python:3.12-alpine", "ghcr.io/a/alpine"])
def test_a_base_without_glibc_is_refused(base: str) -> None:
    with pytest.raises(ValueError, match="TensorFlow has no wheels"):
        job(docker={"base": base})
    assert job(docker={"base": "alpinist/debian:12"}).docker.base


def rehearsed(text: str, name: str = "Dockerfile") -> Process:
    manifest = registry.parse_manifest(text, Path(name))
    assert registry.recognise(manifest).name == "docker"
    (process,) = rehearsal.rehearse(manifest, NO_PLACES).processes
    return process


def test_what_is_rendered_is_what_a_container_runs() -> None:
    process = rehearsed(docker.render(job(args=["--name", "a b\\n"])).main)
    assert process.command == ("drumbeat", "run", "train.py", "--name", "a b\\n")
    assert process.env["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('CMD ["python", "t.py"]', ("python", "t.py")),
        ("CMD python t.py  --x $A", ("/bin/sh", "-c", "python t.py  --x $A")),
        ('ENTRYPOINT ["drumbeat"]\nCMD ["run", \\\n  "t.py"]', ("drumbeat", "run", "t.py")),
        ('CMD ["a"]\nENTRYPOINT ["b"]', ("b",)),
        ('ENTRYPOINT run me\nCMD ["no"]', ("/bin/sh", "-c", "run me")),
        ('CMD ["first"]\ncmd ["last"] ', ("last",)),
        ('CMD ["old"]\nFROM b\nCMD ["new"]', ("new",)),
        ('AS x\nFROM y\nFROM x\nCMD ["own"]', ("own",)),
        ('RUN <<EOF\nCMD ["no"]\nEOF\nCMD ["yes"]', ("yes",)),
        ('# CMD ["no"]\nRUN a \\\n# b\n  c\nCMD ["yes"]', ("yes",)),
    ],
)
def test_the_command_is_that_of_the_last_stage(text: str, command: tuple[str, ...]) -> None:
    separator = " " if text.startswith("AS") else "\n"
    assert rehearsed(f"# of mine\n\nARG V=1\nFROM base:$V{separator}{text}").command == command


def test_a_stage_has_what_it_is_made_from() -> None:
    text = 'FROM a AS Base\nENV A=1\nENTRYPOINT ["e"]\nFROM base\nENV B=${A}2\nCMD ["c"]'
    process = rehearsed(text)
    assert process.command == ("e", "c")
    assert process.env == {"A": "1", "B": "12"}


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("ENV A=1 B='x y'\nENV C=\"$A z\"", {"A": "1", "B": "x y", "C": "1 z"}),
        ("ENV A some words", {"A": "some words"}),
        (
            "ARG T=3\nENV A=${T} B=${NO:-7} C=${T:+set} D=\\$T",
            {"A": "3", "B": "7", "C": "set", "D": "$T"},
        ),
        ("ENV A=x\\ y", {"A": "x y"}),
    ],
)
def test_variables(line: str, variables: dict[str, str]) -> None:
    assert rehearsed(f'FROM a\n{line}\nCMD ["c"]').env == variables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a:1\nRUN b", "has neither CMD nor ENTRYPOINT, so a container runs what a:1 says"),
        ("FROM a\nCMD ['x']", "Dockerfile:2: the command is .* expected a list in JSON"),
        ('FROM a\nCMD ["x", 1]', "expected a list in JSON"),
        ("FROM a\nENV A=1 B\nCMD c", "ENV is 'A=1 B'; expected NAME=value"),
        ("FROM", "no manifest of a platform"),
    ],
)
def test_what_can_not_be_run_is_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rehearsed(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"DRUMBEAT_NODE_RANK": None}, "DRUMBEAT_NODE_RANK is not set"),
        ({"DRUMBEAT_NODE_RANK": "2"}, "DRUMBEAT_NODE_RANK is 2, but DRUMBEAT_NODES says 2"),
        ({"DRUMBEAT_NODES": None}, "DRUMBEAT_NODE_RANK is set, but DRUMBEAT_NODES is not"),
        ({"DRUMBEAT_NODES": "two"}, "DRUMBEAT_NODES is 'two'; expected a whole number"),
        ({"DRUMBEAT_RENDEZVOUS": None}, "DRUMBEAT_RENDEZVOUS is not set; expected HOST:PORT"),
        ({"DRUMBEAT_RENDEZVOUS": "host"}, "DRUMBEAT_RENDEZVOUS"),
    ],
)
def test_what_docker_run_is_given_wrongly_is_explained(change, message: str) -> None:
    given = {
        "DRUMBEAT_NODES": "2",
        "DRUMBEAT_NODE_RANK": "1",
        "DRUMBEAT_RENDEZVOUS": "10.0.0.5:2222",
    }
    assert launched_by.find(given) is not None
    env = {name: value for name, value in (given | change).items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        launched_by.find(env)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_a_rehearsal_trains(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "train_random.py", tmp_path / "train.py")
    (tmp_path / "Dockerfile").write_text(docker.render(job(devices={"count": 2})).main)
    done = subprocess.run(
        [sys.executable, "-m", "drumbeat", "rehearse", "Dockerfile", "--steps", "3"],
        cwd=tmp_path, text=True, capture_output=True, timeout=500, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 workers trained together" in done.stdout
    assert "It has 64 MiB of /dev/shm without --shm-size" in done.stdout


@pytest.mark.parametrize(("origin", "wheel", "is_said"), [
    ('{"url": "file:///src", "dir_info": {}}', None, True),
    (None, None, False),
    ('{"url": "file:///src", "dir_info": {}}', "drumbeat-0.1.0-py3-none-any.whl", False),
])  # fmt: skip
def test_a_checkout_is_told_that_pip_gets_another(monkeypatch, origin, wheel, is_said):
    class Distribution:
        def read_text(self, _name: str) -> str | None:
            return origin

    monkeypatch.setattr(docker, "distribution", lambda _name: Distribution())
    notes = docker.render(job(docker={"drumbeat": wheel})).notes
    assert any("docker.drumbeat" in note for note in notes) == is_said


def test_variables_are_not_in_the_image():
    rendered = docker.render(job(environment={"MODE": "a-value"}))
    assert "a-value" not in rendered.main
    assert any("Manifests set MODE" in note for note in rendered.notes)
