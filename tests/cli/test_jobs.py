"""`drumbeat init`, `render`, `submit`, `status`, `logs` and `stop` as a user types them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from drumbeat.cli.options import app
from drumbeat.errors import ConfigError
from drumbeat.platforms import registry
from drumbeat.platforms.platform import Platform, Rendered, Status

JOB = "name: digits\nscript: train.py\nimage: img:1\noutput: gs://b/x\n"
Cli = Callable[..., Any]


class Recorder:
    """A client that keeps what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.state = "running"

    def plan(self, job, rendered):
        return [f"start {job.name} of {job.workers}", rendered.main]

    def submit(self, job, rendered):
        self.calls.append(("submit", job.name, rendered.main))
        return f"{job.name}-17"

    def status(self, job_id):
        return Status(job_id=job_id, state=self.state, detail="Pod", tasks={"worker-0": "Ready"})

    def logs(self, job_id, *, task, follow) -> Iterator[str]:
        self.calls.append(("logs", job_id, task, follow))
        yield "[worker-0] epoch 1"

    def stop(self, job_id):
        self.calls.append(("stop", job_id))


@pytest.fixture
def client(monkeypatch) -> Recorder:
    recorder = Recorder()

    def render(job):
        return Rendered(
            files={"job.txt": f"workers {job.workers}\n", "extra.txt": "more\n"}, notes=("a note",)
        )

    def convert(manifest):
        return Rendered(files={"new.txt": f"from {manifest.documents[0].value}\n"})

    fakes = {
        "fake": Platform(name="fake", title="Fake", render=render, connect=lambda job: recorder),
        "old": Platform(name="old", title="Old files", convert=convert),
    }
    monkeypatch.setattr(registry, "PLATFORMS", {name: lambda n=name: fakes[n] for name in fakes})
    return recorder


@pytest.fixture
def cli(tmp_path, monkeypatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    runner = CliRunner()

    def run(*words: str):
        result = runner.invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def test_init_writes_a_job_file_that_is_valid_and_never_over_another_one(cli, tmp_path):
    (tmp_path / "My train.py").write_text("")
    assert "Wrote drumbeat.yaml" in cli("init", "My train.py", "-n", "3").stdout
    text = (tmp_path / "drumbeat.yaml").read_text()
    assert "name: my-train\n" in text
    assert 'script: "My train.py"\n' in text
    assert (tmp_path / "drumbeat.schema.json").exists()
    assert "parallelism: 3\n" in cli("render", "jobset").stdout
    with pytest.raises(ConfigError, match=r"drumbeat.yaml exists; --force"):
        cli("init", "My train.py")
    cli("init", "My train.py", "--force", "--image", "other:2")
    assert "image: other:2 " in (tmp_path / "drumbeat.yaml").read_text()
    with pytest.raises(ConfigError, match=r"no.py does not exist"):
        cli("init", "no.py")
    (tmp_path / "src").mkdir()
    with pytest.raises(ConfigError, match="^src is a folder; expected a Python script"):
        cli("init", "src")
    cli("init", str(tmp_path / "My train.py"), "--force")
    assert 'script: "My train.py"\n' in (tmp_path / "drumbeat.yaml").read_text()
    with pytest.raises(ConfigError, match="is not within"):
        cli("init", str(tmp_path.parent / "train.py"), "--force")


def test_render_shows_or_writes_and_the_command_line_wins(cli, client, tmp_path):
    (tmp_path / "drumbeat.yaml").write_text(JOB)
    shown = cli("render", "fake", "-n", "4", "--set", "workers=8")
    assert shown.stdout == "# ---- job.txt\nworkers 4\n# ---- extra.txt\nmore\n"
    assert shown.stderr == "drumbeat: a note\n"
    assert "Wrote out/job.txt\n" in cli("render", "fake", "-o", "out", "--set", "workers=8").stdout
    assert (tmp_path / "out" / "job.txt").read_text() == "workers 8\n"
    assert cli("render").stdout.split() == ["fake", "Fake", "old", "Old", "files"]
    with pytest.raises(ConfigError, match="'fak' is unknown; did you mean fake"):
        cli("render", "fak")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file can't be written"):
        cli("render", "fake", "-o", "file")


@pytest.mark.parametrize("words", [("render", "fake"), ("submit", "fake")])
def test_who_would_lose_the_model_with_the_containers_is_told(cli, client, tmp_path, words):
    def said() -> bool:
        return "output is not given: what the script saves in a cont" in cli(*words).stderr

    path = tmp_path / "drumbeat.yaml"
    path.write_text(JOB)
    assert not said()
    path.write_text(JOB.replace("output: gs://b/x\n", ""))
    assert said()
    path.write_text(JOB.replace("output: gs://b/x\n", "run: {backup_dir: gs://b/x}\n"))
    assert not said()


def test_a_script_that_is_not_there_is_told(cli, client, tmp_path):
    said = "train.py is not in the job file's folder. Correct script:, unless the image has it."
    (tmp_path / "drumbeat.yaml").write_text(JOB)
    commands = [("render", "fake"), ("submit", "fake"), ("submit", "fake", "--dry-run")]
    for words in commands:
        assert said not in cli(*words).stderr
    (tmp_path / "train.py").unlink()
    for words in commands:
        assert said in cli(*words).stderr


def test_what_becomes_of_files_that_were_there(cli, client, tmp_path):
    (tmp_path / "drumbeat.yaml").write_text(JOB)
    assert cli("render", "fake", "-o", "o").stdout == "Wrote o/job.txt\nWrote o/extra.txt\n"
    (tmp_path / "o" / "job.txt").write_text("edited")
    assert cli("render", "fake", "-o", "o").stdout == "Changed o/job.txt\nUnchanged: o/extra.txt\n"
    assert (tmp_path / "o" / "job.txt").read_text() == "workers 2\n"


def test_no_place_is_asked_for_where_nothing_is_lost(cli, tmp_path):
    (tmp_path / "drumbeat.yaml").write_text(JOB.replace("output: gs://b/x\n", ""))
    for platform, is_lost in (("slurm", False), ("docker", False), ("tfjob", True), ("ray", True)):
        assert ("output is not given" in cli("render", platform).stderr) == is_lost


def test_old_files_are_converted(cli, client, tmp_path):
    (tmp_path / "config.yaml").write_text("a: 1\n")
    assert cli("render", "old", "-f", "config.yaml").stdout == "from {'a': 1}\n"
    with pytest.raises(ConfigError, match="expected -f config.yaml"):
        cli("render", "old")
    with pytest.raises(ConfigError, match="expected -f config.yaml and no other option"):
        cli("render", "old", "-f", "config.yaml", "-n", "3")


@pytest.mark.parametrize(
    "given",
    [
        "environment: {HF_TOKEN: hf_5ecret}",
        "environment: {HF_TOKEN: [hf_5ecret]}",
        "environment: [HF_TOKEN=hf_5ecret]",
        "environment: HF_TOKEN=hf_5ecret",
        "environment: [{name: HF_TOKEN, value: hf_5ecret}]",
        "ray: {runtime_env: {env_vars: {HF_TOKEN: hf_5ecret}}}",
        "--set environment.HF_TOKEN=hf_5ecret",
    ],
)
@pytest.mark.parametrize("words", ["render ray", "submit ray --dry-run", "rehearse ray", "doctor"])
def test_a_secret_that_is_written_is_refused_by_all_alike_and_never_shown(
    cli, tmp_path, given, words
):
    more = given.split() if given.startswith("--set") else []
    if more and words == "doctor":
        pytest.skip("it has no --set")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "drumbeat.yaml").write_text(JOB + (given if not more else ""))
    with pytest.raises(ConfigError) as refused:
        cli(*words.split(), *more)
    assert refused.value.exit_code == 2
    assert "5ecret" not in str(refused.value)
    for said in (
        "HF_TOKEN is a secret by its name",
        "expected secrets: [{name: hf-token, key: value, env: HF_TOKEN}]",
        "Leave HF_TOKEN out here.",
    ):
        assert said in str(refused.value)


@pytest.mark.parametrize("command", ["render", "submit", "status", "logs", "stop"])
def test_without_a_job_file_it_says_how_to_get_one(cli, client, command):
    with pytest.raises(ConfigError, match="`drumbeat init train.py` writes a first one"):
        cli(command, "fake")


def test_from_submit_to_stop(cli, client, tmp_path):
    (tmp_path / "drumbeat.yaml").write_text(JOB)
    with pytest.raises(ConfigError, match="No job was submitted to fake from"):
        cli("status", "fake")
    assert cli("submit", "fake", "--dry-run").stdout == "start digits of 2\nworkers 2\n\n"
    assert client.calls == []
    assert "Submitted digits-17." in cli("submit", "fake", "--image", "i:2").stdout
    assert client.calls == [("submit", "digits", "workers 2\n")]
    shown = cli("status", "fake")
    assert shown.stdout == "digits-17: running (Pod)\n  worker-0: Ready\n"
    assert shown.exit_code == 0
    client.state = "failed"
    assert cli("status", "fake", "other").exit_code == 1
    assert cli("logs", "fake", "--task", "worker-0").stdout == "[worker-0] epoch 1\n"
    cli("stop", "fake")
    cli("stop", "fake", "other")
    assert client.calls[1:] == [
        ("logs", "digits-17", "worker-0", False),
        ("stop", "digits-17"),
        ("stop", "other"),
    ]


@pytest.mark.parametrize(("state", "code"), [("failed", 1), ("succeeded", 0), ("stopped", 0)])
def test_who_follows_a_job_learns_whether_it_failed(cli, client, tmp_path, state, code):
    (tmp_path / "drumbeat.yaml").write_text(JOB)
    client.state = state
    found = cli("logs", "fake", "digits-17", "--follow")
    assert found.exit_code == code
    assert found.stdout == "[worker-0] epoch 1\n"
    assert found.stderr == ("drumbeat: digits-17: failed (Pod)\n" if code else "")
    assert cli("logs", "fake", "digits-17").exit_code == 0
    with pytest.raises(ConfigError, match="Nothing can be submitted to old"):
        cli("submit", "old")


def test_what_was_submitted_is_known_even_if_its_file_is_damaged(cli, client, tmp_path):
    (tmp_path / "drumbeat.yaml").write_text(JOB)
    cli("submit", "fake")
    for text in ("", "[1]", '{"fake": 3}', "\0"):
        (tmp_path / ".drumbeat" / "submitted.json").write_text(text)
        with pytest.raises(ConfigError, match="No job was submitted"):
            cli("status", "fake")


def test_run_needs_nothing_of_it():
    code = (
        "import sys, drumbeat.cli.options, drumbeat.launch.start; "
        "print([name for name in ('pydantic', 'ruamel.yaml', 'drumbeat.platforms.platform') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
