"""Ray: what is rendered, the driver's options, its leash, anybody's job, and the client."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from drumbeat.cli import whoami
from drumbeat.cluster import launched_by
from drumbeat.cluster.spec import ClusterSpec
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import registry
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Manifest
from drumbeat.platforms.ray import client as ray_client
from drumbeat.platforms.ray import driver as ray_driver
from drumbeat.platforms.ray import options as ray_options
from drumbeat.platforms.ray import render as platform
from drumbeat.platforms.ray.client import RayClient
from drumbeat.platforms.ray.options import Options

ADDRESS = "http://ray:8265"


class Ports:
    def port(self) -> int:
        return 5001


def job(**keys: object) -> Job:
    return Job.model_validate({"name": "digits", "script": "train.py", **keys})


def document(wanted: Job) -> dict:
    return parse_yaml(platform.render(wanted).main, "ray.yaml")[0].value


def manifest(text: str) -> Manifest:
    documents = tuple(parse_yaml(text, "ray.yaml"))
    return Manifest(path=Path("/nowhere/ray.yaml"), text=text, documents=documents)


# ---- rendering


def test_the_entrypoint_is_the_driver_with_the_jobs_command():
    words = shlex.split(document(job(workers=3, args=["a b"]))["entrypoint"])
    assert words[:3] == ["python", "-m", "drumbeat.platforms.ray.driver"]
    assert ray_options.parse(words[3:]) == Options(
        nodes=3, cpus=1.0, command=("drumbeat", "run", "train.py", "a b")
    )


def test_what_a_node_needs():
    gpus = {"type": "gpu", "count": 4, "accelerator": "A100"}
    options = platform.options_of(
        job(
            workers=8,
            devices=gpus,
            resources={"cpu": 12, "memory": "64Gi"},
            timeouts={"total": "2h", "start": 30},
            run={"grace": 40},
            ray={"placement": "STRICT_SPREAD"},
        )
    )
    assert options.nodes == 2
    assert options.bundle == {
        "CPU": 12.0,
        "GPU": 4.0,
        "memory": 64 * 2**30,
        "accelerator_type:A100": 0.001,
    }
    assert (options.grace, options.timeout, options.start_timeout) == (40, 7200, 30)
    assert options.placement == "STRICT_SPREAD"
    assert platform.options_of(job(workers=2, devices={"count": 2})).bundle == {"CPU": 2.0}


def test_the_folder_goes_there_without_keys():
    runtime_env = document(job())["runtime_env"]
    assert runtime_env["working_dir"] == "."
    assert {"**/*.pem", "**/.env", "**/secrets", "/.git", "/runs"} <= set(runtime_env["excludes"])
    assert "env_vars" not in runtime_env


def test_a_runtime_environment_of_the_users_wins():
    given = {"working_dir": "s3://b/code.zip", "pip": ["drumbeat"], "env_vars": {"A": "1"}}
    wanted = job(ray={"runtime_env": given}, environment={"B": "2"}, data="/d")
    assert document(wanted)["runtime_env"] == {
        "working_dir": "s3://b/code.zip",
        "pip": ["drumbeat"],
        "env_vars": {"B": "2", "DRUMBEAT_DATA": "/d", "A": "1"},
    }
    assert not any("need drumbeat" in note for note in platform.render(wanted).notes)


def test_nothing_secret_is_written_and_the_gaps_are_told():
    secrets = [
        {"name": "gcp", "key": "sa.json", "path": "/s", "env": "GOOGLE_APPLICATION_CREDENTIALS"},
        {"name": "hub", "env": "HUB_TOKEN"},
    ]
    wanted = job(secrets=secrets, mounts=[{"name": "d", "path": "/data"}], image="a/b:1")
    rendered = platform.render(wanted)
    assert "HUB_TOKEN" not in rendered.main
    assert "DRUMBEAT_TOKEN" not in rendered.main
    notes = " ".join(rendered.notes)
    for text in ("/s/sa.json must be there", "HUB_TOKEN must be set", "/data must", "a/b:1"):
        assert text in notes


# ---- the driver


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: command"),
        (["--nodes", "two", "--", "drumbeat"], "invalid int value: 'two'"),
        (["--nodes", "0", "--", "drumbeat"], "--nodes is 0"),
        (["--placement", "NEAR", "--", "drumbeat"], "invalid choice: 'NEAR'"),
        (["--cpu", "x", "--", "drumbeat"], "invalid float value: 'x'"),
        (["--unknown", "1", "--", "drumbeat"], "unknown"),
    ],
)
def test_wrong_options(words, message):
    with pytest.raises(ConfigError) as error:
        ray_options.parse(words)
    assert message in str(error.value)


def test_options_are_read_as_they_are_written():
    for options in (
        Options(command=("drumbeat", "run", "--", "-x")),
        Options(
            nodes=2, cpus=0.5, gpus=1.0, memory=5, placement="PACK", command=("a", "--nodes", "3")
        ),
    ):
        assert ray_options.parse(options.words()) == options


def test_what_an_agent_is_told():
    assert ray_driver.variables(1, 3, ("10.0.0.5", 4711), "t") == {
        "DRUMBEAT_NODES": "3",
        "DRUMBEAT_NODE_RANK": "1",
        "DRUMBEAT_RENDEZVOUS": "10.0.0.5:4711",
        "DRUMBEAT_TOKEN": "t",
    }
    found = launched_by.find(ray_driver.variables(2, 3, ("fd00::2", 4711), "t"))
    assert found is not None
    assert (found.node_rank, found.nodes, found.host, found.port) == (2, 3, "fd00::2", 4711)
    assert ray_driver.variables(0, 1, ("", 0), "t") == {
        "DRUMBEAT_NODES": "1",
        "DRUMBEAT_NODE_RANK": "0",
    }


@pytest.mark.parametrize(
    ("codes", "decision"),
    [
        ({}, None),
        ({0: 0}, None),
        ({0: 0, 1: 0}, 0),
        ({1: 3}, 3),
        ({1: 75, 0: 75}, 75),
        ({0: 0, 1: 137}, 137),
    ],
)
def test_the_jobs_exit_code(codes, decision):
    assert ray_driver.decide(codes, nodes=2) == decision


def test_a_reason_is_one_line():
    traced = "ray::Agent.start()\n  File 'a', line 5\nModuleNotFoundError: No module named 'x'\n"
    assert ray_driver._reason(RuntimeError(traced)) == "ModuleNotFoundError: No module named 'x'"
    assert ray_driver._reason(RuntimeError("The actor died.\nmore")) == "The actor died."
    assert ray_driver._reason(RuntimeError()) == "RuntimeError"


def leash(grace_s: float, *command: str) -> tuple[subprocess.Popen, int]:
    """A leash around a command; and where it tells the exit code."""
    status, told = os.pipe()
    words = [sys.executable, "-m", "drumbeat.platforms.ray.leash", str(told), str(grace_s)]
    process = subprocess.Popen(
        [*words, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(told,)
    )
    os.close(told)
    assert process.wait(60) == 0, "it leaves no child behind"
    return process, status


def close(process: subprocess.Popen) -> None:
    process.stdin.close()
    process.stdout.close()


def told(status: int) -> str:
    with os.fdopen(status) as file:
        return file.read().strip()


def test_the_leash_tells_the_exit_code():
    process, status = leash(1, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert process.stdout.read() == b"out\n"
    assert told(status) == "7"
    close(process)
    process, status = leash(1, "/no/such/program")
    assert b"can't be started" in process.stdout.read()
    assert told(status) == "127"
    close(process)


def test_the_leash_lets_it_save_and_end():
    script = "trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.05; done"
    process, status = leash(30, "sh", "-c", script)
    assert process.stdout.readline() == b"ready\n"
    process.stdin.write(b"T")
    process.stdin.close()  # the actor may end meanwhile
    assert process.stdout.read() == b"saved\n"
    assert told(status) == "75"
    close(process)


@pytest.mark.parametrize("word", [b"", b"T"], ids=["the actor is gone", "it does not end"])
def test_the_leash_kills_all_of_it(word):
    script = "trap '' TERM; sleep 600 & echo $!; wait; wait"
    process, status = leash(0.2, "sh", "-c", script)
    child = int(process.stdout.readline())
    process.stdin.write(word)
    process.stdin.close()
    assert told(status) == str(128 + signal.SIGKILL)
    close(process)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}/cmdline").exists() and time.monotonic() < deadline:
        if not Path(f"/proc/{child}/cmdline").read_bytes():
            break  # a zombie that init has yet to take
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{child}").exists()


# ---- who a process is


@pytest.mark.parametrize("name", ["RAY_RAYLET_PID", "RAY_JOB_CONFIG_JSON_ENV_VAR"])
def test_a_process_of_ray_alone_is_told_so(name):
    found = launched_by.find({name: "1"})
    assert found is not None
    assert (found.platform, found.nodes) == ("Ray", 1)
    lines, wrong = whoami.describe({name: "1"})
    assert "It trains alone, on this machine" in lines[0]
    assert not wrong


def test_those_who_know_more_win():
    ray = {"RAY_RAYLET_PID": "1"}
    told = ray_driver.variables(1, 2, ("h", 1), "t")
    found = launched_by.find(ray | told)
    assert found is not None
    assert found.platform == "drumbeat"
    assert whoami.describe(ray | told)[1] is False
    train = '{"cluster": {"worker": ["10.0.0.1:4001", "10.0.0.2:4001"]}, "task": %s}'
    lines, wrong = whoami.describe(
        {**ray, "TF_CONFIG": train % '{"type": "worker", "index": 1}', "DRUMBEAT_TOKEN": "t"}
    )
    assert lines[0].startswith("TF_CONFIG: this is worker 1")
    assert not wrong


OURS = ray_driver.variables(1, 2, ("10.0.0.5", 4711), "t")
TRAIN = '{"cluster": {"worker": ["10.0.0.1:4001", "%s"]}, "task": {"type": "worker", "index": %s}}'


@pytest.mark.parametrize(
    ("env", "message"),
    [
        # drumbeat's variables, on the way from the driver to the agent
        (OURS | {"DRUMBEAT_NODE_RANK": "2"}, "DRUMBEAT_NODE_RANK is 2, but DRUMBEAT_NODES says 2"),
        (OURS | {"DRUMBEAT_NODES": "two"}, "DRUMBEAT_NODES is 'two'; expected a whole number"),
        (OURS | {"DRUMBEAT_RENDEZVOUS": "10.0.0.5"}, "DRUMBEAT_RENDEZVOUS"),
        (
            {k: v for k, v in OURS.items() if k != "DRUMBEAT_RENDEZVOUS"},
            "DRUMBEAT_NODES is 2, but DRUMBEAT_RENDEZVOUS is not set",
        ),
        (
            {k: v for k, v in OURS.items() if k != "DRUMBEAT_NODES"},
            "DRUMBEAT_NODE_RANK is set, but DRUMBEAT_NODES is not",
        ),
        # TF_CONFIG of Ray Train's function
        ({"TF_CONFIG": TRAIN % ("10.0.0.1:4001", 1)}, "10.0.0.1:4001"),
        ({"TF_CONFIG": TRAIN % ("10.0.0.2:4001", 2)}, "index"),
        ({"TF_CONFIG": TRAIN % ("10.0.0.2:0", 1)}, "port"),
        ({"TF_CONFIG": TRAIN % ("127.0.0.1:4002", 1)}, "127.0.0.1"),
        ({"TF_CONFIG": str(json.loads(TRAIN % ("10.0.0.2:4001", 1)))}, "double quotes"),
    ],
)
def test_broken_environments(env, message):
    env = {"RAY_RAYLET_PID": "1", **env}
    find = ClusterSpec.from_env if "TF_CONFIG" in env else launched_by.find
    with pytest.raises(ConfigError) as error:
        find(env)
    assert message in str(error.value)


# ---- anybody's job


def test_rehearsal_of_what_is_rendered():
    found = platform.PLATFORM.rehearse(
        manifest(platform.render(job(environment={"A": "1"}, output="/o")).main), Ports()
    )
    assert [each.name for each in found.processes] == ["node-0", "node-1"]
    for rank, process in enumerate(found.processes):
        assert process.command == ("drumbeat", "run", "--backup-dir", "/o/backups", "train.py")
        assert process.env == {
            "A": "1",
            "DRUMBEAT_OUTPUT": "/o",
            "DRUMBEAT_NODES": "2",
            "DRUMBEAT_NODE_RANK": str(rank),
            "DRUMBEAT_RENDEZVOUS": "127.0.0.1:5001",
            "DRUMBEAT_TOKEN": "rehearsed",
        }
    said = " ".join(found.differences)
    assert "Ray would place 2 nodes by SPREAD, with 1 CPUs for each" in said
    assert "a copy of ." in said


@pytest.mark.parametrize(
    ("text", "command", "env"),
    [
        ("entrypoint: python train_ray.py --n 2", ("python", "train_ray.py", "--n", "2"), {}),
        ("entrypoint: cd a && python b.py", ("sh", "-c", "cd a && python b.py"), {}),
        ("entrypoint: A=1 python b.py", ("sh", "-c", "A=1 python b.py"), {}),
        (
            "kind: RayJob\nspec:\n  entrypoint: python b.py\n  runtimeEnvYAML: |\n"
            "    env_vars: {A: 'x'}\n    pip: [ray]\n",
            ("python", "b.py"),
            {"A": "x"},
        ),
    ],
)
def test_rehearsal_of_somebodys_entrypoint(text, command, env):
    assert platform.PLATFORM.recognises(manifest(text))
    [process] = platform.PLATFORM.rehearse(manifest(text), Ports()).processes
    assert (process.name, process.command, process.env) == ("driver", command, env)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entrypoint: 5", "entrypoint is 5"),
        ("entrypoint: ''", "entrypoint is ''"),
        ('entrypoint: "python \'x"', "No closing quotation"),
        ("{entrypoint: a, runtime_env: [b]}", "runtime_env is ['b']; expected a mapping"),
        ("{entrypoint: a, runtime_env: {env_vars: {N: 5}}}", "Ray takes text; write it in quotes"),
        ("{entrypoint: a, runtime_env: {env_vars: [N]}}", "env_vars is ['N']"),
        ("entrypoint: python -m drumbeat.platforms.ray.driver --nodes 0 -- a", "--nodes is 0"),
        ("kind: RayJob\nspec: 5", "entrypoint is None"),
        ("[a]", "no job of Ray"),
    ],
)
def test_what_cant_be_rehearsed(text, message):
    with pytest.raises(ConfigError) as error:
        platform.PLATFORM.rehearse(manifest(text), Ports())
    assert message in str(error.value)
    assert any(message in each for each in platform.PLATFORM.problems(manifest(text)))


def test_nothing_is_wrong_with_what_is_rendered(tmp_path):
    text = platform.render(job(environment={"A": "1"})).main
    assert platform.PLATFORM.problems(manifest(text)) == []
    (tmp_path / "ray.yaml").write_text(text)
    assert registry.recognise(registry.read_manifest(tmp_path / "ray.yaml")).name == "ray"


DRIVER = "python -m drumbeat.platforms.ray.driver --nodes 2 --gpus 1 -- "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{entrypoint: drumbeat run train.py}", "on no other; expected python -m"),
        (f"{{entrypoint: {DRIVER} python train.py}}", "Each node runs python"),
        (f"{{entrypoint: {DRIVER} drumbeat run --nodes 2 t.py}}", "says itself"),
        (
            f"{{entrypoint: {DRIVER} drumbeat run t.py, "
            "runtime_env: {env_vars: {CUDA_VISIBLE_DEVICES: '0'}}}",
            "which Ray sets",
        ),
        ("{entrypoint: a, runtime_env: {env_vars: {TF_CONFIG: '{}'}}}", "be the same task"),
        ("{entrypoint: a, runtime_env: {env_vars: {WANDB_API_KEY: 'x'}}}", "everybody sees"),
        ("{entrypoint: a}", "no working_dir"),
        ("{entrypoint: a, runtimeenv: {}}", "runtimeenv is none of the keys"),
    ],
)
def test_mistakes_in_a_job(text, message):
    found = platform.PLATFORM.problems(manifest(text))
    assert any(message in each for each in found), found


# ---- the client, with a server made up for it


class Server:
    """Stands for Ray's client of its job server."""

    def __init__(self, address: str) -> None:
        assert address == ADDRESS
        self.jobs = JOBS

    def submit_job(self, *, submission_id: str, **request: object) -> str:
        self.jobs[submission_id] = {"request": request, "status": "RUNNING"}
        return submission_id

    def _job(self, job_id: str) -> dict:
        if job_id not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {job_id} does not exist.")
        return self.jobs[job_id]

    def get_job_info(self, job_id: str) -> types.SimpleNamespace:
        found = self._job(job_id)
        return types.SimpleNamespace(status=found["status"], message=found.get("message"))

    def get_job_status(self, job_id: str) -> str:
        return self._job(job_id)["status"]

    def get_job_logs(self, job_id: str) -> str:
        self._job(job_id)
        return "node-0: a\nnode-1: b\nnode-0: c\n"

    async def tail_job_logs(self, job_id: str):
        self._job(job_id)
        yield "node-0: a\nnode"
        yield "-1: b\nnode-0: c\n"

    def stop_job(self, job_id: str) -> bool:
        found = self._job(job_id)
        was_running, found["status"] = found["status"] == "RUNNING", "STOPPED"
        return was_running


JOBS: dict[str, dict] = {}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> RayClient:
    JOBS.clear()
    module = types.ModuleType("ray.job_submission")
    module.JobSubmissionClient = Server
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    return RayClient(job(), environ={"RAY_ADDRESS": ADDRESS})


def test_submit_sends_what_is_rendered(client):
    rendered = platform.render(job())
    job_id = client.submit(job(), rendered)
    assert job_id.startswith("digits-")
    assert JOBS[job_id]["request"] == document(job())
    assert client.status(job_id).state == "running"
    client.stop(job_id)
    assert client.status(job_id).state == "stopped"
    client.stop(job_id)


def test_dry_run_shows_the_request(client):
    [text] = client.plan(job(), platform.render(job()))
    assert ADDRESS in text
    assert '"entrypoint": "python -m drumbeat.platforms.ray.driver --nodes 2' in text
    assert not JOBS


def test_logs(client):
    job_id = client.submit(job(), platform.render(job()))
    for follow in (False, True):
        lines = list(client.logs(job_id, task=None, follow=follow))
        assert lines == ["node-0: a", "node-1: b", "node-0: c"]
        assert list(client.logs(job_id, task="node-1", follow=follow)) == ["node-1: b"]
    with pytest.raises(ConfigError, match="expected one such as node-0"):
        next(client.logs(job_id, task="worker", follow=False))
    with pytest.raises(ConfigError, match="has no task 'node-7'; expected one of node-0, node-1"):
        next(client.logs(job_id, task="node-7", follow=False))


def test_state_of_a_job_that_failed_is_a_whole_sentence(client):
    job_id = client.submit(job(), platform.render(job()))
    JOBS[job_id]["status"] = "FAILED"
    JOBS[job_id]["message"] = (
        "Job entrypoint command failed with exit code 2, last available logs (truncated to 20,000 "
        "chars):\nnode-0: a"
    )
    said = "FAILED: Job entrypoint command failed with exit code 2"
    assert client.status(job_id).detail == said


@pytest.mark.parametrize(("code", "is_ended"), [(2, True), (1, False), (0, False)])
def test_a_refusal_ends_the_others(monkeypatch, code, is_ended):
    """One that never came to meet the others can't tell them."""
    ended = []
    other = types.SimpleNamespace(end=types.SimpleNamespace(remote=lambda: ended.append(1)))
    ray = types.SimpleNamespace(
        get=lambda done: ([], code), exceptions=types.SimpleNamespace(RayError=RuntimeError)
    )
    monkeypatch.setattr(ray_driver, "_ray", lambda: ray)
    options = types.SimpleNamespace(grace=1.0)
    running = ray_driver.Job(options=options, group=None, token="")
    running.agents = {0: None, 1: other}
    assert not ray_driver._show(running, 0, None)
    assert ended == ([1] if is_ended else [])
    assert running.code == (code or None)


def test_no_such_job(client):
    with pytest.raises(ConfigError, match="Ray knows no such job"):
        client.status("digits-1")
    with pytest.raises(ConfigError, match="Ray knows no such job"):
        client.stop("digits-1")
    with pytest.raises(ConfigError, match="Ray knows no such job"):
        next(client.logs("digits-1", task=None, follow=True))


@pytest.mark.parametrize(
    ("word", "message", "state"),
    [
        ("PENDING", None, "pending"),
        ("SUCCEEDED", None, "succeeded"),
        ("FAILED", "driver exited\nwith 3", "failed"),
        ("OTHER", None, "unknown"),
    ],
)
def test_states(client, word, message, state):
    JOBS["j"] = {"status": word, "message": message}
    found = client.status("j")
    assert found.state == state
    assert found.detail == (f"{word}: driver exited" if message else word)


def failing(error: Exception):
    def make(address: str):
        raise error

    return make


class AuthenticationError(Exception):
    """Called as Ray's."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionError("Failed to connect"), f"No job server of Ray answers at {ADDRESS}"),
        (AuthenticationError("Unauthorized"), "wants a token. Set RAY_AUTH_MODE=token"),
        (RuntimeError("Request failed with status code 413: Maximum"), "larger than the 100 MB"),
        (ValueError("what\nmore"), f"Connecting to {ADDRESS} failed: what"),
    ],
)
def test_what_a_server_answers(client, error, message):
    sys.modules["ray.job_submission"].JobSubmissionClient = failing(error)
    with pytest.raises(DrumbeatError) as found:
        client.submit(job(), platform.render(job()))
    assert message in str(found.value)


def test_a_number_in_a_name_is_no_answer(client):
    error = RuntimeError("Request failed with status code 500: digits-a4041300 is odd")
    sys.modules["ray.job_submission"].JobSubmissionClient = failing(error)
    with pytest.raises(ConfigError, match="failed: Request failed with status code 500"):
        client.status("digits-a4041300")


class HandshakeError(Exception):
    """As one of aiohttp's, which is neither an OSError nor a RuntimeError."""


@pytest.mark.parametrize("error", [HandshakeError("500, invalid\nresponse"), HandshakeError("")])
def test_the_end_of_the_output_may_be_an_error(client, monkeypatch, error):
    async def tail(self, job_id):
        yield "node-0: a\n"
        raise error

    monkeypatch.setattr(Server, "tail_job_logs", tail)
    lines = client.logs(client.submit(job(), platform.render(job())), task=None, follow=True)
    assert next(lines) == "node-0: a"
    with pytest.raises(DrumbeatError, match="ended the output: (500, invalid|HandshakeError)$"):
        next(lines)


@pytest.fixture
def silent(client, monkeypatch):
    """The output of a job, whose server says nothing behind its first line."""

    async def tail(self, job_id):
        yield "node-0: a\n"
        await asyncio.sleep(3600)

    monkeypatch.setattr(Server, "tail_job_logs", tail)
    monkeypatch.setattr(ray_client, "_SILENCE_S", 0.05)
    job_id = client.submit(job(), platform.render(job()))
    lines = client.logs(job_id, task=None, follow=True)
    assert next(lines) == "node-0: a"
    return lines, job_id


def test_following_ends_with_a_job_whose_server_says_nothing_of_it(silent):
    lines, job_id = silent
    threading.Timer(0.3, JOBS[job_id].update, [{"status": "SUCCEEDED"}]).start()
    began_s = time.monotonic()
    assert list(lines) == []
    assert time.monotonic() - began_s >= 0.3


def test_following_ends_where_the_server_is_gone(silent, monkeypatch):
    lines, _ = silent

    def gone(self, job_id):
        raise ConnectionError("Connection refused")

    monkeypatch.setattr(Server, "get_job_status", gone)
    with pytest.raises(ConfigError, match=f"No job server of Ray answers at {ADDRESS}"):
        next(lines)


def test_without_ray(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    with pytest.raises(ConfigError, match=r'pip install "drumbeat\[ray\]"'):
        client.status("digits-1")


def test_the_address(monkeypatch):
    with pytest.raises(ConfigError, match="expected that of its job server"):
        _ = RayClient(job(), environ={"RAY_ADDRESS": "10.0.0.1:6379"}).address
    wanted = job(ray={"address": "http://a:1"})
    assert RayClient(wanted, environ={"RAY_ADDRESS": ADDRESS}).address == "http://a:1"
    assert RayClient(job(), environ={}).address == "http://127.0.0.1:8265"


# ---- a rehearsal that trains


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_a_rehearsal_trains(tmp_path):
    shutil.copy(Path(__file__).parent / "train_random.py", tmp_path / "train.py")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
    (tmp_path / "ray.yaml").write_text(platform.render(job(environment=quiet)).main)
    words = ["rehearse", "ray.yaml", "--steps", "3", "--timeout", "400"]
    done = subprocess.run(
        [sys.executable, "-m", "drumbeat", *words],
        cwd=tmp_path, text=True, capture_output=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "node-1" in done.stdout
    assert "Ray would place 2 nodes" in done.stdout
