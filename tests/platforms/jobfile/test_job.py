"""Each key of the job file, with what it takes and what it refuses, and how."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms.jobfile import documents, hints, read
from drumbeat.platforms.jobfile.model import Job

BASE = "name: digits\nscript: train.py\n"
GIB = 1024**3


@pytest.fixture
def job(tmp_path):
    """Reads BASE with `text` below it."""

    def make(text: str = "", base: str = BASE, changes: tuple[str, ...] = ()) -> Job:
        path = tmp_path / "drumbeat.yaml"
        path.write_text(base + text + "\n")
        return read.read(path, changes)

    return make


def at(job: BaseModel, dotted: str) -> Any:
    value: Any = job
    for key in dotted.split("."):
        value = value[int(key)] if key.isdigit() else getattr(value, key)
    return value


GOOD = [
    ("module: null", "module", None),
    ("args: [--lr, 1e-4, --version, 1.10, --id, 007, 2030-01-02, '']", "args",
     ["--lr", "1e-4", "--version", "1.10", "--id", "007", "2030-01-02", ""]),
    ("image: ghcr.io/team/digits@sha256:ab", "image", "ghcr.io/team/digits@sha256:ab"),
    ("workers: 1024", "workers", 1024),
    ("workers: 4\nmin_workers: 4", "min_workers", 4),
    ("ps: 0", "ps", 0),
    ("evaluator: true", "evaluator", True),
    ("devices: {type: gpu, accelerator: NVIDIA_L4}", "devices.gpus", 1),
    ("workers: 8\ndevices: {type: cpu, count: 4}", "nodes", 2),
    ("machine_type: n1-standard-8", "machine_type", "n1-standard-8"),
    ("resources: {cpu: 0.5}", "resources.cpu", 0.5),
    ("resources: {cpu: 4}", "resources.cpu", 4),
    ("resources: {memory: 8Gi}", "resources.memory", 8 * GIB),
    ("resources: {memory: 8GiB}", "resources.memory", 8 * GIB),
    ("resources: {memory: 1.5G}", "resources.memory", 1_500_000_000),
    ("resources: {memory: 8589934592}", "resources.memory", 8 * GIB),
    ("resources: {shm: 512Mi}", "resources.shm", GIB // 2),
    ("environment: {A: 1, B: '', C: 0.10}", "environment", {"A": "1", "B": "", "C": "0.10"}),
    ("mounts: [{name: data, path: /data, source: 'nas:/export', read_only: true}]",
     "mounts.0.read_only", True),
    ("secrets: [{name: k, path: /s, env: KEY}]", "secrets.0.file", "/s/k"),
    ("secrets: [{name: k, key: sa.json, path: /s}]", "secrets.0.file", "/s/sa.json"),
    ("secrets: [{name: k, env: KEY}]", "secrets.0.entry", "k"),
    ("data: gs://bucket/x", "data", "gs://bucket/x"),
    ("output: runs/x\nargs: ['{output}/model']", "output", "runs/x"),
    ("restarts: 0", "restarts", 0),
    ("timeouts: {start: 90, collective: 1.5m, total: 24h}", "timeouts.total", 86400),
    ("timeouts: {collective: 1.5m}", "timeouts.collective", 90),
    ("timeouts: {total: 7d}", "timeouts.total", 7 * 86400),
    ("run: {strategy: multi-worker, jit: on, hang_timeout: 0}", "run.jit", "on"),
    ("run: {compress: powersgd:4}", "run.compress", "powersgd:4"),
    ("run: {shares: '2,1'}", "run.shares", "2,1"),
    ("run: {sync_every: 64, outer: nesterov}", "run.sync_every", 64),
    ("run: {exact: true, seed: 7}", "run.seed", 7),
    ("kubernetes: {tolerations: [{key: a, tolerationSeconds: 5}]}", "kubernetes.tolerations",
     [{"key": "a", "tolerationSeconds": 5}]),
    ("kubernetes: {labels: {version: 1.10}}", "kubernetes.labels", {"version": "1.10"}),
    ("runai: {gpu_portion: 0.5}", "runai.gpu_portion", 0.5),
    ("vertex: {boot_disk: 200Gi}", "vertex.boot_disk", 200 * GIB),
    ("slurm: {setup: [module load cuda]}", "slurm.setup", ["module load cuda"]),
    ("ray: {runtime_env: {pip: [a, 1]}}", "ray.runtime_env", {"pip": ["a", 1]}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "value"), GOOD, ids=[case[0] for case in GOOD])
def test_what_a_key_takes(job, text, key, value):
    assert at(job(text), key) == value


# Each message is the whole of it, after the file's name.
BAD = [
    ("image: ''", ":3: image is ''; expected text; leave the key out where there is none."),
    ("image: Team/digits", ":3: image is 'Team/digits'; expected an image's name: "),
    ("image: a b:1", ":3: image is 'a b:1'; expected an image's name: "),
    ("image: 'a:1:2'", ":3: image is 'a:1:2'; expected an image's name: "),
    ("image: 3", ":3: image is 3; expected text."),
    ("args: --lr 1", ":3: args is '--lr 1'; expected a list, such as [--epochs, \"3\"]."),
    ("args:\n- a\n- true",
     ':5: args.1 is True; expected text; write "true" in quotes if it is meant.'),
    ("args: [null]", ':3: args.0 is empty; expected text; write "null" in quotes if it is meant.'),
    ("args: ['{data}/x']", ": args has {data}, but there is no data: in the job file."),
    ("workers: 0", ":3: workers is 0; expected at least 1."),
    ("workers: 2000", ":3: workers is 2000; expected at most 1024."),
    ("workers: 2.5", ":3: workers is 2.5; expected a whole number."),
    ("workers: '4'", ":3: workers is '4'; expected a whole number."),
    ("workers: true", ":3: workers is True; expected a whole number."),
    ("workers: 2:4", ":3: workers is '2:4'; expected a whole number."),
    ("\nworkers:", ":4: workers is empty; expected a whole number. Leave the key out where there "
     "is none."),
    ("workers: 2\nmin_workers: 3", ": min_workers is 3, but workers is 2; expected at most as "
     "many."),
    ("min_workers: 1\nps: 1", ": min_workers can't be had with ps, whose state no snapshot has."),
    ("ps: -1", ":3: ps is -1; expected at least 0."),
    ("evaluator: 'no'", ":3: evaluator is 'no'; expected true or false."),
    ("module: a.b", ": expected either script: (a file) or module: (a module's name)."),
    ("devices: {type: tpu}", ":3: devices.type is 'tpu'; expected 'cpu' or 'gpu'."),
    ("devices: {count: 3}", ": workers is 2, and each node has 3 devices with a worker each; "
     "expected a number of workers that 3 divides."),
    ("devices: gpu", ":3: devices is 'gpu'; expected keys and values, such as {type: gpu, "
     "count: 4}."),
    ("resources:\n  cpu: 0", ":4: resources.cpu is 0; expected more than 0.0."),
    ("resources: {cpu: .nan}", ":3: resources.cpu is nan; expected at most 4096.0."),
    ("resources: {memory: 8 gigs}", ":3: resources.memory is '8 gigs'; expected an amount of "
     "memory such as 8Gi or 512Mi."),
    ("resources: {memory: 8}", ":3: resources.memory is 8; expected at least 1Mi; a number alone "
     "is bytes, so write 8Gi for GiB."),
    ("resources: {memory: 999999999999P}", ":3: resources.memory is '999999999999P'; expected at "
     "most 1152921504606846976."),
    ("resources:\n  # cpu: 4", ":3: resources is empty; expected keys and values, such as {cpu: 4, "
     "memory: 8Gi}. Leave the key out where there is none."),
    ("environment: {TF_CONFIG: x}", ":3: environment: TF_CONFIG is set by drumbeat or the "
     "platform; leave it out."),
    ("environment: {DRUMBEAT_TOKEN: x}", ":3: environment: DRUMBEAT_TOKEN is set by drumbeat or "
     "the platform; leave it out."),
    ("environment:\n  A-B: x", ":4: environment.A-B is 'A-B'; expected the name of a variable: "
     "letters, digits and _."),
    ("environment: [A=1]", ":3: environment is ['A=1']; expected keys and values, such as "
     '{TF_CPP_MIN_LOG_LEVEL: "1"}.'),
    ("mounts: [{name: data, path: data}]", ":3: mounts.0.path is 'data'; expected an absolute "
     "path in the container, such as /data."),
    ("mounts: [{path: /data}]", ":3: mounts.0.name is missing."),
    ("mounts:\n- {name: a, path: /a}\n- {name: b, paht: /b}",
     ":5: mounts.1.path is missing.\ndrumbeat.yaml:5: in mounts.1: 'paht' is unknown; did you mean "
     "path?"),
    ("secrets: [{name: k}]", ":3: secrets.0: expected env: (a variable), path: (a folder), or "
     "both."),
    ("secrets: [{name: K, env: A}]", ":3: secrets.0.name is 'K'; expected small letters, digits "
     "and -, from a letter on, at most 40 of them."),
    ("restarts: -1", ":3: restarts is -1; expected at least 0."),
    ("timeouts: {total: 1 week}", ":3: timeouts.total is '1 week'; expected a time such as 90m, "
     "24h or a number of seconds."),
    ("timeouts: {total: 0}", ":3: timeouts.total is 0; expected more than 0."),
    ("timeouts: {end: 1}", ":3: in timeouts: 'end' is unknown; expected one of start, collective, "
     "total."),
    ("run: {strategy: mirorred}", ":3: run.strategy is 'mirorred'; expected 'auto', 'one-device', "
     "'mirrored', 'central-storage', 'multi-worker' or 'parameter-server'."),
    ("run: {compress: int7}", ":3: run.compress is 'int7'; expected one of none, bf16, fp16, "
     "int8, powersgd, topk, auto, such as int8 or powersgd:4."),
    ("run: {shares: '2,0'}", ":3: run.shares are '2,0'; expected a whole number from 1 to 1000000 "
     "for each worker, such as 2,1 where the first takes twice as many rows as the second, or "
     "auto."),
    ("run: {workers: 3}", ":3: in run: 'workers' is unknown; expected it at the top of the file, "
     "not in run."),
    ("gpus: 4", ":3: 'gpus' is unknown; did you mean devices: {type: gpu, count: 4}?"),
    ("resources: {gpu: 1}", ":3: in resources: 'gpu' is unknown; did you mean devices: {type: gpu, "
     "count: 4}, at the top of the file?"),
    ("env: {A: b}", ":3: 'env' is unknown; did you mean environment?"),
    ("Env-Vars: {A: b}", ":3: 'Env-Vars' is unknown; did you mean environment?"),
    ("entrypoint: a.py", ":3: 'entrypoint' is unknown; did you mean script?"),
    ("replicas: 4", ":3: 'replicas' is unknown; did you mean workers?"),
    ("region: x", ":3: 'region' is unknown; expected it in vertex, sagemaker, as in vertex: "
     "{region: …}."),
    ("secrets: [aws-key]", ":3: secrets.0 is 'aws-key'; expected keys and values, such as {name: "
     "aws-key, env: AWS_SECRET_ACCESS_KEY}."),
    ("secrets: aws-key", ":3: secrets is 'aws-key'; expected a list, such as [{name: aws-key, env: "
     "AWS_SECRET_ACCESS_KEY}]."),
    ("kubernetes: {tolerations: x}", ":3: kubernetes.tolerations is 'x'; expected a list, such as "
     "[a, b]."),
    ("kubernetes:\n  namespce: a", ":4: in kubernetes: 'namespce' is unknown; did you mean "
     "namespace?"),
    ("kubernetes: {namespace: Team}", ":3: kubernetes.namespace is 'Team'; expected small "
     "letters, digits and -, from a letter on, at most 40 of them."),
    ("runai: {gpu_portion: 2}", ":3: runai.gpu_portion is 2; expected at most 1.0."),
    ("runai: {cli: 2}", ":3: runai.cli is 2; expected 'v1' or 'v2'."),
    ("vertex: {spot: 1}", ":3: vertex.spot is 1; expected true or false."),
    ("wrokers: 3", ":3: 'wrokers' is unknown; did you mean workers?"),
    ("Min-Workers: 3", ":3: 'Min-Workers' is unknown; did you mean min_workers?"),
    ("xyzzy: 3", ":3: 'xyzzy' is unknown; expected one of name, script, "),
    ("name: other", ':3: found duplicate key "name" with value "other" (original value: '
     '"digits"); expected YAML.'),
    ("image: [a", ":4: expected ',' or ']', but got '<stream end>'; expected YAML."),
    ("---\nname: b", " has 2 documents; expected one, a job."),
    ("image: \"a\\0b\"", ": 'a\\x00b' has a NUL character, which no program takes."),
    ("image: \"\\ud800\"", ": '\\ud800' is not text in UTF-8."),
    ("image: {{ .Values.image }}", " is a template. Fill in its {{ … }} first, as helm template "
     "does."),
    ("{{- if a }}\nimage: b\n{{- end }}", ":4: "),
    ("? {a: b}\n: c", ": the key ordereddict([('a', 'b')]) is not text; quote it."),
    ("? [a, b]\n: c", ": the key ('a', 'b') is not text; quote it."),
    (f"workers: {'9' * 5000}", ":3: the number '999999999999...9999999999999' has more than 300 "
     "digits; expected YAML."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD, ids=[case[0][:40] for case in BAD])
def test_what_a_key_refuses(job, text, message):
    with pytest.raises(ConfigError) as refused:
        job(text)
    said = str(refused.value).removeprefix("drumbeat.yaml")
    assert said.startswith(message)
    assert message.endswith(" ") or said == message or "one of" in message


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("script: a.py", "drumbeat.yaml: name is missing."),
        ("name: a", "expected either script: (a file) or module:"),
        ("name: a\nscript: -x.py", ":2: script is '-x.py'; expected a name that does not begin"),
        ("name: -a\nscript: x.py", "digits and -, from a letter on"),
        (f"name: {'a' * 41}\nscript: x.py", "at most 40 of them"),
        ("", "drumbeat.yaml is empty; expected a job: name: and script:, at least. "),
        ("# name: a\n", "drumbeat.yaml is empty"),
        ("- a\n- b", "holds ['a', 'b']; expected keys such as name, script, module."),
        ("just text", "holds 'just text'; expected keys"),
    ],
)
def test_a_job_must_have_a_name_and_a_program(job, base, message):
    with pytest.raises(ConfigError) as refused:
        job(base=base)
    assert message in str(refused.value)


def test_all_problems_are_told_at_once_up_to_eight(job):
    with pytest.raises(ConfigError) as refused:
        job("\n".join(f"unknown_{number}: 1" for number in range(10)))
    lines = str(refused.value).splitlines()
    assert len(lines) == 9
    assert lines[0].startswith("drumbeat.yaml:3: ")
    assert lines[-1] == "and 2 more"


def test_every_key_of_every_section_is_explained_by_a_nearest_one(job):
    """A typo in any key of any section leads to the key."""
    for name, field in Job.model_fields.items():
        model = field.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        for key in model.model_fields:
            if len(key) < 5:
                continue
            with pytest.raises(ConfigError) as refused:
                job(f"{name}: {{{key}x: 1}}")
            assert f"did you mean {key}?" in str(refused.value)


def test_each_key_that_holds_others_has_an_example_that_is_right(job):
    for key, text in hints.EXAMPLES.items():
        job(f"workers: 4\n{key}: {text}")
    for key in {*Job.model_fields} - {"name", "script"}:
        said = ""
        try:
            job(f"{key}: '!'")
        except ConfigError as problem:
            said = str(problem)
        assert "{a: b}" not in said
        assert "[a, b]" not in said


def test_what_other_tools_call_it_is_no_key_but_leads_to_one(job):
    for key, words in hints.MEANT.items():
        name, _, value = key.partition(": ")
        assert name in Job.model_fields
        if value:
            job(f"workers: 4\n{key}")
        assert not {*words} & {*Job.model_fields}


def test_aliases_and_merges_are_plain_values(job):
    made = job(
        "environment: &env {A: 1}\nkubernetes:\n  labels: *env\n  annotations: {<<: *env, B: 2}"
    )
    assert made.kubernetes.labels == {"A": "1"}
    assert made.kubernetes.annotations == {"A": "1", "B": "2"}


def test_a_bomb_of_aliases_is_refused(job):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ConfigError, match="stands for more than 100,000 values"):
        job("\n".join(lines))


@pytest.mark.parametrize("text", ["[" * 500 + "]" * 500, "[" * 300, "{a: " * 100 + "}" * 100])
def test_deep_nesting_is_refused(job, text):
    with pytest.raises(ConfigError, match="nested deeper than|expected YAML"):
        job(f"image: {text}")


class TestToml:
    """`[tool.drumbeat]`."""

    def read(self, folder: Path, text: str) -> Job:
        path = folder / "pyproject.toml"
        path.write_text(text)
        return read.read(read.find(None, folder))

    def test_means_the_same(self, tmp_path):
        text = """
            [project]
            name = "x"
            [tool.drumbeat]
            name = "digits"
            script = "train.py"
            args = ["--lr", 1e-4, "--version", 1.10]
            [tool.drumbeat.resources]
            memory = "8Gi"
            [[tool.drumbeat.secrets]]
            name = "key"
            env = "KEY"
        """
        made = self.read(tmp_path, text)
        assert made.args == ["--lr", "1e-4", "--version", "1.10"]
        assert made.resources.memory == 8 * GIB
        assert made.secrets[0].env == "KEY"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[tool.drumbeat]\nname = 'a'\nscrpt = 'b'", "pyproject.toml, [tool.drumbeat]: "
             "'scrpt' is unknown; did you mean script?"),
            ("[tool.drumbeat\n", "expected TOML"),
            ("[tool]\ndrumbeat = 3", "holds 3; expected keys"),
            ("[tool.drumbeat]\nname = \"a\\u0000\"", "has a NUL character"),
            (f"[tool.drumbeat]\nname = {'9' * 5000}", "expected TOML"),
            ("[tool.drumbeat]\nname = " + "[" * 5000, "expected TOML"),
        ],
    )  # fmt: skip
    def test_is_refused_as_clearly(self, tmp_path, text, message):
        with pytest.raises(ConfigError) as refused:
            self.read(tmp_path, text)
        assert message in str(refused.value) or "nested deeper" in str(refused.value)

    def test_a_project_without_the_table_is_no_job_file(self, tmp_path):
        with pytest.raises(ConfigError, match="There is no job file in"):
            self.read(tmp_path, "[project]\nname = 'x'")
        with pytest.raises(ConfigError, match=r"has no table \[tool.drumbeat\]"):
            read.read(tmp_path / "pyproject.toml")

    def test_yaml_comes_first(self, tmp_path):
        (tmp_path / "drumbeat.yaml").write_text("name: by-yaml\nscript: a.py")
        text = "[tool.drumbeat]\nname = 'by-toml'\nscript = 'a.py'"
        assert self.read(tmp_path, text).name == "by-yaml"


class TestCommandLine:
    """`--set` and its like win over the file."""

    @pytest.mark.parametrize(
        ("change", "key", "value"),
        [
            ("workers=4", "workers", 4),
            ("image=img:2", "image", "img:2"),
            ("kubernetes.namespace=team", "kubernetes.namespace", "team"),
            ("resources.memory=8Gi", "resources.memory", 8 * GIB),
            ("machine-type=n1", "machine_type", "n1"),
            ("args=[--lr, 1e-4]", "args", ["--lr", "1e-4"]),
            ("environment.A=1.10", "environment", {"A": "1.10"}),
            ("evaluator=true", "evaluator", True),
            ("data=gs://b/x=y", "data", "gs://b/x=y"),
            ("image=a: b", "image", None),
            ("image=null", "image", None),
        ],
    )
    def test_a_change_wins(self, job, change, key, value):
        base = BASE + "workers: 2\nimage: img:1\n"
        if value is None and change != "image=null":
            with pytest.raises(ConfigError, match="with the command line: image is"):
                job(base=base, changes=(change,))
        else:
            assert at(job(base=base, changes=(change,)), key) == value

    def test_the_last_one_wins(self, job):
        assert job(changes=("workers=3", "workers=4")).workers == 4

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("workers", "--set is 'workers'; expected KEY=VALUE, such as workers=4."),
            ("=4", "--set is '=4'; expected KEY=VALUE"),
            ("wrokers=4", "with the command line: 'wrokers' is unknown; did you mean workers?"),
            ("workers=four", "with the command line: workers is 'four'; expected a whole number."),
            ("name.x=4", "--set is 'name.x=4', but name holds no other keys."),
            ("args.0=4", "--set is 'args.0=4', but args holds no other keys."),
            ("image=\udcff", "is not text in UTF-8"),
            ("\udcff=a", "is not text in UTF-8"),
        ],
    )
    def test_a_bad_change_is_explained(self, job, change, message):
        with pytest.raises(ConfigError) as refused:
            job("args: [a]", changes=(change,))
        assert message in str(refused.value)

    def test_what_is_wrong_in_the_file_is_said_to_be_there(self, job):
        with pytest.raises(ConfigError, match=r"drumbeat.yaml:3: workers is 0"):
            job("workers: 0", changes=("workers=2",))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist (looked in "),
        (lambda path: path.mkdir(), "is a folder; expected a file."),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not text in UTF-8."),
        (lambda path: path.write_bytes(b"a" * (1024**2 + 1)), "is larger than 1 MiB."),
    ],
)
def test_a_file_that_is_none(tmp_path, make, message):
    path = tmp_path / "drumbeat.yaml"
    make(path)
    with pytest.raises(ConfigError) as refused:
        read.read(path)
    assert str(refused.value).startswith(f"{path} {message}")


def test_a_pipe_is_read_and_one_that_nobody_writes_to_is_not_waited_for(tmp_path, monkeypatch):
    pipe = tmp_path / "drumbeat.yaml"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=("name: a\nscript: a.py\n",)).start()
    assert read.read(pipe).name == "a"
    monkeypatch.setattr(documents, "_PIPE_S", 0.1)
    with pytest.raises(DrumbeatError, match="drumbeat.yaml took longer than 0.1 s. It is no file"):
        read.read(pipe)


def test_a_path_that_is_none():
    with pytest.raises(ConfigError, match="is no path"):
        read.read(Path("a\0b.yaml"))
