"""Starts the processes of a case as users of each peer would, watches them, and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.workloads import WORKLOADS

from .machine import Others, cores, marked, memory_mb, pinned
from .network import Link
from .peers import BUILD, PEERS, ROOT, Peer, environment

SCRIPTS = ROOT / "benchmarks" / "workers"
PICTURES = BUILD / "bench-pictures"
RUN_TIMEOUT_S = 300
Processes = list["subprocess.Popen[bytes]"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One peer at one workload.

    Attributes:
        workload: Its name.
        name: The peer's in tables of results: one of `PEERS`, or another way to run it.
        peer: How it trains.
        epochs: One more than are measured.
        steps: In an epoch; the workload's own if None.
        group: Cases of one group take turns within a round.
        link: The network between the workers, of which each is on a node of its own.
    """

    workload: str
    name: str
    peer: Peer
    epochs: int
    steps: int | None = None
    group: str = ""
    link: Link | None = None

    @property
    def processes(self) -> int:
        """How many write a result."""
        return self.peer.processes or self.peer.workers

    def script(self, name: str, folder: Path) -> list[str]:
        """The worker script `name` and its arguments."""
        script = [str(SCRIPTS / name), "--out", str(folder), "--workload", self.workload]
        script += ["--workers", str(self.peer.workers), "--epochs", str(self.epochs)]
        script += [] if self.steps is None else ["--steps", str(self.steps)]
        return [*script, "--pictures", str(PICTURES), *self.peer.arguments]


class Started:
    """Starts processes, each in a session of its own, writing to a file.

    Args:
        case: What they belong to.
        folder: For results and output.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        self._folder = folder
        self.processes: Processes = []

    def python(self) -> str:
        """The interpreter of the peer."""
        made = self._case.peer.environment
        return str(made.python) if made else sys.executable

    def add(self, command: Sequence[str], **variables: str) -> None:
        """Starts one more, on the next core and node if the case is so."""
        case, index = self._case, len(self.processes)
        if case.peer.pinned or case.link:
            # One worker alone is not on the first core, which serves interrupts.
            core = cores()[(index - (case.peer.workers == 1)) % len(cores())]
            command = [*pinned(core), *command]
        if case.link:
            command = [*case.link.prefix(index), *command]
        variables |= {"BENCH_OUT": str(self._folder), "BENCH_STARTED_S": repr(time.time())}
        with (self._folder / f"worker-{index}.log").open("wb") as output:
            self.processes.append(
                subprocess.Popen(
                    command,
                    env=environment({**case.peer.variables, **variables}),
                    stdout=output,
                    stderr=output,
                    cwd=ROOT,
                    start_new_session=True,
                )
            )


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _run(case: Case, folder: Path) -> list[str]:
    command = [str(Path(sys.executable).with_name("drumbeat")), "run", "--run-dir", str(folder)]
    return [*command, *case.peer.options]


def _drumbeat(case: Case, folder: Path, started: Started) -> None:
    script = case.script("train_keras.py", folder)
    if case.link is None:
        started.add([*_run(case, folder / "run"), "-n", str(case.peer.workers), *script])
        return
    where = f"{case.link.addresses[0]}:{free_ports(1)[0]}"
    for rank in range(case.peer.workers):
        run = [*_run(case, folder / f"run-{rank}"), "-n", "1", "--rendezvous", where]
        run += ["--nodes", str(case.peer.workers), "--node-rank", str(rank)]
        started.add([*run, *script], DRUMBEAT_TOKEN=folder.name)


def _apart(case: Case, folder: Path, started: Started) -> None:
    for number in range(case.processes):
        run = [*_run(case, folder / f"run-{number}"), "-n", "1"]
        started.add([*run, *case.script("train_keras.py", folder), "--number", str(number)])


def _tf_config(case: Case, folder: Path, started: Started) -> None:
    hosts = case.link.addresses if case.link else ("127.0.0.1",) * case.peer.workers
    ports = free_ports(case.peer.workers)
    addresses = [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
    for index in range(case.peer.workers):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        script = case.script("train_keras.py", folder)
        started.add([started.python(), *script], TF_CONFIG=config)


def _alone(case: Case, folder: Path, started: Started) -> None:
    name = "train_jax.py" if "KERAS_BACKEND" in case.peer.variables else "train_keras.py"
    started.add([started.python(), *case.script(name, folder)])


def _torch(case: Case, folder: Path, started: Started) -> None:
    port = str(free_ports(1)[0])
    for rank in range(case.peer.workers):
        started.add(
            [started.python(), *case.script("train_torch.py", folder)],
            RANK=str(rank),
            WORLD_SIZE=str(case.peer.workers),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )


def _jax(case: Case, folder: Path, started: Started) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    for rank in range(case.peer.workers):
        script = case.script("train_jax.py", folder)
        started.add([started.python(), *script], RANK=str(rank), BENCH_JAX_ADDRESS=address)


def _ray(case: Case, folder: Path, started: Started) -> None:
    script = case.script("train_ray.py", folder)
    started.add([started.python(), *script], PYTHONPATH=str(SCRIPTS))


LAUNCHERS: dict[str, Callable[[Case, Path, Started], None]] = {
    "drumbeat": _drumbeat,
    "apart": _apart,
    "tf_config": _tf_config,
    "alone": _alone,
    "torch": _torch,
    "jax": _jax,
    "ray": _ray,
}


def start(case: Case, folder: Path) -> Processes:
    """Starts the processes of a case."""
    started = Started(case, folder)
    LAUNCHERS[case.peer.launcher](case, folder, started)
    return started.processes


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its session, if it still runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def _end_all(processes: Processes, folder: Path) -> None:
    for process in processes:
        stop(process)
    for left in marked(f"BENCH_OUT={folder}"):  # of Ray, or of a run that failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


class Watch:
    """Waits for the end of a case, and looks at its memory once its workers have measured.

    Args:
        case: What runs.
        folder: Of its results.
        processes: That were started.
    """

    def __init__(self, case: Case, folder: Path, processes: Processes) -> None:
        self._case = case
        self._folder = folder
        self._processes = processes
        self.memory_mb: float | None = None

    def finish(self) -> list[int | None]:
        """Exit codes; None for a process that had to be stopped after `RUN_TIMEOUT_S`.

        When one has failed, the others get 20 s: TensorFlow's strategy may leave them
        waiting.
        """
        deadline = time.monotonic() + RUN_TIMEOUT_S
        try:
            while any(one.poll() is None for one in self._processes):
                if time.monotonic() > deadline:
                    break
                if any(one.returncode for one in self._processes):
                    deadline = min(deadline, time.monotonic() + 20)
                self._sample_memory()
                time.sleep(0.1)
            return [one.poll() for one in self._processes]
        finally:  # after Ctrl-C, too
            _end_all(self._processes, self._folder)

    def _sample_memory(self) -> None:
        results = list(self._folder.glob("result-*.json"))
        if self.memory_mb is None and len(results) == self._case.processes:
            self.memory_mb = memory_mb(marked(f"BENCH_OUT={self._folder}"))
            (self._folder / "sampled").touch()


def run(case: Case) -> dict[str, Any]:
    """Runs a case once; returns what its workers measured, and how others disturbed it.

    A run that failed has "failed" with the exit codes and the end of the chief's log.
    """
    with tempfile.TemporaryDirectory(prefix="drumbeat-bench-") as name:
        folder = Path(name)
        others = Others()
        began_s = time.monotonic()
        watch = Watch(case, folder, start(case, folder))
        codes = watch.finish()
        results = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
        found: dict[str, Any]
        if any(code != 0 for code in codes) or len(results) != case.processes:
            log = (folder / "worker-0.log").read_text(errors="replace")
            found = {"failed": {"exit_codes": codes, "error": last_error(log), "log": log[-9000:]}}
        else:
            chief = next(result for result in results if result["rank"] == 0)
            expected = WORKLOADS[case.workload].parameters
            assert chief["parameters"] == expected, f"{case.name}: {chief['parameters']} parameters"
            found = {
                **chief,
                "memory_mb": watch.memory_mb,
                "peak_rss_mb": max(result["peak_rss_mb"] for result in results),
                "cpu_s": sum(result["cpu_s"] for result in results),
            }
    taken = {"took_s": time.monotonic() - began_s, "others_cores": round(others.cores(), 3)}
    return {"workload": case.workload, "peer": case.name, "group": case.group, **found, **taken}


def last_error(log: str) -> str:
    """The last line of a log that names an exception, or else its last line."""
    errors = re.findall(r"^.*?((?:\w+\.)*\w*(?:Error|Exception)\b.*)", log, re.MULTILINE)
    lines = [line for line in log.splitlines() if line.strip()]
    return (errors or lines or ["no output"])[-1][:300]


def run_stock() -> dict[str, Any]:
    """Exit codes and error of Keras 3's `fit` under TensorFlow's own strategy."""
    like = PEERS["tensorflow"]
    peer = Peer(title="", launcher=like.launcher, environment=like.environment)
    failed = run(Case(workload="cnn", name="stock", peer=peer, epochs=2)).get("failed")
    return failed or {"exit_codes": [0, 0], "error": ""}
