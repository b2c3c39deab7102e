"""Arguments and environment to a plan; every mistake gets a message that helps."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import pytest

from drumbeat.cluster.rehearsing import Rehearsing
from drumbeat.errors import ConfigError
from drumbeat.launch.settings import RunArguments, RunSettings, plan_run, run_name

NOW = datetime(2030, 1, 2, 3, 4, 5)
TOKEN = {"DRUMBEAT_TOKEN": "secret"}
CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4"]}


@pytest.fixture
def arguments(tmp_path, monkeypatch) -> RunArguments:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "folder").mkdir()
    return RunArguments(command=("train.py", "--x"))


def plan(arguments: RunArguments, env: dict[str, str] | None = None, **more: object) -> RunSettings:
    return plan_run(replace(arguments, **more), env or {}, cpus=4, now=NOW)  # type: ignore[arg-type]


def tf_config(kind: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}})}


def test_one_machine_needs_nothing(arguments):
    settings = plan(arguments)
    assert (settings.workers, settings.ps, settings.nodes, settings.node_rank) == (1, 0, 1, 0)
    assert (settings.command, settings.args) == ("train.py", ("--x",))
    assert settings.run_name == "train-20300102-030405"
    assert settings.notes == ()


def test_too_many_workers_are_allowed_with_a_warning(arguments):
    assert "5 processes share 4 CPUs" in plan(arguments, workers=5).notes[0]
    assert plan(arguments, workers=4).notes == ()


def test_a_platform_without_tf_config_needs_no_argument(arguments):
    env = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n", **TOKEN}
    settings = plan(arguments, env, workers=2)
    assert (settings.nodes, settings.node_rank, settings.workers) == (2, 1, 2)
    assert settings.rendezvous == ("10.0.0.4", 2222)
    assert "SkyPilot: this is node 1 of 2" in settings.notes[0]
    assert plan(arguments, env, nodes=1).nodes == 1  # what is given wins
    # A pod that is not told how many there are says so.
    alone = plan(arguments, {"JOB_COMPLETION_INDEX": "3"})
    assert alone.nodes == 1
    assert "trains alone" in alone.notes[0]


@pytest.mark.parametrize(
    ("kind", "index", "rank"),
    [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("ps", 0, 3)],
)
def test_a_platforms_tf_config_needs_no_argument(arguments, kind, index, rank):
    env = {**tf_config(kind, index), **TOKEN}
    settings = plan(arguments, env)
    # The ps tasks are looked after like the workers.
    assert (settings.nodes, settings.node_rank, settings.workers) == (4, rank, 1)
    assert settings.rendezvous == ("a", 1)
    assert settings.token == "secret"
    assert (settings.lone_task, settings.has_servers) == (None, True)
    if kind != "ps":
        in_step = plan(arguments, env, strategy="multi-worker")
        assert (in_step.nodes, in_step.node_rank, in_step.has_servers) == (3, rank, False)


@pytest.mark.parametrize(
    ("task", "more", "is_idle"),
    [
        (("evaluator", 0), {}, False),
        (("ps", 0), {"keep_tf_strategies": True}, False),
        (("ps", 0), {"strategy": "multi-worker"}, True),
    ],
)
def test_tasks_that_nobody_waits_for_run_the_script_once_and_need_no_token(
    arguments, task, more, is_idle
):
    settings = plan(arguments, tf_config(*task), **more)
    assert str(settings.lone_task) == "{} {}".format(*task)
    assert (settings.nodes, settings.is_idle, settings.has_servers) == (1, is_idle, False)
    with pytest.raises(ConfigError, match="runs the script once, but 2 workers"):
        plan(arguments, tf_config(*task), workers=2, **more)


def test_what_drumbeat_does_not_look_after_is_not_started_again(arguments):
    assert plan(arguments).max_restarts == 10
    assert plan(arguments, max_restarts=0).max_restarts == 0
    for env, more in (({}, {"ps": 1}), (tf_config("ps", 0), {}), (tf_config("chief", 0), {})):
        env = {**env, **TOKEN}
        assert plan(arguments, env, **more).max_restarts == 10
        kept = plan(arguments, env, **more, keep_tf_strategies=True)
        assert kept.max_restarts == 0
        assert "has no effect" not in " ".join(kept.notes)
        asked = plan(arguments, env, **more, keep_tf_strategies=True, max_restarts=3)
        assert asked.max_restarts == 0
        assert "--max-restarts 3 has no effect" in " ".join(asked.notes)


def test_arguments_win_over_tf_config_and_the_log_says_so(arguments):
    env = {**tf_config("worker", 0), **TOKEN}
    settings = plan(arguments, env, nodes=2, node_rank=0, rendezvous="localhost:9000")
    assert (settings.nodes, settings.node_rank) == (2, 0)
    assert settings.rendezvous == ("localhost", 9000)
    assert settings.platform is None
    assert "TF_CONFIG is set, but --nodes is given and wins" in settings.notes[0]
    assert plan(arguments, env, rendezvous="[::1]:9000").rendezvous == ("::1", 9000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 0}, r"-n is 0 \(workers\); expected 1 to"),
        ({"workers": -3}, "-n is -3"),
        ({"workers": 10**6}, "-n is 1000000"),
        ({"ps": -1}, "--ps is -1"),
        ({"nodes": 0}, "--nodes is 0"),
        ({"nodes": 2}, "Give --node-rank 0 to 1"),
        ({"nodes": 2, "node_rank": 2}, "--node-rank is 2 of --nodes 2; expected 0 to 1"),
        ({"nodes": 1, "node_rank": 1}, "--node-rank is 1 of --nodes 1"),
        ({"nodes": 2, "node_rank": 1}, "--rendezvous is not given; expected HOST:PORT"),
        ({"nodes": 2, "node_rank": 1, "rendezvous": "host"}, "--rendezvous is 'host'"),
        ({"nodes": 2, "node_rank": 1, "rendezvous": "h:1"}, "DRUMBEAT_TOKEN is not set"),
        ({"node_rank": 1}, "--node-rank is 1, but --nodes is not given"),
        ({"rendezvous": "h:1"}, "--rendezvous is 'h:1', but --nodes is not given"),
        ({"collectives": "mpl"}, "expected one of auto, mpi, tensorflow"),
        ({"exact": 0}, r"--exact-shards is 0 \(virtual shards\); expected 1 to"),
        ({"workers": 3, "exact": 8}, "3 workers can't share 8 .* a multiple of 3, such as 9"),
        ({"workers": 2, "shares": "2"}, "--shares is 2, but there are 2 workers"),
        ({"workers": 2, "shares": "half"}, "shares are 'half'; expected a whole number"),
        ({"workers": 2, "shares": "1,0"}, "shares are '1,0'"),
        ({"workers": 2, "shares": "2,1", "exact": 8}, "leave out --shares"),
        ({"compress": "int9"}, "compress is 'int9'.* Did you mean int8"),
        ({"compress": "int8", "exact": 8}, "compress=int8 and exact=8"),
        ({"compress": "topk", "ps": 1}, "parameter servers"),
        ({"jit": "yes"}, "jit is 'yes'; expected one of auto, on, off"),
        ({"jit": "on", "exact": 8}, "jit=on and exact=8 exclude each other"),
        ({"strategy": "ps"}, "--strategy is 'ps'; expected one of auto, one-device"),
        ({"strategy": "parameter-server", "workers": 2}, "no ps task.* Add --ps 1"),
        ({"ps": 1, "exact": 8}, "--exact is of the strategy multi-worker.* parameter servers"),
        ({"strategy": "mirrored", "shares": "auto"}, "--shares auto is of the strategy multi"),
        ({"strategy": "mirrored", "processes_per_node": 2}, "--processes-per-node 2 is of"),
        ({"ps": 1, "processes_per_node": 2}, "--processes-per-node 2 is of"),
        ({"workers": 3, "processes_per_node": 2}, "3 devices .* can't be shared evenly"),
        ({"devices_per_worker": 0}, "--devices-per-worker is 0"),
        ({"seed": -1}, "--seed is -1"),
        ({"start_timeout_s": 0.0}, "--start-timeout is 0.0"),
        ({"rejoin_timeout_s": -1.0}, "--rejoin-timeout is -1.0"),
        ({"max_restarts": -1}, "--max-restarts is -1"),
        ({"collective_timeout_s": float("nan")}, "--collective-timeout is nan"),
        ({"inject": ("kill:rank=1,step=3",)}, "--inject kill.* no rank 1 in a job of 1 worker"),
        (
            {"ps": 1, "keep_tf_strategies": True, "inject": ("kill:rank=0,step=3",)},
            "--inject strikes .* Leave it out",
        ),
        ({"ps": 1, "inject": ("oom:rank=1,step=3",)}, "rank 1 is a server.* kill, stop, crash"),
        ({"ps": 1, "inject": ("kill:rank=3,step=3",)}, "no rank 3 in a job of 3 workers"),
        ({"command": ()}, "What should run"),
        ({"command": ("folder",)}, "folder is a folder; expected a Python script"),
        ({"command": ("train",)}, "did you mean train.py"),
        ({"command": ("package.train",)}, "does not exist"),
        ({"command": ("nope.py",)}, "nope.py does not exist"),
        ({"command": ("a/b.py",), "is_module": True}, "is not the name of a module"),
    ],
)
def test_mistakes(arguments, given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        plan(arguments, **given)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "processes", "devices", "ps", "chosen", "note"),
    [
        ({}, 1, None, 0, "one-device", None),
        ({"workers": 1}, 1, 1, 0, "one-device", None),
        ({"workers": 2}, 2, 1, 0, "multi-worker", None),
        ({"devices_per_worker": 2}, 1, 2, 0, "mirrored", "mirrored (one worker with 2 devices)"),
        ({"workers": 2, "ps": 1}, 2, 1, 1, "parameter-server", "parameter-server (1 ps task)"),
        (
            {"workers": 2, "devices_per_worker": 2},
            *(4, 1, 0, "multi-worker"),
            "2 workers of 2 devices: 4 processes, each with one device",
        ),
        (
            {"workers": 2, "devices_per_worker": 2, "processes_per_node": 2},
            *(2, 2, 0, "multi-worker", "multi-worker (2 workers)"),
        ),
        # The same options under every strategy.
        *(
            ({"workers": 2, "ps": 1, "strategy": name}, processes, devices, ps, name, note)
            for name, processes, devices, ps, note in (
                ("one-device", 1, 1, 0, "one process on one device, not 2"),
                ("mirrored", 1, 2, 0, "one process with 2 devices, in place of 2 workers"),
                ("central-storage", 1, 2, 0, "one process with 2 devices"),
                ("multi-worker", 2, 1, 0, "--ps 1 has no effect"),
                ("parameter-server", 2, 1, 1, None),
            )
        ),
        ({"strategy": "mirrored"}, 1, None, 0, "mirrored", None),
    ],
)
def test_processes_and_devices(arguments, given, processes, devices, ps, chosen, note):
    settings = plan(arguments, **given)
    assert (settings.workers, settings.devices_per_worker, settings.ps) == (processes, devices, ps)
    assert settings.chosen_strategy == chosen
    notes = [said for said in settings.notes if "share 4 CPUs" not in said]
    assert note in " ".join(notes) if note else notes == []


def test_a_strategy_of_one_process_on_several_machines_is_refused(arguments):
    for env, more in (
        (tf_config("worker", 0), {}),
        ({}, {"nodes": 2, "node_rank": 0, "rendezvous": "h:1"}),
    ):
        with pytest.raises(ConfigError, match="trains in one process, but the cluster has"):
            plan(arguments, {**env, **TOKEN}, strategy="mirrored", **more)


def test_exact_mode_has_a_seed_of_its_own(arguments):
    assert plan(arguments).seed is None
    assert plan(arguments, exact=8).seed == 0
    assert plan(arguments, exact=8, seed=5).seed == 5


def test_mistakes_in_the_environment(arguments):
    with pytest.raises(ConfigError, match="a worker of a job already"):
        plan(arguments, {"DRUMBEAT_RANK": "0"})
    with pytest.raises(ConfigError, match="TF_CONFIG"):
        plan(arguments, {"TF_CONFIG": "not JSON"})
    with pytest.raises(ConfigError, match="DRUMBEAT_TOKEN is not set"):
        plan(arguments, {**tf_config("worker", 0), "DRUMBEAT_TOKEN": " "})
    with pytest.raises(ConfigError, match="TF_CONFIG says that this is worker 0"):
        plan(arguments, {**tf_config("worker", 0), **TOKEN}, node_rank=1)
    headless = {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}
    with pytest.raises(ConfigError, match="ps tasks but no chief.*--strategy multi-worker"):
        plan(arguments, {"TF_CONFIG": json.dumps(headless), **TOKEN})


@pytest.mark.parametrize(
    ("command", "is_module", "name"),
    [
        ("some dir/träin me.py", False, "träin_me"),
        ("pkg.train", True, "pkg.train"),
        ("...", False, "run"),
    ],
)
def test_run_names_are_safe(command, is_module, name):
    arguments = RunArguments(command=(command,), is_module=is_module)
    assert run_name(arguments, NOW) == f"{name}-20300102-030405"


def test_options_after_the_script_are_pointed_out(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    for more, told in (
        (("-n", "2"), True),
        (("--exact",), True),
        (("--shares=2,1",), True),
        (("--strategy", "mirrored"), True),
        (("--epochs", "2"), False),
    ):
        planned = plan_run(RunArguments(command=(str(script), *more)), {}, cpus=2, now=NOW)
        assert any("before the script" in note for note in planned.notes) is told
    many = plan_run(RunArguments(command=(str(script), "-n", "2"), workers=2), {}, cpus=2, now=NOW)
    assert not any("before the script" in note for note in many.notes)


def test_a_file_is_no_module():
    with pytest.raises(ConfigError, match="Leave out -m to run a file"):
        plan_run(RunArguments(command=("train.py",), is_module=True), {}, cpus=2, now=NOW)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, None),
        ("backups", "{here}/backups"),
        ("/mnt/backups/", "/mnt/backups"),
        ("file:///mnt/backups", "/mnt/backups"),
        ("memory://bucket/job/", "memory://bucket/job"),
    ],
)
def test_the_folder_for_backups_gets_its_full_name(arguments, tmp_path, given, name):
    expected = name and name.format(here=tmp_path)
    assert plan(arguments, backup_dir=given).backup_dir == expected


def test_without_backups_that_is_said(arguments):
    assert plan(arguments, ps=1, backup_dir="backups").backup_dir is not None
    settings = plan(arguments, ps=1, backup_dir="backups", keep_tf_strategies=True)
    assert settings.backup_dir is None
    assert any("--backup-dir has no effect" in note for note in settings.notes)


def test_a_rehearsal_keeps_to_its_folder(arguments, tmp_path):
    order = Rehearsing(steps=5, report=tmp_path / "worker-0.json").to_env()
    settings = plan(arguments, env=order, backup_dir="gs://team/backups", run_dir="/srv/runs")
    assert settings.backup_dir == str(tmp_path / "outputs" / "backups")
    assert settings.run_dir == tmp_path / "worker-0"
    assert plan(arguments, env=order).backup_dir is None


@pytest.mark.parametrize("option", ["backup_every_s", "grace_s"])
def test_times_of_backups_are_positive(arguments, option):
    with pytest.raises(ConfigError, match="expected a number of seconds above 0"):
        plan(arguments, **{option: 0.0})


def test_backups_that_go_nowhere_are_refused(arguments):
    with pytest.raises(ConfigError, match="--backup-every is 5, .* expected --backup-dir"):
        plan(arguments, backup_every_s=5.0)


def test_a_backup_driver_that_is_not_there_is_named(arguments):
    with pytest.raises(ConfigError, match="pip install adlfs"):
        plan(arguments, backup_dir="abfs://container/job")
