"""The schema that editors get says what the model says; `init` writes what both take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile import first, read
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.jobfile.model import Job, Mount, Secret
from drumbeat.platforms.jobfile.run_options import RunOptions

VALIDATOR = jsonschema.Draft202012Validator(first.schema())
FULL: dict[str, Any] = {
    "name": "digits",
    "script": "train.py",
    "args": ["--lr", 0.1, "--epochs", 3, "{data}"],
    "image": "img:1",
    "workers": 4,
    "min_workers": 2,
    "devices": {"type": "gpu", "count": 2, "accelerator": "a100"},
    "resources": {"cpu": 1.5, "memory": "8Gi", "shm": 2**30},
    "environment": {"A": "x", "B": 1},
    "mounts": [{"name": "data", "path": "/data", "read_only": True}],
    "secrets": [{"name": "key", "path": "/s", "env": "KEY"}],
    "data": "/data",
    "timeouts": {"total": "24h", "start": 60, "collective": 0.5},
    "run": {"compress": "int8", "seed": 1, "hang_timeout": 0},
    "kubernetes": {"labels": {"a": 1}, "tolerations": [{"key": "x"}], "keep": "1h"},
    "vertex": {"boot_disk": "100Gi", "spot": True},
}


def sections(model: type[BaseModel], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all mappings with keys of their own."""
    found = [path]
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += sections(inner, (*path, name))
    return found


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(first.schema())


def test_the_schema_takes_what_the_model_takes():
    assert Job.model_validate(FULL).nodes == 2
    assert list(VALIDATOR.iter_errors(FULL)) == []


@pytest.mark.parametrize("path", sections(Job), ids=".".join)
def test_both_refuse_unknown_keys_everywhere(path):
    broken = json.loads(json.dumps(FULL))
    here = broken
    for step in path:
        here = here.setdefault(step, {})
    here["no_such_key"] = 1
    assert [error.validator for error in VALIDATOR.iter_errors(broken)] == ["additionalProperties"]
    with pytest.raises(ValueError, match="no_such_key"):
        Job.model_validate(broken)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workers", "4"),
        ("workers", True),
        ("workers", 0),
        ("workers", 2.5),
        ("workers", None),
        ("evaluator", "no"),
        ("name", "Not-A-Name"),
        ("args", "a"),
        ("args", [True]),
        ("devices", {"type": "tpu"}),
        ("mounts", [{"name": "a"}]),
        ("mounts", {"name": "a", "path": "/x"}),
        ("environment", {"A": None}),
        ("compose", None),
        ("resources", {"memory": []}),
    ],
)
def test_both_refuse_a_wrong_value(key, value):
    broken = {**FULL, key: value}
    assert not VALIDATOR.is_valid(broken)
    with pytest.raises(ValueError, match=key):
        Job.model_validate(broken)


def keys(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All keys that a job file may have, with their schemas."""
    for where, section in (("Job", schema), *schema["$defs"].items()):
        for name, key in section["properties"].items():
            yield f"{where}.{name}", key


def test_every_key_is_explained():
    schema = first.schema()
    found = dict(keys(schema))
    assert len(found) > 90
    for name, key in found.items():
        section = schema["$defs"].get(key.get("$ref", "").rpartition("/")[2], {})
        text = key.get("description") or section.get("description", "")
        assert len(text) >= 4, f"{name} has no description"
        assert text.endswith((".", "python:<version>-slim.")), name
        assert "title" not in key
        assert key.get("default", "") is not None


def test_every_example_of_a_key_is_valid():
    schema = first.schema()
    count = 0
    for name, key in keys(schema):
        validator = VALIDATOR.evolve(schema={**key, "$defs": schema["$defs"]})
        for value in key.get("examples", ()):
            count += 1
            assert list(validator.iter_errors(value)) == [], name
            assert is_taken(name, value), name
    assert count > 20


def is_taken(name: str, value: object) -> bool:
    """Whether the model takes a value for a key such as "Docker.base"."""
    where, _, key = name.partition(".")
    sections = {"Job": Job, "Mount": Mount, "Secret": Secret, "RunOptions": RunOptions}
    fields = {each.annotation for each in Job.model_fields.values()}
    sections |= {each.__name__: each for each in fields if isinstance(each, type)}
    try:
        sections[where].model_validate({key: value})
    except ValidationError as error:
        return all(problem["loc"][:1] != (key,) for problem in error.errors())
    return True


def documented() -> Iterator[tuple[str, str]]:
    """Job files in the docs, by where they are."""
    docs = Path(__file__).parents[3] / "docs"
    for path in sorted(docs.rglob("drumbeat.yaml")):
        yield str(path.relative_to(docs)), path.read_text()
    for path in sorted(docs.rglob("*.md")):
        for number, block in enumerate(re.findall(r"```ya?ml\n(.*?)```", path.read_text(), re.S)):
            if re.search(r"^name: ", block, re.M) and re.search(r"^(script|module): ", block, re.M):
                yield f"{path.relative_to(docs)}-{number}", block


@pytest.mark.parametrize(("where", "text"), list(documented()), ids=lambda value: value[:40])
def test_the_job_files_of_the_docs_are_valid(where, text):
    (document,) = parse_yaml(text, where)
    assert list(VALIDATOR.iter_errors(document.value)) == []
    assert Job.model_validate(document.value)


WORDS = st.text("aZ_-/1 .0:,=KMGi", max_size=8)
FORMS = {
    "name": lambda word: {"name": word},
    "script": lambda word: {"script": word},
    "image": lambda word: {"image": word},
    "mount": lambda word: {"mounts": [{"name": "a", "path": word}]},
    "secret": lambda word: {"secrets": [{"name": "a", "env": word}]},
    "variable": lambda word: {"environment": {word: "x"}},
    "namespace": lambda word: {"kubernetes": {"namespace": word}},
    "account": lambda word: {"slurm": {"account": word}},
    "compress": lambda word: {"run": {"compress": word}},
    "user": lambda word: {"kubernetes": {"user": word}},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.timeout(60)
@settings(deadline=None)
@given(word=WORDS)
@example(word="TF_CONFIG")
@example(word="DRUMBEAT_NODES")
@example(word="hf_Token")
@example(word="PAD_TOKEN")
@example(word="TOKENS")
@example(word="int8")
@example(word="int7")
@example(word="powersgd:4")
@example(word="image")
@example(word="/data")
@example(word="-a")
@example(word="r.io:5000/a__b/c-d.e:V1@sha256:12")
def test_text_is_refused_by_the_schema_where_the_model_refuses_it(form, word):
    value = {"name": "a", "script": "t.py", **FORMS[form](word)}
    try:
        Job.model_validate(value)
        is_valid = True
    except ValidationError:
        is_valid = False
    assert VALIDATOR.is_valid(value) == is_valid


@pytest.mark.parametrize("key", ["resources.memory", "timeouts.total", "run.shares", "run.outer"])
@pytest.mark.timeout(60)
@settings(deadline=None)
@given(word=st.text("1250.KMGimhd ,autonesrv:-", max_size=6))
@example(word="8Gi")
@example(word=" 1.5 h ")
@example(word="2,1")
@example(word="nesterov:0.7,0.9")
@example(word="8gb")
def test_of_amounts_the_schema_takes_all_that_the_model_takes(key, word):
    section, _, name = key.partition(".")
    value = {"name": "a", "script": "t.py", section: {name: word}}
    if key == "run.outer":
        value["run"]["sync_every"] = 8
    try:
        Job.model_validate(value)
    except ValidationError:
        return
    assert list(VALIDATOR.iter_errors(value)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("resources", {"memory": "8 gigs"}),
        ("resources", {"memory": 8}),
        ("resources", {"cpu": 0}),
        ("timeouts", {"total": "1 week"}),
        ("timeouts", {"total": 0}),
        ("run", {"shares": "a,b"}),
        ("run", {"outer": "adam", "sync_every": 8}),
        ("run", {"sync_every": 0}),
        ("run", {"strategy": "mirorred"}),
        ("kubernetes", {"user": 0}),
        ("secrets", [{"name": "a"}]),
        ("environment", {"A": [1]}),
        ("environment", {"HF_TOKEN": "x"}),
        ("module", "also.a.module"),
    ],
)
def test_both_refuse_the_wrong_form(key, value):
    broken = {"name": "a", "script": "t.py", key: value}
    assert not VALIDATOR.is_valid(broken)
    with pytest.raises(ValidationError):
        Job.model_validate(broken)


def test_every_key_of_the_model_is_in_the_schema_and_the_other_way_round():
    assert set(first.schema()["properties"]) == set(Job.model_fields)


class TestInit:
    """`drumbeat init`."""

    @pytest.mark.parametrize(
        ("script", "name"),
        [
            ("train.py", "train"),
            ("Train MNIST (2).py", "train-mnist-2"),
            ("pkg/train_it.py", "train-it"),
            ("01_train.py", "train"),
            ("42.py", "train"),
            ("entraînement.py", "entra-nement"),
            ("\U0001f600.py", "train"),
            ("true", "true"),
            ("null", "null"),
            ("12", "train"),
            ('it\'s: "x" # y.py', "it-s-x-y"),
            ("a" * 60 + ".py", "a" * 40),
        ],
    )
    def test_a_first_file_is_valid(self, tmp_path, script, name):
        (tmp_path / script).parent.mkdir(exist_ok=True)
        (tmp_path / script).write_text("")
        path = first.write(script, tmp_path, image=None, workers=3, force=False)
        job = read.read(path)
        assert (job.name, job.script, job.workers) == (name, script, 3)
        assert job.image == f"{name}:1"
        value = parse_yaml(path.read_text(), "x")[0].value
        assert list(VALIDATOR.iter_errors(value)) == []
        assert json.loads((tmp_path / first.SCHEMA_FILE).read_text()) == first.schema()
        assert first.SCHEMA_FILE in path.read_text().splitlines()[0]

    def test_path_as_shells_complete_it(self, tmp_path):
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "train.py").write_text("")
        given = str(tmp_path / "src" / "train.py")
        path = first.write(given, tmp_path, image=None, workers=2, force=False)
        assert read.read(path).script == "src/train.py"

    def test_what_is_commented_out_is_valid_too(self, tmp_path):
        (tmp_path / "train.py").write_text("")
        path = first.write("train.py", tmp_path, image="r.io:5000/a/b@sha256:12", workers=2,
                           force=False)  # fmt: skip
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[0], *(line.removeprefix("# ") for line in lines[3:])]))
        job = read.read(path)
        assert job.image == "r.io:5000/a/b@sha256:12"
        assert job.timeouts.total == 86400
        assert job.secrets[0].file == "/secrets/gcp/sa.json"

    @pytest.mark.parametrize(
        ("script", "more", "message"),
        [
            ("missing.py", {}, "missing.py does not exist in"),
            ("../x.py", {}, "is not within"),
            ("/etc/hosts", {}, "is not within"),
            ("-x.py", {}, "is not within"),
            (".", {}, ". is a folder; expected a Python script"),
            ("train.py", {"image": "My Image"}, "image is 'My Image'; expected an image's name"),
            ("\udcff.py", {}, "is not text in UTF-8"),
            ("train.py", {"workers": 0}, "workers is 0; expected at least 1."),
            ("train.py", {"image": " "}, "image is ' '; expected text"),
            ("train.py", {"image": "a\udcff"}, "is not text in UTF-8"),
        ],
    )
    def test_what_is_wrong_is_said_before_anything_is_written(
        self, tmp_path, script, more, message
    ):
        (tmp_path / "train.py").write_text("")
        with pytest.raises(ConfigError) as refused:
            first.write(script, tmp_path, **{"image": None, "workers": 2, "force": False, **more})
        assert message in str(refused.value)
        assert [path.name for path in tmp_path.iterdir()] == ["train.py"]

    def test_a_file_that_is_there_stays_but_for_force(self, tmp_path):
        (tmp_path / "train.py").write_text("")
        (tmp_path / "drumbeat.yaml").write_text("mine")
        with pytest.raises(ConfigError, match="exists; --force writes it anew"):
            first.write("train.py", tmp_path, image=None, workers=2, force=False)
        assert (tmp_path / "drumbeat.yaml").read_text() == "mine"
        assert read.read(first.write("train.py", tmp_path, image=None, workers=2, force=True))
