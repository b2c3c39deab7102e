"""Injects failures into training jobs, and compares what comes out with undisturbed ones.

    make chaos                              # 100 faults, about 15 minutes on 2 cores
    make chaos ARGS='--faults 20 --seed 7'

Jobs of two and three workers, on one node and on two (two agents on this machine, of
which the harness starts a killed one again, as a platform would), get faults drawn at
random over kinds, ranks and steps. Each must end with the bytes of the undisturbed job
with as many workers: weights, optimizer, history, callbacks' state, evaluation; and
each example must have been trained exactly once in each epoch. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import chaos_check as check
from chaos_check import ANY_TIME, Cost, Made
from chaos_jobs import ROOT, Ended, Job, Platform
from comparison.machine import Others

from drumbeat.cluster.faults import FaultKind

# As in chaos_train.py, which imports TensorFlow.
TRAINED, STEPS_PER_EPOCH = 1400, 22
SHAPES = ((2,), (1, 1), (3,), (2, 1))
FAULTS_PER_JOB = 8
SNAPSHOT_EVERY = 10
HANG_TIMEOUT_S = 20
OPTIONS = ("--snapshot-every", str(SNAPSHOT_EVERY), "--hang-timeout", str(HANG_TIMEOUT_S))
# How often of 30 faults each kind is drawn: most often what happens most often.
WEIGHTS = {
    ANY_TIME: 5,
    FaultKind.KILL: 6,
    FaultKind.CORRUPT_SNAPSHOT: 3,
    FaultKind.CRASH: 2,
    FaultKind.EXIT: 2,
    FaultKind.RAISE: 2,
    FaultKind.OOM: 2,
    FaultKind.STOP: 1,
    FaultKind.DELAY: 1,
    FaultKind.SLOW: 1,
    FaultKind.AGENT_KILL: 4,
    FaultKind.PARTITION: 1,
}
NUMBERS = {
    FaultKind.DELAY: ",seconds=0.5",
    FaultKind.SLOW: ",seconds=0.05,steps=10",
    FaultKind.EXIT: ",code=7",
}
# From one kill at any time to the next: some come before the first step after a restart.
GAP_S = (0.2, 8.0)
# Shorter than what makes a node lost, and longer.
PARTITIONS_S = (2, 12)
# The workers of a killed agent make some more before the system has ended them; 12 were seen.
DYING_STEPS = 15
MEDIAN_TARGET_S, WORST_TARGET_S = 3.0, 8.0


@dataclass(kw_only=True)
class Totals:
    """What all jobs have shown."""

    jobs: int = 0
    not_struck: int = 0
    problems: list[str] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)


def plan(
    seed: int, faults: int, shapes: Sequence[tuple[int, ...]], epochs: Sequence[int]
) -> list[Job]:
    """Jobs that together have so many faults, drawn from the seed.

    Args:
        seed: Of the draws.
        faults: How many.
        shapes: Workers on each node, in turns.
        epochs: Of the script's two fits.
    """
    rng = random.Random(seed)
    bag = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
    kinds: list[FaultKind | str] = []
    while len(kinds) < faults:
        kinds += rng.sample(bag, len(bag))
    kinds = kinds[:faults]
    if all(len(shape) == 1 for shape in shapes):
        kinds = [FaultKind.KILL if _is_of_node(kind) else kind for kind in kinds]
    jobs = max(-(-faults // FAULTS_PER_JOB), min(len(shapes), faults))
    drawn: list[list[FaultKind | str]] = [[] for _ in range(jobs)]
    of = [shapes[number % len(shapes)] for number in range(jobs)]
    for kind in sorted(kinds, key=lambda kind: not _is_of_node(kind)):
        fitting = [n for n in range(jobs) if len(of[n]) > 1 or not _is_of_node(kind)]
        drawn[min(fitting, key=lambda n: (len(drawn[n]), n))].append(kind)
    return [_job(rng, shape, mine, epochs) for shape, mine in zip(of, drawn, strict=True)]


def _is_of_node(kind: FaultKind | str) -> bool:
    return isinstance(kind, FaultKind) and kind.is_of_node


def _job(
    rng: random.Random,
    shape: tuple[int, ...],
    drawn: Sequence[FaultKind | str],
    epochs: Sequence[int],
) -> Job:
    kinds = [kind for kind in drawn if isinstance(kind, FaultKind)]
    # The last step is left out: nothing would come after it that could be measured.
    last = sum(epochs) * STEPS_PER_EPOCH
    steps = rng.sample(range(2, last), len(kinds))
    while any(
        kind is FaultKind.AGENT_KILL and step > last - DYING_STEPS
        for kind, step in zip(kinds, steps, strict=True)
    ):
        steps = rng.sample(range(2, last), len(kinds))
    faults = []
    for kind, step in sorted(zip(kinds, steps, strict=True), key=lambda pair: pair[1]):
        place = rng.randrange(len(shape) if kind.is_of_node else sum(shape))
        numbers = NUMBERS.get(kind, "")
        if kind is FaultKind.PARTITION:
            numbers = f",seconds={rng.choice(PARTITIONS_S)}"
        where = "node" if kind.is_of_node else "rank"
        faults.append(f"{kind.value}:{where}={place},step={step}{numbers}")
    return Job(
        nodes=shape,
        faults=tuple(faults),
        kills=tuple((rng.uniform(*GAP_S), rng.random()) for _ in range(len(drawn) - len(kinds))),
        options=OPTIONS,
        arguments=("--epochs", *map(str, epochs)),
    )


class Chaos:
    """Runs jobs, and for each shape of them an undisturbed one."""

    def __init__(self, folder: Path, epochs: Sequence[int]) -> None:
        self.totals = Totals()
        self._folder = folder
        self._epochs = epochs
        self._references: dict[tuple[int, ...], tuple[Ended, list[list[Made]]]] = {}

    def reference(self, job: Job) -> tuple[Ended, list[list[Made]]]:
        """The undisturbed job of the same shape, and its ledgers."""
        if job.nodes not in self._references:
            quiet = dataclasses.replace(job, faults=(), kills=())
            name = "undisturbed-" + "-".join(map(str, job.nodes))
            ended = Platform(quiet, self._folder / name).run()
            made = self._ledgers(ended, quiet)
            wrong = [ended.problem] if ended.problem else []
            wrong += check.not_once(made, STEPS_PER_EPOCH, TRAINED)
            say(f"undisturbed, {job.shape}: {ended.seconds:.1f} s {'; '.join(wrong)}")
            if wrong:
                sys.exit(f"The undisturbed job failed: {wrong}. See {ended.folder}/output.txt")
            self._references[job.nodes] = ended, made
        return self._references[job.nodes]

    def disturb(self, number: int, job: Job) -> None:
        """Runs a job with its faults, and adds up what it shows."""
        reference, wanted = self.reference(job)
        kills = f"{len(job.kills)} kills at any time" if job.kills else ""
        say(f"job {number}, {job.shape}: {' '.join(job.faults)} {kills}")
        ended = Platform(job, self._folder / f"job-{number}").run()
        made = self._ledgers(ended, job)
        wrong = check.differences(ended, reference, made, wanted)
        wrong += check.not_once(made, STEPS_PER_EPOCH, TRAINED)
        costs, missed = check.costs(job, ended, made)
        wrong += missed
        self.totals.jobs += 1
        # A job may end before all kills that come at any time.
        self.totals.not_struck += len(job.kills) - len(ended.kills)
        self.totals.costs += costs
        self.totals.problems += [f"job {number}: {text}" for text in wrong]
        verdict = "; ".join(wrong) if wrong else "as the undisturbed one"
        say(f"  {ended.seconds:.1f} s, {verdict}")
        for cost in costs:
            took = "after the last step" if cost.recovery_s is None else f"{cost.recovery_s:.2f} s"
            say(f"    {cost.kind}: {took}, {cost.repeated} steps repeated")

    def _ledgers(self, ended: Ended, job: Job) -> list[list[Made]]:
        ranks = range(sum(job.nodes))
        return [check.ledger(ended.folder, k, STEPS_PER_EPOCH, self._epochs) for k in ranks]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(costs: Sequence[Cost]) -> str:
    """A row for each kind of fault, in Markdown."""
    rows = ["| fault | survived | recovery, s: median | worst | steps repeated: median | worst |"]
    rows.append("|---|---|---|---|---|---|")
    for kind, mine in check.by_kind(costs).items():
        seconds = [cost.recovery_s for cost in mine if cost.recovery_s is not None] or [0.0]
        steps = [cost.repeated for cost in mine]
        rows.append(
            f"| {kind} | {len(mine)} | {statistics.median(seconds):.1f} | {max(seconds):.1f} "
            f"| {statistics.median(steps):g} | {max(steps)} |"
        )
    return "\n".join(rows)


def verdict(totals: Totals, seed: int, faults: int) -> str:
    """The last line."""
    costs = [cost for cost in totals.costs if cost.kind not in check.GOES_ON]
    measured = "nothing was measured"
    seconds = [cost.recovery_s for cost in costs if cost.recovery_s is not None]
    if seconds:
        plain = [c.repeated for c in costs if c.kind != FaultKind.CORRUPT_SNAPSHOT.value]
        measured = (
            f"recovery median {statistics.median(seconds):.1f} s (target {MEDIAN_TARGET_S:g}), "
            f"worst {max(seconds):.1f} s (target {WORST_TARGET_S:g}), at most "
            f"{max(plain, default=0)} steps repeated (interval {SNAPSHOT_EVERY})"
        )
        cpu = [cost.cpu_s for cost in costs if cost.cpu_s is not None]
        if cpu:
            measured += f", CPU time of a worker up to its step {statistics.median(cpu):.1f} s"
    how = (
        f"DIFFERENT: {'; '.join(totals.problems)}"
        if totals.problems
        else "every job ended with the bytes of the undisturbed one, each example once an epoch"
    )
    struck = faults - totals.not_struck
    survived = f"{len(totals.costs)} of {struck} faults survived in {totals.jobs} jobs, seed {seed}"
    return f"{survived}: {measured}; {how}."


def shapes_of(texts: Iterable[str]) -> list[tuple[int, ...]]:
    return [tuple(int(part) for part in text.split("+")) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--shapes", nargs="+", default=["2", "1+1", "3", "2+1"], metavar="2+1")
    parser.add_argument("--epochs", type=int, nargs=2, default=[6, 4], help="of the two fits")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "chaos")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    say(f"seed {seed}: the same with --faults {options.faults} --seed {seed}")
    folder = options.out / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    chaos = Chaos(folder, options.epochs)
    others = Others()
    jobs = plan(seed, options.faults, shapes_of(options.shapes), options.epochs)
    totals = chaos.totals
    try:
        for number, job in enumerate(jobs):
            chaos.disturb(number, job)
    except KeyboardInterrupt:  # the table of what there is
        totals.problems.append("stopped before its end")
        totals.not_struck = options.faults - len(totals.costs)
    print(table(totals.costs))
    print(f"\nOther processes used {others.cores():.1f} of {len(os.sched_getaffinity(0))} cores.")
    print(verdict(totals, seed, options.faults))
    figures = [[cost.kind, cost.recovery_s, cost.repeated] for cost in totals.costs]
    report = {"seed": seed, "problems": totals.problems}
    (folder / "chaos.json").write_text(json.dumps({**report, "costs": figures}, indent=1))
    sys.exit(bool(totals.problems))


if __name__ == "__main__":
    main()
