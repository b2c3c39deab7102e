"""Slurm as it is: munged, slurmctld and two slurmds on this machine, and `drumbeat submit slurm`.

The nodes are called 127.0.0.1 and 127.0.0.2, names that every Linux machine finds itself by.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from drumbeat.platforms import registry
from drumbeat.platforms.slurm.render import PLATFORM

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
_SPEC = importlib.util.spec_from_file_location("slurm_cluster", HERE / "slurm_cluster.py")
assert _SPEC is not None
assert _SPEC.loader is not None
slurm_cluster = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = slurm_cluster
_SPEC.loader.exec_module(slurm_cluster)

DRUMBEAT = [sys.executable, "-c", "from drumbeat.cli.main import main; main()"]
NAMES = ("127.0.0.1", "127.0.0.2")
# The same for the end of a job as for a step: Slurm looks once in a while.
ENDS_S = 120.0
# Set by daemons of one machine and version, or by nobody in a rehearsal: none tells who a task is.
OTHERWISE = re.compile(
    r"SLURM_(CONF|SRUN_COMM_.*|STEP_LAUNCHER_PORT|TASK_PID|TOPOLOGY_.*|UMASK|WORKING_CLUSTER|"
    r"JOB_(UID|GID|USER|CPUS_PER_NODE)|CPUS_ON_NODE|PRIO_PROCESS|NODE_ALIASES|MEM_PER_NODE|"
    r"CPU_BIND.*)"
)
# Whose value is another one there.
OTHER_VALUE = {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_PARTITION",
               "SLURM_SUBMIT_HOST", "SLURM_SUBMIT_DIR"}  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing() or "there"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.started(tmp_path_factory.mktemp("slurm"), NAMES) as running:
        yield running


@pytest.fixture
def work(cluster, tmp_path):
    """A folder with the digits, which all "machines" see; its jobs are ended with the test."""
    for name in ("demo.py", "digits.py", "recipe.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    yield tmp_path
    cluster.end_jobs()


class User:
    """Somebody who types commands in a folder."""

    def __init__(self, cluster, folder: Path, **job: object) -> None:
        self.folder = folder
        self._cluster = cluster
        # Slurm hands the environment on, with what the tests know their processes by.
        programs = str(Path(sys.executable).parent)
        self.env = {
            **cluster.env,
            "PATH": f"{programs}:{cluster.env['PATH']}",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "OMP_NUM_THREADS": "1",
        }
        values = {"name": "digits", "workers": 2, "resources": "{cpu: 1}", **job}
        lines = "".join(f"{name}: {value}\n" for name, value in values.items())
        (folder / "drumbeat.yaml").write_text(lines)

    def types(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [*DRUMBEAT, *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def waits_for_log(self, pattern: str) -> str:
        deadline = time.monotonic() + 300
        output = next(iter(self.folder.glob("*.out")), None)
        text = ""
        while time.monotonic() < deadline:
            output = output or next(iter(self.folder.glob("*.out")), None)
            text = output.read_text() if output else ""
            if re.search(pattern, text, re.DOTALL):
                return text
            time.sleep(0.2)
        raise AssertionError(f"no {pattern} in {text}\n{self._cluster.logs()}")

    def waits_for_status(self, *states: str) -> str:
        deadline = time.monotonic() + ENDS_S
        text = ""
        while time.monotonic() < deadline:
            done = subprocess.run(
                [*DRUMBEAT, "status", "slurm"],
                cwd=self.folder,
                env=self.env,
                capture_output=True,
                text=True,
                timeout=60,
            )
            text = done.stdout
            if text.partition(": ")[2].partition(" ")[0] in states:
                return text
            time.sleep(0.5)
        raise AssertionError(f"{text!r} is none of {states}\n{self._cluster.logs()}")


@pytest.mark.tensorflow
def test_digits_train_on_two_machines(cluster, work):
    user = User(cluster, work, script="demo.py", args="[--epochs, 5, --model-dir, out]")
    assert "Submitted" in user.types("submit", "slurm")
    log = user.types("logs", "slurm", "--follow")
    status = user.waits_for_status("succeeded")
    assert "0: COMPLETED on 127.0.0.1" in status
    assert "1: COMPLETED on 127.0.0.2" in status
    assert "0: [drumbeat] Slurm: this is node 0 of 2" in log
    assert "1: [drumbeat] Slurm: this is node 1 of 2" in log
    assert re.search(r"workers\W+2\b", log), log
    accuracy = re.search(r"test accuracy\W+([01]\.\d+)", log)
    assert accuracy is not None, log
    assert float(accuracy[1]) > 0.8
    assert (work / "out" / "model.keras").is_file()
    of_one = user.types("logs", "slurm", "--task", "1")
    assert of_one
    assert all(line.startswith("1: ") for line in of_one.splitlines())


@pytest.mark.tensorflow
def test_a_job_that_makes_room_goes_on_from_its_backups(cluster, work):
    """TERM, as before the end of its time: exit code 75, requeued, on from the step; then stop."""
    user = User(
        cluster, work, script="demo.py", args="[--epochs, 100000]", output=work / "out",
        run="{seed: 1}",
    )  # fmt: skip
    job_id = user.types("submit", "slurm").split()[1].removesuffix(".")
    user.waits_for_log(r"Epoch 3/")
    cluster.run("scancel", "--signal=TERM", job_id)
    text = user.waits_for_log(r"goes on from there \(exit code 75\)")
    step = re.search(r"Stopped after step (\d+), as asked for", text)
    assert step is not None, text
    waiting = user.waits_for_status("pending")
    assert "requeues: 1" in waiting
    # Slurm lets a requeued job wait for two minutes. Some it needs: a credential made within the
    # second in which the job's last one was revoked counts as revoked, too.
    cluster.run("scontrol", "update", f"jobid={job_id}", "StartTime=now+5")
    text = user.waits_for_log(r"exit code 75.*this is node 0 of 2.*Epoch \d+/")
    epoch = re.search(r"Epoch (\d+)/", text.rpartition("this is node 0 of 2")[2])
    assert epoch is not None
    assert int(epoch[1]) >= 3, text
    user.waits_for_log(r"exit code 75.*this is node 0 of 2.*Epoch \d+/.*Epoch \d+/")
    assert "Stopped" in user.types("stop", "slurm")
    user.waits_for_status("stopped")
    # The state is saved once more, and nobody brings the job back.
    assert user.waits_for_log("exit code 75").count("as asked for") == 2
    time.sleep(3)
    assert cluster.run("squeue", "--noheader", "--states=PENDING,RUNNING") == ""


@pytest.mark.tensorflow
def test_a_killed_worker_comes_back_and_a_killed_agent_ends_the_job(cluster, work):
    user = User(cluster, work, script="demo.py", args="[--epochs, 100000]", run="{grace: 1}")
    user.types("submit", "slurm")
    user.waits_for_log(r"Epoch 3/")
    agent = agent_of(1)
    (parent,) = agent.children()
    (worker,) = parent.children()
    worker.send_signal(signal.SIGKILL)
    text = user.waits_for_log(r"worker 1 on \S+ was killed by SIGKILL.*Epoch \d+/")
    assert "this is node 0 of 2" in text.partition("SIGKILL")[0]
    assert "this is node" not in text.partition("SIGKILL")[2]  # the agents went on
    agent.send_signal(signal.SIGKILL)
    status = user.waits_for_status("failed")
    assert "exit code 137" in status
    assert "First task exited 36s ago" in user.waits_for_log("First task exited")


def agent_of(rank: int) -> psutil.Process:
    """The agent of a task that runs now."""
    for process in psutil.process_iter():
        try:
            env, words = process.environ(), process.cmdline()
        except psutil.Error:
            continue
        is_ours = env.get("DRUMBEAT_TEST_RUN") == os.environ["DRUMBEAT_TEST_RUN"]
        if is_ours and env.get("SLURM_PROCID") == str(rank) and words[2:3] == ["run"]:
            return process
    raise AssertionError(f"no agent of task {rank}")


@pytest.mark.parametrize(
    ("batch", "srun"),
    [
        ("--nodes=2 --ntasks-per-node=1", "--distribution=block --label"),
        ("--nodes=2 --ntasks-per-node=1", ""),
        ("--nodes=2 --ntasks=3", ""),
        ("--nodes=2 --ntasks=3", "-m cyclic"),
        ("--nodes=2 --ntasks=3 -c 1", "-m block"),
        ("--ntasks=2", ""),
        ("--nodes=2", ""),
        ("--nodes=2 --ntasks=4", "-N1 -n2"),
        ("-N1 -n1\n#SBATCH hetjob\n#SBATCH -N1 -n1", "--het-group=0,1"),
    ],
)
def test_rehearsal_has_the_environment_of_real_tasks(cluster, tmp_path, batch, srun):
    """Every variable, of every task: `env` run by Slurm, and by a rehearsal."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("two tasks on one machine need two CPUs")
    head = f"#!/bin/bash\n#SBATCH --job-name=same\n#SBATCH {batch}\n"
    task = "'env -0 > env-$SLURM_PROCID'"
    (tmp_path / "job").write_text(f"{head}srun {srun} bash -c {task}\n")
    cluster.run("sbatch", "--wait", "--output=out", "job", folder=tmp_path)
    files = sorted(tmp_path.glob("env-*"))
    assert files, (tmp_path / "out").read_text()
    manifest = registry.parse_manifest(f"{head}srun {srun} python train.py\n", Path("job"))
    rehearsal = PLATFORM.rehearse(manifest, Ports())
    assert len(rehearsal.processes) == len(files)
    for process, file in zip(rehearsal.processes, files, strict=True):
        lines = file.read_text().split("\0")
        real = {name: value for name, _, value in (line.partition("=") for line in lines)}
        assert told(process.env) == told(real)


def told(env):
    """What an environment says of a task, without what differs by its nature."""
    found = {
        name: value
        for name, value in env.items()
        if name.startswith("SLURM") and not OTHERWISE.fullmatch(name) and "_GROUP_" not in name
    }
    return {name: "" if name in OTHER_VALUE else value for name, value in found.items()}


class Ports:
    def port(self):
        return 23_456


@pytest.mark.tensorflow
def test_what_slurm_refuses_is_shown(cluster, work):
    user = User(cluster, work, script="demo.py", slurm="{partition: no-such}")
    done = subprocess.run(
        [*DRUMBEAT, "submit", "slurm"], cwd=work, env=user.env, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "invalid partition specified: no-such" in done.stderr
