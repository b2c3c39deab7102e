"""A Slurm of the test's own on this machine: munged, slurmctld and a slurmd for each node.

Daemons and clients are those on the PATH (Debian's slurm-wlm and munge); nothing outside of the
folder is written, and no service of the system is touched.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_S = 60.0
_PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@dataclass(frozen=True)
class SlurmCluster:
    folder: Path
    env: dict[str, str]

    def run(self, *words: str, folder: Path | None = None) -> str:
        done = subprocess.run(
            words, cwd=folder, env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def end_jobs(self) -> None:
        """Ends all jobs and waits until nothing of them is left."""
        words = ["scancel", f"--user={getpass.getuser()}"]
        subprocess.run(words, env=self.env, capture_output=True, timeout=20)
        words, deadline = ["squeue", "--noheader"], time.monotonic() + 60
        while time.monotonic() < deadline:
            left = subprocess.run(words, env=self.env, capture_output=True, timeout=20)
            if not left.stdout.strip():
                break
            time.sleep(0.2)

    def logs(self) -> str:
        """What the daemons said last, and how jobs and nodes are."""
        files = sorted(self.folder.glob("*.log"))
        said = [f"--- {file.name}\n{file.read_text()[-3000:]}" for file in files]
        for what in ("job", "node"):
            words = ["scontrol", "show", what]
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    words, env=self.env, capture_output=True, text=True, timeout=20
                )
                said.append(f"--- {' '.join(words)}\n{done.stdout}{done.stderr}")
        return "\n".join(said)


def missing() -> str:
    """Why there can be no cluster here, or ""."""
    for names in (("slurmctld", "slurmctld-wlm"), ("slurmd", "slurmd-wlm"), ("sbatch",)):
        if _program(*names) is None:
            return f"there is no {names[0]} here (Debian: apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "slurmd and slurmctld of a test start jobs as root only, and this is another user"
    return ""


@contextlib.contextmanager
def started(folder: Path, nodes: Sequence[str]) -> Iterator[SlurmCluster]:
    """The cluster, with nodes of these names idle; ended with all of its jobs afterwards."""
    why = missing()
    assert not why, why
    ports = _free_ports(1 + len(nodes))
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PLACES}
    cluster = SlurmCluster(folder, env)
    for name in ("state", *(f"spool-{node}" for node in nodes)):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(_config(folder, nodes, ports))
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        if _program("munged"):
            daemons.append(_munged(folder))
        daemons.append(_start(cluster, "slurmctld", "-D", "-i"))
        # It reads the file for its ports; a slurmd that comes first is late by its retries.
        _until(lambda: _answers(ports[0]), daemons, cluster)
        stepd = ("-d", str(_program("slurmstepd", "slurmstepd-wlm")))
        daemons += [_start(cluster, "slurmd", "-D", "-N", node, *stepd) for node in nodes]
        _until(lambda: _idle(cluster, len(nodes)), daemons, cluster)
        yield cluster
    finally:
        _end(cluster, daemons)


def _config(folder: Path, nodes: Sequence[str], ports: list[int]) -> str:
    root = Path(_program("slurmctld", "slurmctld-wlm") or "/").resolve().parents[2]
    plugins = next(root.glob("usr/lib/*/slurm-wlm"), None) or next(root.glob("usr/lib*/slurm"))
    munge = _program("munged") is not None
    cpus = os.cpu_count() or 1
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        f"AuthType=auth/{'munge' if munge else 'none'}",
        f"CredType=cred/{'munge' if munge else 'none'}",
        *([f"AuthInfo=socket={folder}/munge.socket"] if munge else []),
        f"PluginDir={plugins}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_min_interval=1,bf_interval=1",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "JobRequeue=1",
        "KillWait=30",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        "AccountingStorageType=accounting_storage/none",
        "JobAcctGatherType=jobacct_gather/none",
        *(
            f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
            f"Port={port} CPUs={cpus} RealMemory=4000 State=UNKNOWN"
            for node, port in zip(nodes, ports[1:], strict=True)
        ),
        f"PartitionName=debug Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP",
    ]
    return "\n".join(lines) + "\n"


def _munged(folder: Path) -> subprocess.Popen[bytes]:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    words = [str(_program("munged")), "--foreground", "--force"]
    for name in ("socket", "pid-file", "log-file", "seed-file"):
        words.append(f"--{name}={folder}/munge.{name.partition('-')[0]}")
    return subprocess.Popen([*words, f"--key-file={key}"], stderr=subprocess.DEVNULL)


def _start(cluster: SlurmCluster, name: str, *options: str) -> subprocess.Popen[bytes]:
    with (cluster.folder / f"{name}-{'-'.join(options[2:3])}.out.log").open("wb") as out:
        return subprocess.Popen(
            [str(_program(name, f"{name}-wlm")), *options],
            env=cluster.env,
            stdout=out,
            stderr=out,
            cwd=cluster.folder,
        )


def _idle(cluster: SlurmCluster, count: int) -> bool:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%t"], env=cluster.env, capture_output=True, text=True
    )
    return done.stdout.split() == ["idle"] * count


def _end(cluster: SlurmCluster, daemons: list[subprocess.Popen[bytes]]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        cluster.end_jobs()
    for daemon in reversed(daemons):
        daemon.terminate()
        try:
            daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _until(condition, daemons: list[subprocess.Popen[bytes]], cluster: SlurmCluster) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        dead = [each.args for each in daemons if each.poll() is not None]
        assert not dead, f"{dead} ended.\n{cluster.logs()}"
        assert time.monotonic() < deadline, f"No idle nodes.\n{cluster.logs()}"
        time.sleep(0.2)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _program(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name, path=_PLACES))), None)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
