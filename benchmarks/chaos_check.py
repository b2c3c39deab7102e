"""Whether a disturbed job did what the undisturbed one did, and what the faults have cost it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_jobs import Ended, Job

from drumbeat.cluster.faults import Fault, FaultKind, parse

# What an agent's line on a hanging worker has.
HANG_WORDS = ("no progress",)
# The agent says that it strikes a little before it does.
WORD_TO_STRIKE_S = 0.1
SAME_S = 1e-4
# Kinds that end no attempt.
GOES_ON = (FaultKind.DELAY.value, FaultKind.SLOW.value)
ANY_TIME = "kill at any time"


@dataclass(frozen=True)
class Made:
    """A step as a worker noted it."""

    step: int
    time_s: float
    pid: int
    ids: tuple[int, ...]
    cpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one fault has cost.

    Attributes:
        kind: Of the fault, or `ANY_TIME`.
        recovery_s: From the failure, or from its detection where a worker hangs, to the
            next step that the job finished; None if there was none left to make.
        repeated: Steps that were made again.
        cpu_s: CPU time of the chief's process up to that step: what the recovery would take
            with nothing else to do, but for what the agents do; None where it went on.
    """

    kind: str
    recovery_s: float | None
    repeated: int
    cpu_s: float | None = None


def ledger(folder: Path, rank: int, steps_per_epoch: int, epochs: Sequence[int]) -> list[Made]:
    """The steps of a worker, in the order in which it made them, the job's steps from 1."""
    path = folder / f"ledger-{rank}.jsonl"
    made = []
    for line in path.read_text().splitlines() if path.exists() else ():
        note = json.loads(line)
        before = sum(epochs[: note["phase"]]) + note["epoch"]
        step = before * steps_per_epoch + note["batch"] + 1
        made.append(Made(step, note["time_s"], note["pid"], tuple(note["ids"]), note["cpu_s"]))
    return made


def differences(
    ended: Ended, reference: Ended, ledgers: Sequence[list[Made]], wanted: Sequence[list[Made]]
) -> list[str]:
    """What is not as in the undisturbed job; nothing if all is.

    Args:
        ended: The disturbed job.
        reference: The undisturbed one.
        ledgers: Of the workers of the disturbed job, by rank.
        wanted: Of those of the other.
    """
    if ended.problem:
        return [ended.problem]
    found = []
    for rank in range(len(ledgers)):
        mine, theirs = (_result(one.folder, rank) for one in (ended, reference))
        unlike = [name for name in theirs if mine.get(name) != theirs[name]]
        if unlike:
            found.append(f"rank {rank}: other {', '.join(unlike)}")
        if _examples(ledgers[rank]) != _examples(wanted[rank]):
            found.append(f"rank {rank}: trained on other examples")
    return found


def not_once(ledgers: Sequence[list[Made]], steps_per_epoch: int, examples: int) -> list[str]:
    """Epochs in which an example was not trained exactly once.

    Of a step that was made several times the last time counts: whatever the others led
    to was thrown away.
    """
    counts: dict[int, Counter[int]] = {}
    for made in ledgers:
        for step, ids in _examples(made).items():
            counts.setdefault((step - 1) // steps_per_epoch, Counter()).update(ids)
    once = Counter(range(examples))
    return [
        f"epoch {epoch + 1}: not once each" for epoch in sorted(counts) if counts[epoch] != once
    ]


def _examples(made: Sequence[Made]) -> dict[int, tuple[int, ...]]:
    return {one.step: one.ids for one in made}


def _result(folder: Path, rank: int) -> dict[str, Any]:
    path = folder / f"result-{rank}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def costs(job: Job, ended: Ended, ledgers: Sequence[list[Made]]) -> tuple[list[Cost], list[str]]:
    """What each fault has cost, and those that did not strike or were not survived."""
    found, missed = [], []
    for fault in map(parse, job.faults):
        struck_s = _struck(job, fault, ended, ledgers)
        if struck_s is None:
            missed.append(f"{fault} did not strike")
            continue
        later = _after(fault, struck_s, ledgers)
        if later:
            began_s = _noticed(struck_s, ended) if fault.kind is FaultKind.STOP else struck_s
            found.append(_cost(fault.kind.value, began_s, later[0], ledgers))
        else:
            missed.append(f"{fault} was not survived")
    for killed_s in ended.kills:
        later = _later(killed_s, ledgers, restarted=True)
        found.append(
            _cost(ANY_TIME, killed_s, later[0], ledgers)
            if later
            else Cost(kind=ANY_TIME, recovery_s=None, repeated=0)
        )
    return found, missed


def _struck(job: Job, fault: Fault, ended: Ended, ledgers: Sequence[list[Made]]) -> float | None:
    """When a fault struck, by the clock of the ledgers."""
    if fault.kind.is_of_node:
        said_s = ended.arrival(fault.place, f"--inject {fault} strikes")
        return None if said_s is None else said_s + WORD_TO_STRIKE_S
    logs = [ended.folder / f"run-{node}" for node in range(len(job.nodes))]
    said = f"--inject {fault} strikes"
    if not any(said in path.read_text() for log in logs for path in log.glob("*/output.log")):
        return None
    return next((one.time_s for one in ledgers[fault.place] if one.step == fault.step), None)


def _after(fault: Fault, struck_s: float, ledgers: Sequence[list[Made]]) -> list[Made]:
    if fault.kind is FaultKind.PARTITION:
        # The last steps before the silence are not what comes after it.
        silent_s = WORD_TO_STRIKE_S + fault.seconds / 2
        return _later(struck_s + silent_s, ledgers, restarted=False)
    if fault.kind.value in GOES_ON:
        # The chief may be about to finish the step that the slow worker has.
        return [one for one in _later(struck_s, ledgers, restarted=False) if one.step > fault.step]
    return _later(struck_s, ledgers, restarted=True)


def _later(struck_s: float, ledgers: Sequence[list[Made]], *, restarted: bool) -> list[Made]:
    """The chief's steps after a failure; `restarted` leaves out those of the same attempt."""
    pids = {one.pid for made in ledgers for one in made if one.time_s <= struck_s + SAME_S}
    return [
        one
        for one in ledgers[0]
        if one.time_s > struck_s + SAME_S and not (restarted and one.pid in pids)
    ]


def _noticed(struck_s: float, ended: Ended) -> float:
    """When a hang was found."""
    seen = (
        at
        for lines in ended.lines
        for at, line in lines
        if at > struck_s and any(word in line for word in HANG_WORDS)
    )
    return min(seen, default=struck_s)


def _cost(kind: str, began_s: float, first: Made, ledgers: Sequence[list[Made]]) -> Cost:
    before = [one for made in ledgers for one in made if one.time_s < first.time_s]
    reached = max((one.step for one in before), default=0)
    return Cost(
        kind=kind,
        recovery_s=first.time_s - began_s,
        repeated=max(0, reached - first.step + 1),
        cpu_s=None if any(one.pid == first.pid for one in before) else first.cpu_s,
    )


def by_kind(found: Sequence[Cost]) -> Mapping[str, list[Cost]]:
    """The costs of each kind of fault."""
    kinds = [kind.value for kind in FaultKind] + [ANY_TIME]
    return {kind: mine for kind in kinds if (mine := [cost for cost in found if cost.kind == kind])}
