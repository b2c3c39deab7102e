"""Compares training under `drumbeat run` with other ways to train, on this machine.

    make bench                               # all of it: about 40 minutes on 2 idle cores
    make bench ARGS='--quick'                # about 5
    make bench ARGS='--only a,b --peers drumbeat,tensorflow --rounds 5'
    make bench ARGS=--write                  # and writes table and plot into docs/

Each peer has an environment of its own in build/, which is made when it is first needed,
and trains the same networks on the same data in the same batches. The peers take turns;
ratios are taken within a round. What other processes of the machine use meanwhile is
measured, and a run that they disturb is done again as long as there is patience.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from comparison import machine, network, plan
from comparison.launchers import PICTURES, SCRIPTS, Case, run, run_stock
from comparison.peers import BUILD, PEERS, ROOT, PeerMissing, environment
from comparison.plot import svg
from comparison.rounds import Rounds
from comparison.summary import summarize
from comparison.tables import report

PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.svg"
BEGIN, END = "<!-- make bench writes this -->", "<!-- until here -->"
NETWORK_ROUNDS = 2


class Comparison:
    """All that is measured, and what has been found.

    Args:
        workloads: Names, with "network" and "growth".
        peers: Names.
        quick: Shorter and fewer runs.
        rounds: Runs and repeats cases.
    """

    def __init__(
        self, workloads: Sequence[str], peers: Sequence[str], quick: bool, rounds: Rounds
    ) -> None:
        self._workloads = workloads
        self._peers = peers
        self._quick = quick
        self._rounds = rounds
        self.runs: list[dict[str, Any]] = []
        self.floors: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def measure(self, number: int) -> None:
        """One round of everything."""
        for name in self._workloads:
            if name == "network":
                if number < NETWORK_ROUNDS:
                    self._networks(number)
            elif name == "growth":
                if number < NETWORK_ROUNDS:
                    self._take(number, plan.growing(self._peers, self._quick))
            else:
                size_bytes = plan.WORKLOADS[name].gradient_bytes
                self._floor(name, number, machine.sum_ms(size_bytes, workers=2))
                self._take(number, plan.side_by_side(name, self._peers, number, self._quick))

    def _networks(self, number: int) -> None:
        for rate in plan.RATES_GBIT:
            try:
                with network.link(rate) as cable:
                    size_bytes = plan.WORKLOADS["dense"].gradient_bytes
                    group = plan.network_group(rate)
                    self._floor(group, number, network.exchange_ms(cable, size_bytes))
                    self._take(number, plan.networked(cable, self._peers))
            except network.NetworkMissing as error:
                note = f"No emulated networks here: {error}."
                say(note)
                self.notes += [note] if note not in self.notes else []

    def _floor(self, group: str, number: int, milliseconds: float) -> None:
        self.floors.append({"group": group, "round": number, "ms": milliseconds})

    def _take(self, number: int, cases: Sequence[Case]) -> None:
        self.runs += self._rounds.turns(number, cases)

    def record(self, rounds: int) -> dict[str, Any]:
        """What there is, as it is kept in a file."""
        return {
            "machine": machine.description(),
            "tuned": machine.settings_of_drumbeat(),
            "rounds": rounds,
            "notes": self.notes,
            "summary": summarize(self.runs, self.floors),
            "floors": self.floors,
            "runs": self.runs,
        }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def make_environments(peers: Sequence[str]) -> list[str]:
    """The peers of which the environment is there, or could be made."""
    missing: dict[Any, str] = {}
    for made in dict.fromkeys(PEERS[name].environment for name in peers):
        try:
            if made:
                made.make()
        except PeerMissing as error:
            missing[made] = str(error)
            say(f"build/{made.folder} could not be made: {error}")
    return [name for name in peers if PEERS[name].environment not in missing]


def make_pictures() -> None:
    """The files of the image workload, written once."""
    if not (PICTURES / "complete").exists():
        say(f"Writing pictures into {PICTURES.relative_to(ROOT)}")
        command = [sys.executable, str(SCRIPTS / "write_pictures.py"), str(PICTURES)]
        subprocess.run(command, env=environment({}), check=True, capture_output=True)


def write_docs(record: dict[str, Any]) -> None:
    """Puts the tables between the markers of the page, and the plot beside it."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    picture = f"![Samples a second, relative to drumbeat's]({PLOT.name})"
    text = f"{BEGIN}\n{report(record)}\n\n{picture}\n{END}"
    PAGE.write_text(before + text + after)
    PLOT.write_text(svg(record["summary"]["groups"]))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", help="workloads: letters or names, with commas")
    parser.add_argument("--peers", default="", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, help="default: 3; 1 if --quick")
    parser.add_argument("--quick", action="store_true", help="shorter runs of fewer peers")
    parser.add_argument(
        "--patience", type=float, metavar="SECONDS", help="for waits and repeats (default: 600)"
    )
    parser.add_argument("--out", type=Path, default=BUILD / "bench.json")
    parser.add_argument("--write", action="store_true", help="table and plot into docs/")
    parser.add_argument("--show", type=Path, metavar="FILE", help="of an earlier comparison")
    options = parser.parse_args()
    try:
        everything = list(plan.LETTERS.values())
        options.workloads = plan.named(options.only, everything) or (
            list(plan.QUICK) if options.quick else everything
        )
        options.chosen = plan.named(options.peers, list(PEERS)) or (
            list(plan.QUICK_PEERS) if options.quick else list(PEERS)
        )
    except ValueError as error:
        parser.error(str(error))
    options.rounds = options.rounds or (1 if options.quick else 3)
    if options.patience is None:
        options.patience = 60 if options.quick else 600
    return options


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What there is after each round, the last one broken off if Ctrl-C comes."""
    if not hasattr(os, "sched_getaffinity") or len(machine.cores()) < 2:
        sys.exit("The comparison needs Linux and two cores.")
    peers = make_environments(options.chosen)
    make_pictures()
    if "tensorflow" in peers:
        stock = run_stock()
        say(f"Keras 3 under TensorFlow's strategy: {stock['exit_codes']}, {stock['error']}")
    # What is best here is found out once, for all runs to come.
    for case in plan.side_by_side("cnn", [n for n in plan.TUNES if n in peers], 0, quick=True):
        run(case)
    comparison = Comparison(options.workloads, peers, options.quick, Rounds(options.patience))
    try:
        for number in range(options.rounds):
            comparison.measure(number)
            yield comparison.record(options.rounds)
    except KeyboardInterrupt:
        if comparison.runs:
            yield comparison.record(options.rounds)


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    record: dict[str, Any] | None = None
    if options.show:
        record = json.loads(options.show.read_text())
    else:
        for record in measured(options):
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n")
    if record is None:
        sys.exit("Stopped before the first run had ended.")
    print(report(record))
    if options.write:
        write_docs(record)
    say(f"All figures: {options.show or options.out}")


if __name__ == "__main__":
    main()
