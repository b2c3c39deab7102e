"""Whatever is in a file or a variable: a result or a message, never a traceback."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.cli.whoami import describe
from drumbeat.cluster import hostlist, launched_by
from drumbeat.errors import DrumbeatError
from drumbeat.platforms import registry
from drumbeat.platforms.doctor import manifest as doctor
from drumbeat.platforms.jobfile import read
from drumbeat.platforms.jobfile.documents import Document, parse_toml, parse_yaml
from drumbeat.platforms.platform import Manifest, Rehearsal

_SPEC = importlib.util.spec_from_file_location("fuzzing", Path(__file__).parent / "fuzzing.py")
assert _SPEC is not None
assert _SPEC.loader is not None
fuzzing = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fuzzing)
fuzz, broken, scratched, message = (
    fuzzing.fuzz,
    fuzzing.broken,
    fuzzing.scratched,
    fuzzing.message,
)
pytestmark = pytest.mark.timeout(120 + fuzzing.EXAMPLES)
FOLDER = Path(__file__).parents[2] / "docs" / "platforms" / "examples"
NAMES = list(registry.PLATFORMS)


class Ports:
    """Places of a rehearsal."""

    def __init__(self) -> None:
        self.last = 20_000

    def port(self) -> int:
        self.last += 1
        return self.last


class TestHostLists:
    @fuzz
    @given(
        st.text("n[]0123456789,-() x:", max_size=30)
        | fuzzing.TEXT
        | st.sampled_from(["n[1-3]", "rack[1-2]n[01-16],login", "n[1-99999]"]).flatmap(scratched)
    )
    def test_of_hosts(self, text: str) -> None:
        try:
            assert len(hostlist.expand(text)) <= hostlist.MAX_HOSTS
        except DrumbeatError as error:
            message(error)

    @fuzz
    @given(st.text("0123456789,(x)", max_size=20) | fuzzing.TEXT)
    def test_of_counts(self, text: str) -> None:
        try:
            assert len(hostlist.expand_counts(text)) <= hostlist.MAX_HOSTS
        except DrumbeatError as error:
            message(error)


JOB_TEXT = (FOLDER / "drumbeat.yaml").read_text()
JOB = parse_yaml(JOB_TEXT, "job")[0].value
EVERYTHING = JOB | {
    "ps": 1,
    "evaluator": True,
    "data": "/data",
    "mounts": [{"name": "a", "path": "/a", "source": "nas:/x", "read_only": True}],
    "kubernetes": {
        "namespace": "a",
        "tolerations": [{"key": "b", "tolerationSeconds": 5}],
        "labels": {"c": "d"},
    },
    "vertex": {"project": "p", "region": "us-central1", "spot": True},
    "slurm": {"partition": "p", "setup": ["module load x"], "extra": ["--reservation=a"]},
    "ray": {"runtime_env": {"pip": ["a"]}},
    "runai": {"project": "p", "gpu_portion": 0.5},
}


def read_job(folder: Path, data: bytes, name: str = "drumbeat.yaml", *changes: str) -> None:
    path = folder / name
    path.write_bytes(data)
    try:
        job = read.read(path, changes)
    except DrumbeatError as error:
        message(error)
        return
    for platform in NAMES:
        make = registry.get(platform).render
        if make is None:
            continue
        try:
            rendered = make(job)
        except DrumbeatError as error:
            message(error)
        else:
            assert rendered == make(job)
            assert rendered.main
            "".join(rendered.files.values()).encode()


class TestJobFiles:
    @fuzz
    @given(data=st.binary(max_size=60) | fuzzing.TEXT.map(lambda t: t.encode("utf-8", "replace")))
    def test_any_bytes(self, tmp_path, data):
        read_job(tmp_path, data)
        read_job(tmp_path, data, "pyproject.toml")

    @fuzz
    @given(text=scratched(JOB_TEXT))
    def test_a_scratched_file(self, tmp_path, text):
        read_job(tmp_path, text.encode("utf-8", "replace"))

    @fuzz
    @given(value=broken(EVERYTHING) | fuzzing.VALUES | fuzzing.DEEP)
    def test_a_broken_structure(self, tmp_path, value):
        read_job(tmp_path, json.dumps(value).encode())

    @fuzz
    @given(change=st.builds("{}={}".format, fuzzing.TEXT | st.sampled_from(
        ["workers", "args", "kubernetes.labels.a", "resources.memory", "environment.X", "run"]),
        fuzzing.TEXT | fuzzing.VALUES.map(str)))  # fmt: skip
    def test_odd_changes(self, tmp_path, change):
        read_job(tmp_path, JOB_TEXT.encode(), "drumbeat.yaml", change)

    @pytest.mark.parametrize(
        "text",
        [
            "a: &a [*a]",
            "&a a: *a",
            "? &a [*a]\n: 1",
            "<<: [*x]",
            "a: !!python/object/apply:os.system [x]",
            "!!set {a, b}",
            "!!omap [a: 1]",
            "!!binary YQ==",
            "name: !!binary '@'",
            "workers: !!int x",
            "workers: !!float x",
            "workers: !!int ''",
            "workers: 0x",
            "workers: 0o9",
            "workers: 1__0",
            "workers: -.inf",
            "workers: 12:30",
            "workers: !!bool maybe",
            "data: !!timestamp x",
            "data: 2030-99-99",
            "data: !!null x",
            "%YAML 1.1\n---\nevaluator: yes",
            "%YAML 9.9\n---\na: 1",
            "%TAG ! x\n---\na: !y 1",
            "a: |9\n x",
            "a: >\n\tx",
            "\ufeffname: a",
            "a: b: c",
            "- [",
            "{}",
            "[]",
            "''",
            "--- a\n...\n--- b",
            "# nothing",
            "name: a\rscript: b",
        ],
    )
    def test_odd_yaml(self, tmp_path, text):
        read_job(tmp_path, text.encode())
        read_job(tmp_path, f"{JOB_TEXT}\n{text}\n".encode())

    @fuzz
    @given(text=st.text(max_size=40) | scratched("[tool.drumbeat]\nname = 'a'\nargs = [1, 1.5]"))
    def test_toml(self, text):
        try:
            parse_toml(text, "pyproject.toml")
        except DrumbeatError as error:
            message(error)


@functools.cache
def example(name: str) -> tuple[str, list[Any]]:
    """The main file of a platform's example, as text and as documents."""
    platform = registry.get(name)
    own = FOLDER / name / "drumbeat.yaml"
    if platform.render is None:
        text = (FOLDER / name / "config.yaml").read_text()
    else:
        text = platform.render(read.read(own if own.exists() else FOLDER / "drumbeat.yaml")).main
    if text.startswith("#!"):
        return text, []
    try:
        return text, [document.value for document in parse_yaml(text, name)]
    except DrumbeatError:
        return text, []


def look_at(folder: Path, text: str, platform: str) -> None:
    path = folder / "manifest"
    path.write_bytes(text.encode("utf-8", "replace"))
    try:
        manifest = registry.read_manifest(path)
    except DrumbeatError as error:
        message(error)
        return
    try:
        registry.recognise(manifest)
    except DrumbeatError as error:
        message(error)
    of_platform(manifest, platform)


def of_platform(manifest: Manifest, name: str) -> None:
    platform = registry.get(name)
    assert platform.recognises(manifest) in (True, False)
    if platform.convert is not None:
        try:
            assert platform.convert(manifest).main
        except DrumbeatError as error:
            message(error)
    if not platform.recognises(manifest):
        return
    if platform.problems is not None:
        assert all(text.strip() for text in platform.problems(manifest))
    assert all(each.text.strip() for each in doctor.check(manifest, platform))
    if platform.rehearse is not None:
        try:
            rehearsal = platform.rehearse(manifest, Ports())
        except DrumbeatError as error:
            message(error)
            return
        check_rehearsal(rehearsal)


def check_rehearsal(rehearsal: Rehearsal) -> None:
    assert rehearsal.processes
    for process in rehearsal.processes:
        assert process.command
        assert all(isinstance(word, str) and "\0" not in word for word in process.command)
        for key, value in process.env.items():
            assert isinstance(value, str), (key, value)
            assert key
            assert not {"=", "\0"} & set(key)
            assert "\0" not in value
    assert all(text.strip() for text in rehearsal.differences)


@pytest.mark.parametrize("name", NAMES)
class TestManifests:
    def test_the_example_itself(self, tmp_path, name):
        text, _ = example(name)
        look_at(tmp_path, text, name)

    @fuzz
    @given(data=st.data())
    def test_scratched(self, tmp_path, name, data):
        look_at(tmp_path, data.draw(scratched(example(name)[0])), name)

    @fuzz
    @given(data=st.data())
    def test_a_broken_structure(self, tmp_path, name, data):
        _, documents = example(name)
        if documents:
            values = data.draw(broken(documents))
            text = "\n---\n".join(json.dumps(value) for value in values)
            look_at(tmp_path, text, name)

    def test_nothing_in_place_of_each_part(self, tmp_path, name):
        """Null, and empty ones, are what templates leave most often."""
        _, documents = example(name)
        for path in fuzzing.places(documents)[:: 1 + 20 // fuzzing.EXAMPLES]:
            for put in (None, {}, [], ""):
                values = fuzzing.put_at(documents, path, put)
                manifest = Manifest(
                    path=tmp_path / "manifest",
                    text="",
                    documents=tuple(Document(value=value) for value in values),
                )
                of_platform(manifest, name)

    @fuzz
    @given(value=fuzzing.VALUES | fuzzing.DEEP)
    def test_of_something_else(self, tmp_path, name, value):
        look_at(tmp_path, json.dumps(value), name)


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "TF_CONFIG": {
        "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", '
        '"index": 1}}'
    },
    "drumbeat": {
        "DRUMBEAT_NODES": "2",
        "DRUMBEAT_NODE_RANK": "1",
        "DRUMBEAT_RENDEZVOUS": "first:4711",
    },
    "Vertex AI": {
        "CLUSTER_SPEC": json.dumps(
            {
                "cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222", "c:2222"]},
                "task": {"type": "workerpool1", "index": 1},
            }
        )
    },
    "SageMaker": {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"},
    "Ray": {"RAY_RAYLET_PID": "4711"},
    "SkyPilot": {
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n",
        "SKYPILOT_NUM_NODES": "2",
    },
    "Kubernetes": {
        "JOB_COMPLETION_INDEX": "2",
        "DRUMBEAT_NODES": "3",
        "HOSTNAME": "train-node-0-2",
        "DRUMBEAT_SUBDOMAIN": "train",
    },
    "Slurm": {
        "SLURM_JOB_ID": "20077",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "2",
        "SLURM_STEP_NODELIST": "n[1-2,10]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    },
}
ALL_VARIABLES = sorted({name for env in ENVIRONMENTS.values() for name in env})


@st.composite
def environments(draw: st.DrawFn) -> dict[str, str]:
    """One or two platforms' variables, some of them broken."""
    env: dict[str, str] = {}
    for name in draw(st.lists(st.sampled_from(sorted(ENVIRONMENTS)), min_size=1, max_size=2)):
        env |= ENVIRONMENTS[name]
    for name in draw(st.lists(st.sampled_from(ALL_VARIABLES), max_size=3)):
        how = draw(st.sampled_from(["remove", "scratch", "set"]))
        if how == "remove":
            env.pop(name, None)
        elif how == "scratch":
            env[name] = draw(scratched(env.get(name, "")))
        else:
            env[name] = draw(fuzzing.TEXT | fuzzing.VALUES.map(json.dumps))
    return env


class TestEnvironments:
    def test_there_is_one_for_each_finder(self):
        assert set(launched_by.FINDERS) <= set(ENVIRONMENTS)

    @fuzz
    @given(environments())
    def test_finders_and_whoami(self, env):
        for find in launched_by.FINDERS.values():
            try:
                found = find(env)
                assert found is None or 0 <= found.node_rank < found.nodes
            except DrumbeatError as error:
                message(error)
        lines, _ = describe(env)
        assert lines
        assert all(line.strip() for line in lines)


def test_broken_manifests_are_made_of_whole_ones():
    assert [name for name in NAMES if example(name)[0].strip()] == NAMES
    assert sum(bool(example(name)[1]) for name in NAMES) >= len(NAMES) // 2
