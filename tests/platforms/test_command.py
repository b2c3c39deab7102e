"""What the nodes run: options of `drumbeat run`, placeholders, variables."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from drumbeat.cli.options import app
from drumbeat.platforms import command
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.jobfile.run_options import RunOptions

# Which key of the job file stands for which other option of `drumbeat run`; None: for none, since
# what it says differs from node to node, or it is for rehearsals.
ELSEWHERE = {
    "command": "script, args",
    "module": "module",
    "workers": "workers, min_workers",
    "ps": "ps",
    "evaluator": "evaluator",
    "devices_per_worker": "devices",
    "processes_per_node": "devices",
    "max_restarts": "restarts",
    "start_timeout": "timeouts.start",
    "collective_timeout": "timeouts.collective",
    "nodes": None,
    "node_rank": None,
    "rendezvous": None,
    "inject": None,
}
ONE_OF_EACH: dict[str, Any] = {
    "strategy": "multi-worker",
    "backend": "jax",
    "exact": True,
    "exact_shards": 4,
    "shares": "2,1",
    "seed": 3,
    "compress": "int8",
    "sync_every": 8,
    "outer": "nesterov",
    "jit": "off",
    "collectives": "mpi",
    "keep_tf_strategies": True,
    "strict_names": True,
    "keras": 2,
    "rejoin_timeout": 90.5,
    "hang_timeout": 0,
    "snapshot_every": 0,
    "backup_dir": "gs://b/x",
    "backup_every": "5m",
    "grace": 20,
    "run_dir": "runs/x",
}


def run_command() -> Any:
    return typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]


def job(**keys: Any) -> Job:
    return Job.model_validate({"name": "digits", "script": "train.py", **keys})


def test_run_options_are_those_of_drumbeat_run_that_nothing_else_stands_for():
    options = {parameter.name for parameter in run_command().params} - {"help"}
    assert set(RunOptions.model_fields) == options - set(ELSEWHERE)
    assert set(ELSEWHERE) <= options


def test_each_option_is_read_by_drumbeat_run_as_it_is_meant():
    assert set(ONE_OF_EACH) == set(RunOptions.model_fields)
    words = RunOptions.model_validate(ONE_OF_EACH).words()
    read = run_command().make_context("run", [*words, "train.py"]).params
    for name, value in ONE_OF_EACH.items():
        assert read[name] == (300 if name == "backup_every" else value), name
    assert list(read["command"]) == ["train.py"]


def test_nothing_is_said_that_was_not_set():
    assert RunOptions().words() == []
    assert command.drumbeat_run(job()) == ["drumbeat", "run", "train.py"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, ""),
        ({"workers": 8, "devices": {"count": 4}}, "-n 4"),
        ({"workers": 8, "min_workers": 4}, "-n 4:8"),
        ({"workers": 8, "min_workers": 4, "devices": {"count": 4}}, "-n 4:8"),
        ({"workers": 4, "min_workers": 4, "devices": {"count": 4}}, "-n 4"),
        ({"ps": 2, "evaluator": True}, "--ps 2 --evaluator"),
        ({"restarts": 0}, "--max-restarts 0"),
        ({"timeouts": {"start": "2m", "collective": 1.5}},
         "--start-timeout 120 --collective-timeout 1.5"),
        ({"timeouts": {"total": "2m"}}, ""),
        ({"output": "gs://b/x/"}, "--backup-dir gs://b/x/backups"),
        ({"output": "gs://b/x", "run": {"backup_dir": "/b"}}, "--backup-dir /b"),
        ({"run": {"exact": False, "jit": "auto"}}, "--jit auto"),
    ],
)  # fmt: skip
def test_the_options_of_a_job(keys, words):
    assert command.drumbeat_run(job(**keys))[2:-1] == words.split()


def test_a_platform_with_tasks_for_ps_starts_none():
    assert "--ps" not in command.drumbeat_run(job(ps=2), ps=0)


def test_a_module():
    made = Job.model_validate({"name": "a", "module": "pkg.train", "args": ["x"]})
    assert command.script(made) == ["-m", "pkg.train", "x"]


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{data}", "{output}/x"),  # what stands there is not looked at again
        ("{output}/model.keras", "gs://b/digits/model.keras"),
        ("{name}-{name}", "digits-digits"),
        ("{epoch:02d}", "{epoch:02d}"),
        ("{{data}}", "{{output}/x}"),
        ("{}", "{}"),
        ("100%", "100%"),
    ],
)
def test_placeholders(word, filled):
    made = job(args=[word], data="{output}/x", output="gs://b/digits")
    assert command.script(made) == ["train.py", filled]


@pytest.mark.parametrize("key", ["data", "output"])
def test_a_placeholder_for_nothing_is_refused(key):
    with pytest.raises(ValueError, match=f"there is no {key}"):
        job(args=[f"{{{key}}}/x"])


def test_the_variables_of_every_node():
    made = job(environment={"A": "1"}, data="/d", output="/o")
    assert command.environment(made) == {"A": "1", "DRUMBEAT_DATA": "/d", "DRUMBEAT_OUTPUT": "/o"}
    assert command.environment(job()) == {}


def test_a_shell_reads_the_words_again():
    import shlex

    words = ["drumbeat", "run", "a b.py", "--x", "it's", "$HOME", "", "\n"]
    assert shlex.split(command.shell(words)) == words
