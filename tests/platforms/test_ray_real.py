"""Ray for real, on one machine: two nodes train, one is lost, the job is stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.ray import render as platform
from drumbeat.platforms.ray.client import RayClient

pytest.importorskip("ray", reason="Ray is not installed: pip install drumbeat[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRAIN = Path(__file__).parent / "train_digits.py"
START_TIMEOUT_S = 120
TRAIN_TIMEOUT_S = 300
MARK = "TEST_OF_RAY"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Ray is one node of this machine with two CPUs."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets' paths must be short
    dashboard = free_port()
    # Ray keeps idle workers: they are none of a test's leaks, and don't have its mark.
    env = {name: value for name, value in os.environ.items() if name != "DRUMBEAT_TEST_RUN"}
    env |= {
        "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # what else runs on this machine is no reason
    }
    env.pop("RAY_ADDRESS", None)
    words = ["start", "--head", "--block", "--num-cpus", "2", "--node-ip-address", "127.0.0.1"]
    words += ["--port", str(free_port()), "--dashboard-port", str(dashboard)]
    words += [
        "--min-worker-port",
        "0",
        "--max-worker-port",
        "0",
        "--ray-client-server-port",
        str(free_port()),
    ]
    words += ["--object-store-memory", str(80 * 2**20), "--temp-dir", str(folder)]
    program = [sys.executable, "-m", "ray.scripts.scripts", *words]
    with (folder / "out").open("wb") as out:
        head = subprocess.Popen(program, env=env, stdout=out, stderr=out, start_new_session=True)
    env["RAY_ADDRESS"] = f"http://127.0.0.1:{dashboard}"
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(dashboard):
            if head.poll() is not None or time.monotonic() > deadline:
                pytest.fail((folder / "out").read_text()[-3000:])
            time.sleep(0.5)
        yield env
    finally:
        theirs = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
        head.terminate()
        try:
            head.wait(60)
        except subprocess.TimeoutExpired:
            head.kill()
            head.wait()
        for process in theirs:
            if process.is_running():
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def submitted(cluster, tmp_path, monkeypatch) -> Iterator[Callable]:
    """Submits a job of two nodes; at the end it is stopped."""
    monkeypatch.setenv("RAY_ADDRESS", cluster["RAY_ADDRESS"])
    shutil.copy(TRAIN, tmp_path / "train.py")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("x")
    monkeypatch.chdir(tmp_path)
    jobs: list[tuple[RayClient, str]] = []

    def submit(pause_s: float, **keys: object) -> tuple[RayClient, str]:
        wanted = Job.model_validate(
            {
                "name": "digits",
                "script": "train.py",
                "args": [str(tmp_path), str(pause_s)],
                "workers": 2,
                "environment": {"OMP_NUM_THREADS": "1", MARK: str(tmp_path)},
                "run": {"seed": 7, "grace": 20, "rejoin_timeout": 200},
                **keys,
            }
        )
        client = RayClient(wanted)
        jobs.append((client, client.submit(wanted, platform.render(wanted))))
        return jobs[-1]

    yield submit
    for client, job_id in jobs:
        client.stop(job_id)


def wait_until(
    condition: Callable[[], bool],
    client: RayClient,
    job_id: str,
    in_vain: tuple[str, ...] = ("failed", "stopped"),
) -> None:
    """Waits, but not where the job is in a state in which nothing more will come."""
    deadline = time.monotonic() + TRAIN_TIMEOUT_S
    while not condition():
        is_over = client.status(job_id).state in in_vain and not condition()
        if is_over or time.monotonic() > deadline:
            text = "\n".join(client.logs(job_id, task=None, follow=False))
            pytest.fail(f"Waited in vain; {client.status(job_id)}\n{text}")
        time.sleep(0.2)


def results(folder: Path) -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("result-*.json"))]


def marked(folder: Path) -> list[psutil.Process]:
    """Processes of the job: those of Ray's own workers too."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder) and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.tensorflow
def test_a_lost_node_comes_back_and_the_result_is_right(submitted, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    subprocess.run(
        [sys.executable, "-m", "drumbeat", "run", "--seed", "7", "train.py", str(alone), "0"],
        check=True,
        timeout=TRAIN_TIMEOUT_S,
    )
    [expected] = results(alone)
    client, job_id = submitted(pause_s=0.04)
    following = client.logs(job_id, task=None, follow=True)
    wait_until(lambda: len(list(tmp_path.glob("epoch-*"))) == 2, client, job_id)
    assert client.status(job_id).state == "running"
    agents = [each for each in marked(tmp_path) if "ray.leash" in " ".join(each.cmdline())]
    assert len(agents) == 2
    actors = [each for each in marked(tmp_path) if each.name().startswith("ray::Agent")]
    actors[-1].send_signal(signal.SIGKILL)
    wait_until(lambda: client.status(job_id).state != "running", client, job_id)
    text = "\n".join(following)
    assert client.status(job_id).state == "succeeded", text
    assert "which is started again" in text
    assert "attempt 2" in text
    assert len(results(tmp_path)) == 2
    for result in results(tmp_path):
        assert result["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert result["weights"] == pytest.approx(expected["weights"], rel=1e-4)
    lines = list(client.logs(job_id, task="node-0", follow=False))
    assert lines
    assert all(line.startswith("node-0: ") for line in lines)


@pytest.mark.tensorflow
def test_a_job_that_is_stopped_leaves_no_process(submitted, tmp_path):
    client, job_id = submitted(pause_s=0.2, output=str(tmp_path / "out"))
    wait_until(lambda: len(list(tmp_path.glob("epoch-*"))) == 2, client, job_id)
    assert len(marked(tmp_path)) > 4
    client.stop(job_id)
    assert client.status(job_id).state == "stopped"
    wait_until(lambda: not marked(tmp_path), client, job_id, in_vain=())
    assert list((tmp_path / "out" / "backups").iterdir()), "the state was saved"
    client.stop(job_id)  # one that has ended is fine


def test_the_folders_keys_stay_here_and_no_room_is_told(submitted, tmp_path):
    (tmp_path / "train.py").write_text("import os; print('has', sorted(os.listdir('.')))")
    client, job_id = submitted(pause_s=0, workers=1)
    wait_until(lambda: client.status(job_id).state not in ("pending", "running"), client, job_id)
    text = "\n".join(client.logs(job_id, task=None, follow=False))
    assert "node-0: [worker 0] has ['runs', 'train.py']" in text
    assert client.status(job_id).state == "succeeded"
    client, job_id = submitted(pause_s=0, resources={"cpu": 64}, timeouts={"start": 3})
    wait_until(lambda: client.status(job_id).state not in ("pending", "running"), client, job_id)
    text = "\n".join(client.logs(job_id, task=None, follow=False))
    assert "The cluster had no room within 3 s for 2 × 64 CPU (SPREAD)" in text
    assert client.status(job_id).state == "failed"
