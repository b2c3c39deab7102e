"""What a killed worker costs, under drumbeat and under TensorFlow's strategy; what snapshots cost.

    make recovery                  # about 15 minutes on 2 idle cores
    make recovery ARGS='--rounds 3 --only kill'

Two workers train the digits CNN (`recovery_train.py`), and worker 1 kills itself in the
middle of an epoch. TensorFlow's strategy has tf_keras, BackupAndRestore and a supervisor
that starts all processes again as soon as one has ended; drumbeat has an unchanged
script. Then what snapshots cost, within one training: blocks of epochs with and without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from comparison import machine
from comparison.launchers import free_ports, stop
from comparison.peers import LEGACY, ROOT, TENSORFLOW, TUNED, environment
from comparison.summary import spread
from sklearn.datasets import load_digits

WORKER = ROOT / "benchmarks" / "recovery_train.py"
DRUMBEAT = Path(sys.executable).with_name("drumbeat")
WORKERS, EPOCHS = 2, 6
# 1400 examples are 22 steps an epoch: the kill is in the middle of the fourth.
EXAMPLES, KILL_STEP = 1400, 77
RUN_TIMEOUT_S = 600
PEER_VARIABLES = {**TUNED, **LEGACY, "TF_CPP_MIN_LOG_LEVEL": "3"}
# The models of which the cost of snapshots is measured: dense width, and steps of a round, which
# are some 15 s and about as many snapshots.
SIZES = {"digits CNN": (64, 5000), "digits CNN, wide": (4096, 1000)}
# A snapshot's own step and those after it, which may find their caches filled with other data.
WINDOW = 10


class Run:
    """One training, in a folder of its own.

    Args:
        folder: Empty.
        data: The examples.
    """

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        self._data = data

    def _arguments(self, more: Sequence[str]) -> list[str]:
        return [str(WORKER), "--out", str(self._folder), "--data", str(self._data), *more]

    def drumbeat(self, *more: str, options: Sequence[str] = ()) -> None:
        command = [str(DRUMBEAT), "run", "-n", str(WORKERS), "--run-dir", str(self._folder / "run")]
        with (self._folder / "log.txt").open("wb") as log:
            subprocess.run(
                [*command, *options, *self._arguments(more)],
                env=environment({}),
                stdout=log,
                stderr=log,
                timeout=RUN_TIMEOUT_S,
                check=True,
            )

    def tensorflow(self, *more: str) -> None:
        """All processes, and all again when one has ended badly, until all end well."""
        more = (*more, "--backup", str(self._folder / "backup"))
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while time.monotonic() < deadline:
            processes = self._start_all(more)
            try:
                codes = _first_failure_or_end(processes, deadline)
            finally:
                for process in processes:
                    stop(process)
            if all(code == 0 for code in codes):
                return
        raise TimeoutError(f"not at its end after {RUN_TIMEOUT_S} s; see {self._folder}")

    def _start_all(self, more: Sequence[str]) -> list[subprocess.Popen[bytes]]:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(WORKERS)]
        cores = machine.cores()
        processes = []
        for index in range(WORKERS):
            task = {"type": "worker", "index": index}
            config = json.dumps({"cluster": {"worker": addresses}, "task": task})
            pin = machine.pinned(cores[index % len(cores)])
            with (self._folder / f"log-{index}.txt").open("ab") as log:
                processes.append(
                    subprocess.Popen(
                        [*pin, str(TENSORFLOW.python), *self._arguments(more)],
                        env=environment({**PEER_VARIABLES, "TF_CONFIG": config}),
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        return processes

    def result(self) -> dict[str, Any]:
        return json.loads((self._folder / "result-0.json").read_text())

    def cost_of_kill(self) -> dict[str, float]:
        """Seconds from the kill to the first step that was not made before; steps repeated."""
        lines = [line.split() for line in (self._folder / "steps-1.txt").read_text().splitlines()]
        steps = [(int(step), float(at)) for step, at in lines]
        killed = next(k for k, (step, _) in enumerate(steps) if step == KILL_STEP)
        ahead_s = next(at for step, at in steps[killed + 1 :] if step > KILL_STEP)
        repeated = sum(step <= KILL_STEP for step, _ in steps[killed + 1 :])
        return {"lost_s": ahead_s - steps[killed][1], "repeated": repeated}


def _first_failure_or_end(
    processes: Sequence[subprocess.Popen[bytes]], deadline: float
) -> list[int | None]:
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if any(codes) or all(code is not None for code in codes):
            return codes
        time.sleep(0.02)
    return [process.poll() for process in processes]


def trained(kind: str, data: Path, kill: bool) -> dict[str, Any]:
    """One training; the seconds lost and steps repeated if it was disturbed."""
    with tempfile.TemporaryDirectory(prefix="drumbeat-recovery-") as name:
        run = Run(Path(name), data)
        more = ["--epochs", str(EPOCHS), "--kill-step", str(KILL_STEP if kill else 0)]
        run.drumbeat(*more) if kind == "drumbeat" else run.tensorflow(*more)
        return {**run.result(), **(run.cost_of_kill() if kill else {})}


def kills(data: Path, rounds: int) -> dict[str, Any]:
    """Disturbed and undisturbed trainings of both, in turns."""
    found: dict[str, list[dict[str, Any]]] = {"drumbeat": [], "TensorFlow": []}
    undisturbed = {kind: trained(kind, data, kill=False) for kind in found}
    again = {kind: trained(kind, data, kill=False) for kind in found}
    for number in range(rounds):
        for kind in list(found)[:: -1 if number % 2 else 1]:
            one = trained(kind, data, kill=True)
            one["same"] = one["weights"] == undisturbed[kind]["weights"]
            found[kind].append(one)
            say(
                f"kill {number}, {kind}: {one['lost_s']:.2f} s lost, {one['repeated']} steps made "
                f"again, weights {'the same' if one['same'] else 'others'}, loss {one['loss']:.4f}"
            )
    ratios = [
        theirs["lost_s"] / ours["lost_s"]
        for ours, theirs in zip(found["drumbeat"], found["TensorFlow"], strict=True)
    ]
    return {
        "runs": found,
        "repeatable": {k: again[k]["weights"] == undisturbed[k]["weights"] for k in found},
        "lost_s": {k: spread([one["lost_s"] for one in runs]) for k, runs in found.items()},
        "repeated": {k: spread([one["repeated"] for one in runs]) for k, runs in found.items()},
        "same": {k: sum(one["same"] for one in runs) for k, runs in found.items()},
        "ratio": spread(ratios),
    }


def snapshots(data: Path, rounds: int) -> dict[str, Any]:
    """What snapshots add to the time of training.

    For each snapshot, how much longer the `WINDOW` steps from it on take than as many before
    it. The same is done in the middle between snapshots, where it should be nothing: its
    spread is what a single figure can be trusted to.
    """
    found = {}
    for name, (width, steps) in SIZES.items():
        added_s: dict[str, list[float]] = {"snapshot": [], "none": []}
        total_s, parameters = 0.0, 0
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="drumbeat-recovery-") as folder:
                run = Run(Path(folder), data)
                run.drumbeat("--width", str(width), "--epochs", "1", "--steps", str(steps))
                result = run.result()
            # The first ones fill caches.
            taken = [at for at in result["snapshots"] if at > 10 * WINDOW]
            between = [(a + b) // 2 for a, b in zip(taken, taken[1:], strict=False)]
            added_s["snapshot"] += _added_s(result["steps_s"], taken)
            added_s["none"] += _added_s(result["steps_s"], between)
            total_s += sum(result["steps_s"][taken[0] :])
            parameters = result["parameters"]
        interval_s = total_s / len(added_s["snapshot"])
        found[name] = {
            "parameters": parameters,
            "snapshots": len(added_s["snapshot"]),
            "interval_s": interval_s,
            **{kind: _of_interval(values, interval_s) for kind, values in added_s.items()},
        }
        say(f"snapshots, {name}: {found[name]}")
    return found


def _added_s(steps_s: Sequence[float], places: Sequence[int]) -> list[float]:
    windows = [(steps_s[at - WINDOW : at], steps_s[at : at + WINDOW]) for at in places]
    return [sum(after) - sum(before) for before, after in windows if len(after) == WINDOW]


def _of_interval(added_s: Sequence[float], interval_s: float) -> dict[str, Any]:
    parts = [value / interval_s for value in added_s]
    low, middle, high = statistics.quantiles(parts, n=4)
    return {"mean": statistics.mean(parts), "median": middle, "quartiles": [low, high]}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_kills(figures: Mapping[str, Any]) -> None:
    print(f"| killed at step {KILL_STEP} | seconds lost | steps made again | weights the same |")
    print("|---|---|---|---|")
    for kind, runs in figures["runs"].items():
        lost, again = figures["lost_s"][kind], figures["repeated"][kind]
        print(
            f"| {kind} | {lost['median']:.1f} ({lost['min']:.1f} to {lost['max']:.1f}) "
            f"| {again['median']:g} ({again['min']:g} to {again['max']:g}) "
            f"| {figures['same'][kind]} of {len(runs)} |"
        )
    ratio = figures["ratio"]
    print(
        f"\nTensorFlow loses {ratio['median']:.1f} times the time "
        f"({ratio['min']:.1f} to {ratio['max']:.1f}, in pairs). Two undisturbed runs are alike: "
        f"{figures['repeatable']}."
    )


def print_snapshots(figures: Mapping[str, Any]) -> None:
    print("\n| snapshots add to the time of | mean | median | quartiles | where there is none |")
    print("|---|---|---|---|---|")
    for name, of in figures.items():
        cells = []
        for kind in ("snapshot", "none"):
            low, high = of[kind]["quartiles"]
            cells.append(f"{of[kind]['median']:+.2%} | {low:+.2%} to {high:+.2%}")
        print(
            f"| {name}, {of['parameters']:,} parameters, {of['snapshots']} every "
            f"{of['interval_s']:.1f} s | {of['snapshot']['mean']:+.2%} | {cells[0]} "
            f"| {cells[1].replace(' | ', ', ')} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("kill", "snapshots"))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "recovery.json")
    options = parser.parse_args()
    TENSORFLOW.make()
    figures: dict[str, Any] = {"machine": machine.description()}
    with tempfile.TemporaryDirectory(prefix="drumbeat-recovery-") as folder:
        data = Path(folder) / "digits.npz"
        digits: Any = load_digits()
        images = (digits.images[:EXAMPLES, ..., None] / 16).astype("float32")
        np.savez(data, x=images, y=digits.target[:EXAMPLES].astype("int64"))
        if options.only != "snapshots":
            figures["kill"] = kills(data, options.rounds)
            print_kills(figures["kill"])
        if options.only != "kill":
            figures["snapshots"] = snapshots(data, options.rounds)
            print_snapshots(figures["snapshots"])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    say(f"All figures: {options.out}")


if __name__ == "__main__":
    main()
