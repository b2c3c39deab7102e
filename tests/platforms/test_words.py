"""The words of a job reach its script as they are, whatever is in them, on every platform."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from drumbeat.cli.options import app
from drumbeat.errors import ConfigError
from drumbeat.platforms import command, registry
from drumbeat.platforms.jobfile.model import Job

EXAMPLES = int(os.environ.get("DRUMBEAT_FUZZ_EXAMPLES", "10"))
REHEARSED = [
    name
    for name in registry.PLATFORMS
    if (platform := registry.get(name)).rehearse is not None and platform.render is not None
]
ODD = [
    "", " ", "a b", "it's", '"x"', "'", '"', "\n", "a\nb\n", "\t", "$HOME", "${HOME}",
    "$(HOSTNAME)", "$$", "$$$(X)", "$", "{data}", "{{data}}", "{output}/m", "{name}", "{",
    "}", "${{x}}", "{{ x }}", "%x", "%", "\\", "\\\\", "\\n", "a\\", "`id`", "!x", "#", "# x",
    "a #b", "&", "|", ";", "&&", ">", "<", "<<EOF", "<<", "(", ")", "*", "?", "~", "~/x",
    "\xe9", "\U0001f600", "\u2028", "\x85", "\ufeff", "\r", "\r\n", "\x1b[0m", "\x7f", "--",
    "-", "-n", "-h", "--help", "--nodes", "--command", "-e", "on", "yes", "null", "~", "1e3",
    "0x1", "1_000", "01", ".5", "NaN", "2026-01-01", "12:30", "a: b", "- a", "[a]", "{a: b}",
    "&a", "*a", "!!str", "@a", "=", "a=b", "=a", ",", "a,b", "SECRET:a,b",
    "#SBATCH --nodes=3", "srun x", "exit 3", "node-0:2222", "worker-1:2222", "x" * 3000,
    " lead", "trail ", "\nlead", "||", "2>&1", "a\\\nb",
]  # fmt: skip
WORDS = (
    st.sampled_from(ODD)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
    | st.text("${}()'\"\\\n #&|;<>%`!*?~=,:- ab", max_size=8)
)


class Ports:
    """Places of a rehearsal."""

    last = 20_000

    def port(self) -> int:
        self.last += 1
        return self.last


def job(words: list[str], values: dict[str, str], **more: Any) -> Job:
    return Job.model_validate(
        {
            "name": "digits",
            "script": "train.py",
            "image": "team/train:1",
            "args": words,
            "environment": values,
            "data": "gs://b/d",
            "output": "s3://b/o" if more.pop("is_aws", False) else "gs://b/o",
            "machine_type": "ml.m5.large",
            "vertex": {"project": "p", "region": "us-central1"},
            "sagemaker": {"role": "arn:aws:iam::123456789012:role/r", "region": "us-east-1"},
            **more,
        }
    )


def rehearsed(made: Job, name: str) -> Any:
    platform = registry.get(name)
    rendered = platform.render(made)
    manifest = registry.parse_manifest(rendered.main, Path(next(iter(rendered.files))))
    assert platform.recognises(manifest)
    return platform.rehearse(manifest, Ports())


fuzz = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# What platforms themselves refuse.
TOO_LONG, DOS, REFERENCE = "x" * 3000, "\r\n", "SECRET:a,b"
SOME = [word for word in ODD if word not in (TOO_LONG, DOS, REFERENCE)]


@pytest.mark.parametrize("name", REHEARSED)
@fuzz
@given(words=st.lists(WORDS, max_size=4), values=st.lists(WORDS, max_size=3))
@example(words=SOME[:60], values=SOME[60:])
@example(words=SOME[60:], values=SOME[:60])
def test_every_word_is_as_it_was(name, words, values):
    variables = {f"V{number}": value for number, value in enumerate(values)}
    made = job(words, variables, is_aws=name == "sagemaker")
    expected = command.script(made)
    try:
        processes = rehearsed(made, name).processes
    except ConfigError:
        assert any(odd in word for odd in (TOO_LONG, DOS, REFERENCE) for word in words + values)
        return
    for process in processes:
        got = list(process.command)
        assert got[len(got) - len(expected) :] == expected
        # Whoever pulls an image can read what is in it, so a job's variables stay in manifests.
        in_image = {} if name == "docker" else made.environment
        for variable, value in in_image.items():
            assert process.env.get(variable) == value, (variable, value)


# Writes what it was started as into a file: words and variables, with NUL between them.
RECORDER = """#!/bin/bash
for word in "$@"; do printf '%s\\0' "$word"; done > "$RECORDED"
env -0 > "$RECORDED.env"
"""


def recorded(folder: Path, program: str, argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """What a script starts `program` with, where a shell runs it."""
    (folder / program).write_text(RECORDER)
    (folder / program).chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "RECORDED": str(folder / "words"), "HOME": "/root"}
    subprocess.run(argv, env=env, check=True, timeout=60, cwd=folder)  # noqa: S603
    words = (folder / "words").read_bytes().decode().split("\0")[:-1]
    pairs = (folder / "words.env").read_bytes().decode().split("\0")[:-1]
    return words, dict(pair.split("=", 1) for pair in pairs)


@settings(fuzz, max_examples=max(2, EXAMPLES // 5))
@given(words=st.lists(WORDS, max_size=4), values=st.lists(WORDS, max_size=3))
@example(words=SOME, values=SOME)
def test_a_shell_gives_slurms_srun_the_same(tmp_path, words, values):
    made = job(words, {f"V{number}": value for number, value in enumerate(values)})
    if any(DOS in word for word in words + values):
        with pytest.raises(ConfigError, match="line ends"):
            registry.get("slurm").render(made)
        return
    (tmp_path / "job").write_text(registry.get("slurm").render(made).main, newline="")
    got, env = recorded(tmp_path, "srun", ["bash", str(tmp_path / "job")])
    expected = command.script(made)
    assert got[len(got) - len(expected) :] == expected
    for variable, value in made.environment.items():
        assert env.get(variable) == value


@pytest.mark.parametrize("cli", ["v1", "v2"])
def test_a_shell_gives_run_ai_the_same(tmp_path, cli):
    made = job(SOME, {f"V{number}": value for number, value in enumerate(SOME)}, runai={"cli": cli})
    rendered = registry.get("runai").render(made)
    (tmp_path / "job").write_text(rendered.main, newline="")
    got, _ = recorded(tmp_path, "runai", ["bash", str(tmp_path / "job")])
    expected = [command.in_pod(word) for word in command.script(made)]
    assert got[len(got) - len(expected) :] == expected
    assert [word for word in got if word.startswith("V0=")] == ["V0="]
    body = registry.parse_manifest(rendered.files["runai.yaml"], Path("runai.yaml"))
    assert shlex.split(body.documents[0].value["spec"]["args"])[-len(expected) :] == expected


@fuzz
@given(words=st.lists(WORDS, max_size=5))
@example(words=SOME)
def test_drumbeat_run_gives_its_script_the_same(words):
    made = job(words, {})
    options = typer.main.get_command(app).commands["run"]
    read = options.make_context("run", command.drumbeat_run(made)[2:]).params
    assert list(read["command"]) == command.script(made)
