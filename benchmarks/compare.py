"""Compares training under `drumbeat run` with TensorFlow's own strategy on this machine.

    make bench            # or: .venv/bin/python benchmarks/compare.py --rounds 5

Two workers on two cores run the same script (`mnist_cnn.py`), in turns. TensorFlow's
strategy gets an environment of its own in build/, with tf_keras: it does not work with
Keras 3, which is shown first. What other processes of the machine use meanwhile is
measured, and a run that they disturb is done again as long as there is time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks" / "mnist_cnn.py"
PEER = ROOT / "build" / "bench-peer"
RUN_TIMEOUT_S = 300
# Cores that other processes may use during a run that counts.
QUIET_CORES = 0.15
CNN = ("--ways", "dataset", "numpy", "--steps", "150")
DENSE = ("--model", "dense", "--batch-size", "64", "--batches", "15")
DENSE += ("--warmup", "2", "--steps", "12")
TUNED = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to run the worker script.

    Attributes:
        name: Its name in tables and JSON.
        arguments: Of the worker script.
        workers: How many.
        launcher: "drumbeat", or "hand": a process each, with TF_CONFIG.
        pinned: Whether worker i gets core i alone; drumbeat does so by itself, so
            there it matters with one worker only.
        variables: Added to the environment.
    """

    name: str
    arguments: tuple[str, ...]
    workers: int = 2
    launcher: str = "drumbeat"
    pinned: bool = False
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


def by_hand(name: str, arguments: tuple[str, ...], *, tuned: bool) -> Case:
    """Tf_keras under TensorFlow's own strategy."""
    variables = {"TF_USE_LEGACY_KERAS": "1", **(TUNED if tuned else {})}
    return Case(name=name, arguments=arguments, launcher="hand", pinned=tuned, variables=variables)


CASES = (
    by_hand("cnn: TensorFlow", CNN, tuned=False),
    Case(name="cnn: drumbeat", arguments=CNN),
    by_hand("cnn: TensorFlow, tuned", CNN, tuned=True),
    Case(
        name="cnn: one worker, half the batch",
        arguments=(*CNN, "--batch-size", "256"),
        workers=1,
        pinned=True,
    ),
    by_hand("dense: TensorFlow", DENSE, tuned=False),
    Case(name="dense: drumbeat", arguments=DENSE),
    by_hand("dense: TensorFlow, tuned", DENSE, tuned=True),
)
# Pairs of cases, of which the ratio of step times is taken round by round.
RATIOS = (
    ("cnn: TensorFlow", "cnn: drumbeat"),
    ("cnn: TensorFlow, tuned", "cnn: drumbeat"),
    ("cnn: one worker, half the batch", "cnn: drumbeat"),
    ("dense: TensorFlow", "dense: drumbeat"),
    ("dense: TensorFlow, tuned", "dense: drumbeat"),
)
STOCK = Case(name="Keras 3 under TensorFlow's strategy", arguments=(), launcher="hand")


def busy_cpu_s() -> float:
    """CPU seconds that all processes have used since boot, and that the host kept from us."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """CPU seconds of this process and of those it started and that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Others:
    """How many cores all other processes used since this was made."""

    def __init__(self) -> None:
        self._begin = (time.monotonic(), busy_cpu_s(), own_cpu_s())

    def cores(self) -> float:
        elapsed_s = time.monotonic() - self._begin[0]
        others_s = busy_cpu_s() - self._begin[1] - (own_cpu_s() - self._begin[2])
        return max(0.0, others_s / elapsed_s)


def wait_for_quiet(deadline: float) -> None:
    """Returns when others have been quiet for 3 s, or at the deadline."""
    while time.monotonic() < deadline:
        others = Others()
        time.sleep(3)
        if others.cores() < QUIET_CORES:
            return


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what would tune TensorFlow behind the cases' backs."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TF_", "OMP_", "DRUMBEAT_", "KERAS_", "PYTHON"))
    }
    return {**ours, **variables}


def start(case: Case, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Starts the processes of a case, each in a session of its own, writing to a file."""
    script = [str(WORKER), "--out", str(folder / "result.json"), *case.arguments]
    cores = sorted(os.sched_getaffinity(0))
    if case.launcher == "drumbeat":
        drumbeat = [str(Path(sys.executable).with_name("drumbeat")), "run"]
        command = [*drumbeat, "-n", str(case.workers), "--run-dir", str(folder / "run"), *script]
        pin = ["taskset", "--cpu-list", str(cores[-1])] if case.pinned else []
        return [_popen([*pin, *command], environment(case.variables), folder / "worker-0.log")]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(case.workers)]
    processes = []
    for index in range(case.workers):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        pin = ["taskset", "--cpu-list", str(cores[index % len(cores)])] if case.pinned else []
        command = [*pin, str(PEER / "bin" / "python"), *script]
        variables = environment({**case.variables, "TF_CONFIG": config})
        processes.append(_popen(command, variables, folder / f"worker-{index}.log"))
    return processes


def _popen(command: list[str], variables: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=variables, stdout=output, stderr=output, cwd=ROOT, start_new_session=True
        )


def finish(processes: Sequence[subprocess.Popen[bytes]]) -> list[int | None]:
    """Exit codes; None for a process that had to be stopped after `RUN_TIMEOUT_S`.

    When one has failed, the others get 20 s: TensorFlow's strategy may leave them waiting.
    """
    deadline = time.monotonic() + RUN_TIMEOUT_S
    try:
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            if any(process.returncode for process in processes):
                deadline = min(deadline, time.monotonic() + 20)
            time.sleep(0.1)
        return [process.poll() for process in processes]
    finally:  # after Ctrl-C, too
        for process in processes:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its session, if it still runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def run(case: Case) -> dict[str, Any]:
    """Runs a case once; returns what the chief measured, and how others disturbed it.

    A run that failed has "failed" with the exit codes and the end of the chief's log.
    """
    with tempfile.TemporaryDirectory(prefix="drumbeat-bench-") as name:
        folder = Path(name)
        others = Others()
        codes = finish(start(case, folder))
        result: dict[str, Any]
        if any(code != 0 for code in codes):
            log = (folder / "worker-0.log").read_text(errors="replace")
            result = {"failed": {"exit_codes": codes, "log": log[-20000:]}}
        else:
            result = json.loads((folder / "result.json").read_text())
    return {"case": case.name, "others_cores": round(others.cores(), 3), **result}


def run_stock() -> dict[str, Any]:
    """Exit codes and error of Keras 3's `fit` under TensorFlow's own strategy."""
    failed = run(STOCK).get("failed", {"exit_codes": [0, 0], "log": ""})
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*", failed["log"], re.MULTILINE)
    return {"exit_codes": failed["exit_codes"], "error": errors[-1] if errors else ""}


def measure(cases: Iterable[Case], rounds: int, deadline: float) -> Iterator[dict[str, Any]]:
    """Runs all cases `rounds` times in turns, every other round in reverse order.

    A run that was disturbed or failed is repeated until it isn't or the deadline has
    passed; all but the least disturbed one of a case and round are dropped.
    """
    for number in range(rounds):
        for case in list(cases)[:: -1 if number % 2 else 1]:
            tries = []
            while not tries or (not _is_good(tries[-1]) and time.monotonic() < deadline):
                wait_for_quiet(deadline)
                tries.append({"round": number, **run(case)})
                print(_line(tries[-1]), file=sys.stderr, flush=True)
            yield min(tries, key=_disturbance) | {"tries": len(tries)}


def _is_good(one: Mapping[str, Any]) -> bool:
    return "failed" not in one and one["others_cores"] <= QUIET_CORES


def _disturbance(one: Mapping[str, Any]) -> tuple[bool, float]:
    return "failed" in one, one["others_cores"]


def _line(one: Mapping[str, Any]) -> str:
    times = ", ".join(f"{way} {one[way]['median_ms']:.2f} ms" for way in _ways(one))
    if "failed" in one:
        failed = one["failed"]
        times = f"failed with exit codes {failed['exit_codes']}\n{failed['log'][-2000:]}"
    return f"round {one['round']}, {one['case']}: {times}; others {one['others_cores']:.2f} cores"


def _ways(one: Mapping[str, Any]) -> list[str]:
    return [way for way in ("dataset", "numpy") if way in one]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, least and greatest, and all."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "all": [round(value, 3) for value in values],
    }


def summarize(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Step times by case and input, and ratios taken within each round."""
    good = [one for one in runs if "failed" not in one]
    found: dict[tuple[str, str], dict[int, float]] = {}
    for one in runs:
        for way in _ways(one):
            times = found.setdefault((one["case"], way), {})
            times[one["round"]] = one[way]["median_ms"]
    ratios = []
    for above, below in RATIOS:
        for way in ("dataset", "numpy"):
            pair = found.get((above, way), {}), found.get((below, way), {})
            common = sorted(set(pair[0]) & set(pair[1]))
            if common:
                values = [pair[0][number] / pair[1][number] for number in common]
                ratios.append({"above": above, "below": below, "input": way, **spread(values)})
    return {
        "step_ms": [
            {"case": case, "input": way, **spread(list(times.values()))}
            for (case, way), times in found.items()
        ],
        "ratios": ratios,
        "loss": {
            case: spread([one["dataset"]["loss"] for one in good if one["case"] == case])
            for case in dict.fromkeys(one["case"] for one in good)
        },
        "others_cores": spread([one["others_cores"] for one in runs]),
        "disturbed_runs": sum(one["others_cores"] > QUIET_CORES for one in runs),
        "runs": len(runs),
        "failed_runs": len(runs) - len(good),
    }


def machine() -> dict[str, Any]:
    """What the figures hold for."""
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "mpich")},
    }


def table(summary: Mapping[str, Any]) -> str:
    """The summary as a table in Markdown."""
    lines = ["| step, ms | input | median | min to max |", "|---|---|---|---|"]
    lines += [
        f"| {row['case']} | {row['input']} | {row['median']:.1f} "
        f"| {row['min']:.1f} to {row['max']:.1f} |"
        for row in sorted(summary["step_ms"], key=lambda row: (row["case"], row["input"]))
    ]
    lines += [
        "",
        "| ratio of steps, round by round | input | median | min to max |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['above']} / {row['below']} | {row['input']} | {row['median']:.2f} "
        f"| {row['min']:.2f} to {row['max']:.2f} |"
        for row in summary["ratios"]
    ]
    return "\n".join(lines)


def make_peer() -> None:
    """An environment with our TensorFlow and the tf_keras that belongs to it."""
    complete = PEER / "complete"
    if complete.exists():
        return
    print(f"Installing TensorFlow and tf_keras into {PEER.relative_to(ROOT)}", file=sys.stderr)
    release = importlib.metadata.version("tensorflow")
    packages = [f"tensorflow=={release}", f"tf_keras=={release.rpartition('.')[0]}.*"]
    packages += [f"{name}=={importlib.metadata.version(name)}" for name in ("keras", "numpy")]
    pip = [str(PEER / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEER)], check=True)
    subprocess.run([*pip, "install", *packages], check=True)
    complete.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="only cases whose name begins so: cnn, dense")
    parser.add_argument(
        "--patience", type=float, default=900, metavar="SECONDS", help="for waits and repeats"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    options = parser.parse_args()
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        sys.exit("The comparison needs Linux and two cores.")
    make_peer()
    stock = run_stock()
    print(f"{STOCK.name}: exit codes {stock['exit_codes']}, {stock['error']}", file=sys.stderr)
    cases = [case for case in CASES if case.name.startswith(options.only)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs: list[dict[str, Any]] = []
    with contextlib.suppress(KeyboardInterrupt):  # the table of what there is
        for one in measure(cases, options.rounds, time.monotonic() + options.patience):
            runs.append(one)
    if not runs:
        sys.exit("Stopped before the first run had ended.")
    summary = summarize(runs)
    report = {"machine": machine(), "stock_keras_3": stock, "summary": summary, "runs": runs}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(summary))
    print(
        f"\n{summary['disturbed_runs']} of {summary['runs']} runs had others on more than "
        f"{QUIET_CORES:g} cores (up to {summary['others_cores']['max']:.2f}), "
        f"{summary['failed_runs']} failed. "
        f"All figures: {options.out}"
    )


if __name__ == "__main__":
    main()
