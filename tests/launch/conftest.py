"""Starts real jobs through the real command line, with a preload that needs no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

HEADING = re.compile(
    r"(?:^|\n)\n(?=The run failed\.|"
    r".+ on \S+ (failed|was|lost|dropped|never|could|made|has) .*\.\n)"
)
TOKEN = {"DRUMBEAT_TOKEN": "0123456789abcdef" * 2}
SOURCE = Path(__file__).parents[2] / "src"
STAND_IN = "def install():\n    pass\n"
COMMAND = """\
import sys
from drumbeat.cli import main
from drumbeat.launch import parent
parent.DEFAULT_PRELOAD = sys.argv.pop(1)
main.main()
"""


@dataclass(frozen=True)
class Result:
    """How a job ended."""

    code: int
    out: str
    seconds: float
    run_dir: Path

    def log(self, worker: str) -> str:
        return (self.run_dir / worker / "output.log").read_bytes().decode("utf-8", "replace")

    @property
    def report(self) -> str:
        """What came last on the screen: the heading of the failure and what follows it."""
        starts = [match.end() for match in HEADING.finditer(self.out)]
        return self.out[starts[-1] :].rstrip("\n") if starts else ""


class Job:
    """A running agent."""

    def __init__(self, process: subprocess.Popen[str], run_dir: Path) -> None:
        self.process = process
        self.run_dir = run_dir
        self.started_s = time.monotonic()
        self.seen: set[psutil.Process] = set()

    def family(self) -> list[psutil.Process]:
        """Every process of the job but the agent, the parent first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen.update(psutil.Process(self.process.pid).children(recursive=True))
        return sorted(self.seen, key=lambda process: process.pid)

    def wait_for_output(self, worker: str, text: str, timeout_s: float = 20) -> None:
        log = self.run_dir / worker / "output.log"
        deadline = time.monotonic() + timeout_s
        while not (log.exists() and text in log.read_text(errors="replace")):
            if time.monotonic() > deadline or self.process.poll() is not None:
                out = self.process.communicate(timeout=5)[0] if self.process.poll() else ""
                raise AssertionError(f"{worker} never wrote {text!r}. {out}")
            time.sleep(0.02)
        self.family()

    def end(self, timeout_s: float = 30) -> Result:
        out, _ = self.process.communicate(timeout=timeout_s)
        seconds = time.monotonic() - self.started_s
        return Result(self.process.returncode, out, seconds, self.run_dir)

    def alive_after(self, seconds: float) -> list[psutil.Process]:
        """The processes of the job that are still there after `seconds`."""
        deadline = time.monotonic() + seconds
        while alive := [process for process in self.family() if _lives(process)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        return alive


def _default_signals() -> None:
    # nohup and a shell's & have signals ignored in everything below them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _lives(process: psutil.Process) -> bool:
    # An orphan that the container's init has not buried yet is dead all the same.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Jobs:
    """Makes jobs in a folder of the test's own."""

    token = TOKEN

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Job] = []
        (folder / "standin.py").write_text(STAND_IN)
        (folder / "command.py").write_text(COMMAND)

    def script(self, text: str, name: str = "script.py") -> str:
        (self.folder / name).write_text(textwrap.dedent(text))
        return name

    def start(
        self,
        *command: str,
        options: Sequence[str] = ("-n", "2"),
        env: Mapping[str, str] | None = None,
        preload: str = "standin",
        prefix: Sequence[str] = (),
        run_dir: str | None = "run",
    ) -> Job:
        folder = ["--run-dir", run_dir] if run_dir else []
        arguments = ["run", *options, *folder, "--", *command]
        process = subprocess.Popen(
            [*prefix, sys.executable, "command.py", preload, *arguments],
            cwd=self.folder,
            env={**self.environ(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_default_signals,
        )
        job = Job(process, self.folder / (run_dir or "runs"))
        self._running.append(job)
        return job

    def run(self, text: str, *args: str, timeout_s: float = 30, **how: object) -> Result:
        """Runs a script, given as its text, to its end."""
        return self.start(self.script(text), *args, **how).end(timeout_s)  # type: ignore[arg-type]

    def on_terminal(self, *command: str, options: Sequence[str]) -> str:
        """Runs a job on a pseudo-terminal, and returns all that was written to it."""
        ours, theirs = os.openpty()
        process = subprocess.Popen(
            [sys.executable, "command.py", "standin", "run", *options, *command],
            cwd=self.folder,
            env={**self.environ(), "TERM": "xterm", "NO_COLOR": ""},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as screen:
            while data := screen.read(65536):
                written += data
        assert process.wait(10) == 0, written
        return written.decode()

    def environ(self) -> dict[str, str]:
        names = ("TF_CONFIG", "OMP_NUM_THREADS", "DRUMBEAT_TOKEN", "TF_CPP_MIN_LOG_LEVEL")
        environ = {name: value for name, value in os.environ.items() if name not in names}
        return {**environ, "PYTHONPATH": f"{SOURCE}:{self.folder}", "PYTHONUNBUFFERED": ""}

    def close(self) -> None:
        for job in self._running:
            family = job.family()
            if job.process.poll() is None:
                job.process.kill()
            job.process.wait(10)
            if job.process.stdout is not None:
                job.process.stdout.close()
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Pair:
    """Starts the same command on both nodes."""

    token = TOKEN

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.port = free_port()

    def start(self, rank: int, script: str, *args: str, options=(), env=TOKEN, timeout=30, **how):
        nodes = ("--nodes", "2", "--node-rank", str(rank))
        meeting = ("--rendezvous", f"127.0.0.1:{self.port}", "--start-timeout", str(timeout))
        return self.jobs.start(
            script,
            *args,
            options=(*nodes, *meeting, *options),
            env=env,
            run_dir=f"node{rank}",
            **how,
        )

    def both(self, text: str, *args: str, **how):
        script = self.jobs.script(text)
        return [self.start(rank, script, *args, **how) for rank in (1, 0)][::-1]


@pytest.fixture
def pair(jobs: Jobs) -> Pair:
    return Pair(jobs)


@pytest.fixture
def eventually() -> Callable[[Callable[[], object], float], None]:
    """Waits for a condition to become true, with a deadline."""

    def wait(condition: Callable[[], object], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it never became true"
            time.sleep(0.02)

    return wait


@pytest.fixture
def namespaces() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Two network namespaces with one cable between them: (name, address) of each."""
    mark = f"{os.getpid() % 100000}"
    names = [f"db{mark}{side}" for side in "ab"]
    addresses = ["10.203.0.1", "10.203.0.2"]
    commands = [f"ip netns add {name}" for name in names]
    commands.append(f"ip link add v0 netns {names[0]} type veth peer name v0 netns {names[1]}")
    for name, address in zip(names, addresses, strict=True):
        commands += [
            f"ip -n {name} addr add {address}/24 dev v0",
            f"ip -n {name} link set v0 up",
            f"ip -n {name} link set lo up",
        ]
    try:
        for command in commands:
            made = subprocess.run(command.split(), capture_output=True, text=True, timeout=20)
            if made.returncode != 0:
                pytest.skip(f"no network namespaces here: {command}: {made.stderr.strip()}")
        wait_until_up(names)
        yield (names[0], addresses[0]), (names[1], addresses[1])
    except FileNotFoundError:
        pytest.skip("no network namespaces here: iproute2 is not installed")
    finally:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


def wait_until_up(names: Sequence[str]) -> None:
    """Waits until the cable carries: UCX takes an interface for absent before."""
    deadline = time.monotonic() + 10
    for name in names:
        show = ["ip", "-n", name, "-o", "link", "show", "v0"]
        while "state UP" not in subprocess.run(show, capture_output=True, text=True).stdout:
            assert time.monotonic() < deadline, f"the link of {name} never came up"
            time.sleep(0.05)
