"""Runs a job as a platform would: an agent that is killed is started again in its place."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "chaos_train.py"
DRUMBEAT = Path(sys.executable).with_name("drumbeat")
# A job's deadline: so long, and so much longer for each of its faults.
JOB_S, FAULT_S = 180, 40
END_S = 20
# An environment that tunes nothing and names no job.
FOREIGN = ("TF_", "OMP_", "DRUMBEAT_", "KERAS_")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run.

    Attributes:
        nodes: Workers on each node.
        faults: As `--inject` takes them.
        options: More options of `drumbeat run`.
        arguments: Of the script.
    """

    nodes: tuple[int, ...]
    faults: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def shape(self) -> str:
        """In words: "3 workers" or "2 + 1 workers on 2 nodes"."""
        if len(self.nodes) == 1:
            return f"{self.nodes[0]} workers"
        return f"{' + '.join(map(str, self.nodes))} workers on {len(self.nodes)} nodes"


@dataclass(kw_only=True)
class Ended:
    """How a job ended.

    Attributes:
        folder: Where its ledgers and results are.
        problem: Why it did not end well; "" if it did.
        lines: What each node's agents printed, with the time of arrival (`time.monotonic`).
        seconds: How long it took.
    """

    folder: Path
    problem: str = ""
    lines: list[list[tuple[float, str]]] = field(default_factory=list)
    seconds: float = 0.0

    def arrival(self, node: int, *texts: str) -> float | None:
        """When the first line with all of `texts` came from a node."""
        found = (at for at, line in self.lines[node] if all(text in line for text in texts))
        return next(found, None)


class Agent:
    """One agent's process, and what it prints."""

    def __init__(self, command: Sequence[str], env: dict[str, str], lines: list) -> None:
        self.process = subprocess.Popen(
            command,
            env=env,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._lines = lines
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append((time.monotonic(), line.rstrip()))

    def close(self) -> None:
        """Ends it, if it still runs, and what it has started with it."""
        for number, patience_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 10)):
            if self.process.poll() is None:
                # It may stand still, by a fault.
                self.process.send_signal(signal.SIGCONT)
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(patience_s)
        self._reader.join(5)


def run(job: Job, folder: Path) -> Ended:
    """Runs a job to its end, in a folder that doesn't exist yet."""
    folder.mkdir(parents=True)
    ended = Ended(folder=folder, lines=[[] for _ in job.nodes])
    commands = _commands(job, folder)
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    env["DRUMBEAT_TOKEN"] = secrets.token_hex(16)
    began_s = time.monotonic()
    agents = [
        Agent(command, env, lines) for command, lines in zip(commands, ended.lines, strict=True)
    ]
    deaths = [
        sum(f"agent-kill:node={node}," in f for f in job.faults) for node in range(len(agents))
    ]
    try:
        ended.problem = _supervise(job, agents, deaths, commands, env, ended.lines)
    finally:
        for agent in agents:
            agent.close()
    ended.seconds = time.monotonic() - began_s
    (folder / "output.txt").write_text(
        "".join(
            f"{at - began_s:9.3f} node {node}: {line}\n"
            for node, lines in enumerate(ended.lines)
            for at, line in lines
        )
    )
    return ended


def _supervise(
    job: Job,
    agents: list[Agent],
    deaths: list[int],
    commands: list[list[str]],
    env: dict[str, str],
    lines: list[list[tuple[float, str]]],
) -> str:
    """Waits for the end, and starts again the agents that faults have killed.

    Returns:
        What went wrong, or "".
    """
    deadline = time.monotonic() + JOB_S + FAULT_S * len(job.faults)
    while time.monotonic() < deadline:
        codes = [agent.process.poll() for agent in agents]
        for node, code in enumerate(codes):
            if code == -signal.SIGKILL and deaths[node]:
                deaths[node] -= 1
                agents[node].close()
                agents[node] = Agent(commands[node], env, lines[node])
            elif code:
                _wait(agents, END_S)
                return f"node {node} ended with exit code {code}"
        if all(code == 0 for code in codes):
            return ""
        time.sleep(0.02)
    return f"not at its end after {JOB_S + FAULT_S * len(job.faults)} s"


def _wait(agents: list[Agent], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(agent.process.poll() is None for agent in agents):
        time.sleep(0.1)


def _commands(job: Job, folder: Path) -> list[list[str]]:
    """Of each node's agent."""
    faults = [word for fault in job.faults for word in ("--inject", fault)]
    commands = []
    address = f"127.0.0.1:{_free_port()}"
    for node, workers in enumerate(job.nodes):
        place: list[str] = []
        if len(job.nodes) > 1:
            place = ["--nodes", str(len(job.nodes)), "--node-rank", str(node)]
            place += ["--rendezvous", address]
        commands.append(
            [str(DRUMBEAT), "run", "-n", str(workers), *place, *job.options, *faults]
            + ["--run-dir", str(folder / f"run-{node}"), str(SCRIPT), "--out", str(folder)]
            + list(job.arguments)
        )
    return commands


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
