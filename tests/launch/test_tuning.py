"""What is chosen for a machine, what is kept of it, and who wins."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path

import pytest

from drumbeat.launch.agreement import Standing, agree
from drumbeat.launch.calibration import ONEDNN_OFF, alternatives, judge
from drumbeat.launch.environment import share_of
from drumbeat.launch.machine import Machine, cpu_limit, cpu_model, physical_cores
from drumbeat.launch.settings import RunArguments, RunSettings, plan_run
from drumbeat.launch.tuner import Tuner, key_of
from drumbeat.launch.tuning import TUNED, Cache, Entry, Key

KEY = Key(cpu="A", cpus=2, limit=None, tensorflow="2.21.0", threads=1)


def finding(**by_operation: tuple[float, float]):
    """Of an alternative that is so many times as fast in the worst and the best of two rounds."""
    usual = [dict.fromkeys(by_operation, 1.0) for _ in range(2)]
    other = [{n: 1 / gains[r] for n, gains in by_operation.items()} for r in range(2)]
    return judge(ONEDNN_OFF, usual, other)


@pytest.mark.parametrize(
    ("gains", "is_taken"),
    [
        ({"a": (1.2, 1.3), "b": (1.1, 1.2)}, True),
        ({"a": (1.04, 1.04)}, False),  # too little
        ({"a": (0.95, 1.4)}, False),  # not in each round
        ({"a": (2.0, 2.0), "b": (0.8, 0.8)}, False),  # bad for those who use b alone
        ({"a": (2.0, 2.0), "b": (0.95, 0.95)}, True),
    ],
)
def test_only_what_is_clearly_better_is_taken(gains, is_taken):
    found = finding(**gains)
    assert found.is_taken is is_taken
    assert str(found).endswith(": taken." if is_taken else ": not taken.")


@pytest.mark.parametrize(
    ("threads", "physical", "environ", "names"),
    [
        (1, None, {}, ["oneDNN off"]),
        (4, 4, {}, ["oneDNN off"]),
        (4, 2, {}, ["oneDNN off", "a thread a core, not two"]),
        (4, 2, {"OMP_NUM_THREADS": "4"}, ["oneDNN off"]),
        (1, 1, {"TF_ENABLE_ONEDNN_OPTS": "1"}, []),
    ],
)
def test_what_is_measured(threads, physical, environ, names):
    assert [found.name for found in alternatives(threads, physical, environ)] == names


def cache_in(folder: Path) -> Cache:
    return Cache.of_user({"XDG_CACHE_HOME": str(folder)})


def better() -> Entry:
    return Entry(findings=(finding(a=(1.5, 1.6)),), measured="then")


def test_what_is_kept_holds_for_the_same_machine_only(tmp_path):
    cache = cache_in(tmp_path / "new")
    assert cache.is_writable
    assert cache.get(KEY) is None
    assert cache.put(KEY, better())
    again = cache_in(tmp_path / "new")
    assert again.get(KEY) == better()
    for other in ({"cpu": "B"}, {"cpus": 4}, {"limit": 1.5}, {"tensorflow": "3"}, {"threads": 2}):
        assert again.get(Key(**{**vars(KEY), **other})) is None
    assert again.clear()
    assert cache_in(tmp_path / "new").entries == {}
    assert not again.clear()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 99, "entries": {}}',
        b'{"format": 1, "entries": {"a": 3}}',
        b"\xff",
    ],
)
def test_a_file_that_is_broken_is_as_none(tmp_path, content):
    path = tmp_path / "drumbeat" / "tune.json"
    path.parent.mkdir()
    path.write_bytes(content)
    cache = cache_in(tmp_path)
    assert cache.entries == {}
    assert cache.put(KEY, better())
    assert cache_in(tmp_path).get(KEY) == better()


def test_the_file_sets_no_other_variable_than_those_that_are_measured(tmp_path):
    cache_in(tmp_path).put(KEY, better())
    path = tmp_path / "drumbeat" / "tune.json"
    content = json.loads(path.read_text())
    content["entries"][str(KEY)]["findings"][0]["variables"]["LD_PRELOAD"] = "1"
    path.write_text(json.dumps(content))
    entry = cache_in(tmp_path).get(KEY)
    assert entry is not None
    assert entry.variables == {"TF_ENABLE_ONEDNN_OPTS": "0"}


@pytest.mark.parametrize("environ", [{}, {"XDG_CACHE_HOME": "/dev/null"}, {"HOME": "relative"}])
def test_a_cache_that_can_not_be_written_keeps_nothing(environ):
    cache = Cache.of_user(environ)
    assert not cache.is_writable
    assert not cache.put(KEY, better())


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    def made(**arguments: object) -> RunSettings:
        given = RunArguments(command=("train.py",), **arguments)  # type: ignore[arg-type]
        return plan_run(given, {}, cpus=2, now=datetime(2026, 1, 1))

    return made


def tuner_of(settings: RunSettings, folder: Path, environ: dict[str, str], notes: list[str]):
    """A tuner that knows oneDNN to be better off."""
    machine = Machine(
        cpus=(0,), gpus=(), mpi=True, environ=environ, folder=folder, cache=cache_in(folder)
    )
    assert machine.cache is not None
    machine.cache.put(key_of(machine, machine.share(0, 1)), better())

    async def settled() -> Tuner:
        tuner = Tuner(settings, machine, machine.share(0, 1), folder, notes.append)
        tuner.variables()
        begin = asyncio.get_running_loop().create_future()
        await tuner.settle(begin)
        return tuner

    return asyncio.run(settled())


@pytest.mark.parametrize(
    ("arguments", "environ", "onednn", "chosen_by"),
    [
        ({}, {}, "0", "measurement"),
        ({}, {"TF_ENABLE_ONEDNN_OPTS": "1"}, "1", "the user"),
        ({"exact": 8}, {}, "1", "exact mode"),
    ],
)
def test_who_decides(plan, tmp_path, arguments, environ, onednn, chosen_by):
    notes: list[str] = []
    tuner = tuner_of(plan(**arguments), tmp_path, environ, notes)
    assert tuner.onednn == tuner.variables()["TF_ENABLE_ONEDNN_OPTS"] == onednn
    record = json.loads((tmp_path / "environment.json").read_text())
    assert record["variables"]["TF_ENABLE_ONEDNN_OPTS"] == {
        "value": onednn,
        "chosen_by": chosen_by,
    }
    said = "TF_ENABLE_ONEDNN_OPTS=1 is set in the environment and stays; drumbeat would set 0."
    assert notes == ([said] if environ else [])


def test_a_job_that_has_begun_decides_for_a_node_that_joins(plan, tmp_path):
    notes: list[str] = []
    tuner = tuner_of(plan(), tmp_path, {}, notes)
    tuner.variables()
    standings = [Standing(onednn="0"), Standing(job_id="a", onednn="1"), Standing(onednn="0")]
    tuner.adopt(agree(standings).onednn)
    assert tuner.is_changed
    assert tuner.onednn == "1"
    assert notes == ["TF_ENABLE_ONEDNN_OPTS=1, as the job's other workers have it."]
    assert agree([Standing(onednn="0"), Standing(onednn="1")]).onednn == "0"


@pytest.mark.parametrize(
    ("limit", "workers", "cpus", "threads"),
    [
        (None, 2, (0, 1, 2, 3), 4),
        (8.0, 2, (0, 1, 2, 3), 4),
        (4.0, 2, (), 2),
        (1.5, 2, (), 1),
        (0.5, 1, (), 1),
    ],
)
def test_a_containers_limit_decides_threads_and_pins_nothing(limit, workers, cpus, threads):
    share = share_of(tuple(range(8)), (), 0, workers, limit)
    assert (share.cpus, share.threads) == (cpus, threads)


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "200000 100000"}, 0.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "?"}, None),
        (
            "4:cpu,cpuacct:/a\n0::/",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        ("4:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("", {}, None),
    ],
)
def test_limits_of_control_groups(tmp_path, cgroup, files, limit):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpu_limit(tmp_path) == limit


def test_what_the_system_says_of_its_processors(tmp_path):
    assert cpu_model(tmp_path)  # says nothing here; Python knows something
    (tmp_path / "proc").mkdir()
    text = (
        "processor : 0\nvendor_id : V\nmodel : 7\nmodel name : Fast\n\nprocessor : 1\nmodel : 8\n"
    )
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert cpu_model(tmp_path) == "V 7 Fast"
    assert physical_cores([0, 1], tmp_path) is None
    for cpu, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores([0, 1, 2], tmp_path) == 2


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_first_run_measures_and_a_second_one_knows(jobs, monkeypatch):
    for name in TUNED:
        monkeypatch.delenv(name, raising=False)
    (jobs.folder / "imports.py").write_text("import tensorflow\n\ndef install():\n    pass\n")
    env = {"XDG_CACHE_HOME": str(jobs.folder / "cache")}
    script = "import os\nprint('onednn', os.environ['TF_ENABLE_ONEDNN_OPTS'])\n"
    outs = [
        jobs.run(script, preload="imports", options=("-n", "1"), env=env, timeout_s=100).out
        for _ in range(2)
    ]
    assert "Measuring once which settings" in outs[0]
    assert "oneDNN off: " in outs[0], outs[0]
    assert "Measuring" not in outs[1]
    assert "oneDNN off" not in outs[1]
    kept = (jobs.folder / "cache/drumbeat/tune.json").read_text()
    used = "0" if '"is_taken": true' in kept else "1"
    assert all(f"onednn {used}" in out for out in outs)
