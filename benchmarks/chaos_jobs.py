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

import psutil

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
        kills: Kills at any time: seconds after the one before (the first: after the job's
            start), and a number from 0 to 1 that says which process.
        options: More options of `drumbeat run`.
        arguments: Of the script.
    """

    nodes: tuple[int, ...]
    faults: tuple[str, ...] = ()
    kills: tuple[tuple[float, float], ...] = ()
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
        kills: When something was killed that no fault addresses.
        seconds: How long it took.
    """

    folder: Path
    problem: str = ""
    lines: list[list[tuple[float, str]]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
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

    def family(self) -> list[int]:
        """The processes of its workers, and the one that forks them; none without workers."""
        try:
            parents = [
                child
                for child in psutil.Process(self.process.pid).children()
                if "drumbeat.launch.parent" in " ".join(child.cmdline())
            ]
            families = [(parent, parent.children()) for parent in parents]
            return [
                one.pid for parent, workers in families if workers for one in (parent, *workers)
            ]
        except psutil.Error:
            return []

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


class Platform:
    """Starts a job's agents, and again those that faults have killed.

    Args:
        job: What to run.
        folder: For all that it writes; doesn't exist yet.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self._job = job
        self._folder = folder
        self._commands = _commands(job, folder)
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        self._env["DRUMBEAT_TOKEN"] = secrets.token_hex(16)
        self._agents: list[Agent] = []
        nodes = range(len(job.nodes))
        self._deaths = [sum(f"agent-kill:node={n}," in f for f in job.faults) for n in nodes]
        self._kills = list(job.kills)
        self._last_kill_s = 0.0
        self._ended = Ended(folder=folder, lines=[[] for _ in nodes])

    def run(self) -> Ended:
        """Runs the job to its end."""
        self._folder.mkdir(parents=True)
        began_s = self._last_kill_s = time.monotonic()
        try:
            for command, lines in zip(self._commands, self._ended.lines, strict=True):
                self._agents.append(Agent(command, self._env, lines))
            self._ended.problem = self._supervise()
        finally:
            for agent in self._agents:
                agent.close()
        self._ended.seconds = time.monotonic() - began_s
        (self._folder / "output.txt").write_text(
            "".join(
                f"{at - began_s:9.3f} node {node}: {line}\n"
                for node, lines in enumerate(self._ended.lines)
                for at, line in lines
            )
        )
        return self._ended

    def _supervise(self) -> str:
        """Waits for the end; returns what went wrong, or ""."""
        limit_s = JOB_S + FAULT_S * (len(self._job.faults) + len(self._job.kills))
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            self._kill_someone()
            codes = [agent.process.poll() for agent in self._agents]
            for node, code in enumerate(codes):
                if code == -signal.SIGKILL and self._deaths[node]:
                    self._deaths[node] -= 1
                    self._agents[node].close()
                    lines = self._ended.lines[node]
                    self._agents[node] = Agent(self._commands[node], self._env, lines)
                elif code:
                    self._wait_for_others()
                    return f"node {node} ended with exit code {code}"
            if all(code == 0 for code in codes):
                return ""
            time.sleep(0.02)
        return f"not at its end after {limit_s} s"

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline and any(a.process.poll() is None for a in self._agents):
            time.sleep(0.1)

    def _kill_someone(self) -> None:
        """Kills any worker, or what forks them, when it is time to."""
        if not self._kills or time.monotonic() - self._last_kill_s < self._kills[0][0]:
            return
        found = [pid for agent in self._agents for pid in agent.family()]
        if not found:
            return
        _, draw = self._kills.pop(0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(found[int(draw * len(found))], signal.SIGKILL)
            self._ended.kills.append(time.monotonic())
        self._last_kill_s = time.monotonic()


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
