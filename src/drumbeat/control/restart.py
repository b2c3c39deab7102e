"""Whether a job whose attempt has failed is tried again, after how long, and if not, why. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_MAX_RESTARTS = 10
LONGEST_DELAY_S = 30.0
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


class Kind(str, enum.Enum):
    """How an attempt ended; by its string among agents."""

    EXCEPTION = "exception"
    """The script raised, on some worker."""
    EXIT = "exit"
    """A worker ended with an exit code, without an exception that is known."""
    CRASH = "crash"
    """Native code crashed: SIGSEGV, SIGABRT and their like."""
    KILLED = "killed"
    """A worker was killed from outside: SIGKILL, SIGTERM."""
    HANG = "hang"
    """A worker made no progress any more."""
    ECHO = "echo"
    """Workers waited for each other in vain, and nobody knows why."""
    NODE_LOST = "node lost"
    """An agent, its machine or the network to it is gone."""
    MISTAKE = "mistake"
    """What no second try can change: a setting, or data that can't be split."""
    STOPPED = "stopped"
    """A user or a platform stopped the job."""
    PREEMPTED = "preempted"
    """The workers stopped at their platform's notice; the platform starts the job again."""
    SHRUNK = "shrunk"
    """A node was lost and has not come back; the job goes on without it."""
    REGROUPED = "regrouped"
    """The workers stopped after a snapshot, to go on with another number of nodes."""


# What a script does again if nothing changes. A kill, a hang and a lost node are chance.
_REPEATABLE = (Kind.EXCEPTION, Kind.EXIT, Kind.CRASH, Kind.ECHO)
_FINAL = (Kind.MISTAKE, Kind.STOPPED, Kind.PREEMPTED)
# Ends of attempts that are no failures of the training.
_MOVES = (Kind.SHRUNK, Kind.REGROUPED)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one attempt ended.

    Attributes:
        kind: See `Kind`.
        what: What tells this failure from others of its kind, such as
            "ValueError: bad data" or "exit code 7".
        step: Finished steps of the job where it failed.
        furthest: Finished steps of the job that any worker reached in this attempt.
    """

    kind: Kind
    what: str = ""
    step: int = 0
    furthest: int = 0


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The workers are started again, `delay_s` seconds from now."""

    delay_s: float


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """The job ends.

    Attributes:
        why: Sentences for the user, beside the failure itself; "" if that says it all.
    """

    why: str = ""


def decide(history: Sequence[Ended], max_restarts: int) -> Restart | GiveUp:
    """Whether the job goes on.

    - What no second try can change ends the job at once. So does an exception
      or an exit before the job's first step: nothing was trained yet, and the
      script would most likely do the same again.
    - The same exception, exit, crash or vain wait at the same step twice in a
      row is the script's own.
    - Anything else is tried again, at most `max_restarts` times in a row without
      progress. Progress is a step that no attempt has reached before.
    - The first restart in a row is immediate, the next ones wait 1, 2, 4 … 30 s.
    - Where a job has shrunk or grown, it goes on at once; that is no failure.

    Args:
        history: How all attempts so far have ended, oldest first; at least one.
        max_restarts: 0 for never.
    """
    last = history[-1]
    if last.kind in _FINAL or max_restarts == 0:
        return GiveUp()
    if last.kind in _MOVES:
        return Restart(delay_s=0.0)
    failed = [ended for ended in history if ended.kind not in _MOVES]
    before = failed[-2] if len(failed) > 1 else None
    if last.kind in (Kind.EXCEPTION, Kind.EXIT) and not any(ended.furthest for ended in history):
        return GiveUp()
    if last.kind in _REPEATABLE and before is not None and _is_same(before, last):
        times = _times_in_a_row(failed)
        return GiveUp(
            why=f"This has happened {times} times in a row {_at(last.step)}, so it would happen "
            "again: it is no accident but the script's own, or its data's."
        )
    in_vain = restarts_without_progress(history)
    if in_vain >= max_restarts:
        return GiveUp(why=_exhausted(history, in_vain))
    return Restart(delay_s=min(2.0 ** (in_vain - 1), LONGEST_DELAY_S) if in_vain else 0.0)


@dataclass(frozen=True, kw_only=True)
class EndedAlone:
    """How one life of a process ended that can be started again without the others.

    Attributes:
        step: Finished steps of the job by then, as far as they are counted.
        lived_s: How long it had lived.
    """

    step: int
    lived_s: float


def decide_alone(history: Sequence[EndedAlone], max_restarts: int) -> Restart | GiveUp:
    """Whether a process that holds nothing the others miss is started again without them.

    At most `max_restarts` times in a row without progress, with the delays of `decide`.
    Progress is a step that the job has made meanwhile, or, as a script may make steps that
    nobody counts, a life so long that the longest delay is a tenth of it.

    Args:
        history: How all of its lives in this attempt have ended, oldest first; at least one.
        max_restarts: 0 for never.
    """
    if max_restarts == 0:
        return GiveUp()
    in_vain, step = 0, history[0].step
    for number, ended in enumerate(history):
        progressed = ended.step > step or ended.lived_s >= 10 * LONGEST_DELAY_S
        in_vain = 0 if not number or progressed else in_vain + 1
        step = max(step, ended.step)
    if in_vain >= max_restarts:
        return GiveUp(
            why=f"It was started again {_times(in_vain)}, and the job made no progress. "
            f"Give --max-restarts more than {in_vain} to try more often."
        )
    return Restart(delay_s=min(2.0 ** (in_vain - 1), LONGEST_DELAY_S) if in_vain else 0.0)


def restarts_without_progress(history: Sequence[Ended]) -> int:
    """How many of the last attempts were restarts that got no further than those before."""
    count = furthest = 0
    for number, ended in enumerate(history):
        if not number or ended.furthest > furthest:
            count = 0
        elif ended.kind not in _MOVES:
            count += 1
        furthest = max(furthest, ended.furthest)
    return count


def _is_same(one: Ended, other: Ended) -> bool:
    return (one.kind, _plain(one.what), one.step) == (other.kind, _plain(other.what), other.step)


def _plain(what: str) -> str:
    """Without addresses of objects, which differ from process to process."""
    return _ADDRESS.sub("0x", what)


def _times_in_a_row(history: Sequence[Ended]) -> int:
    times = 1
    while times < len(history) and _is_same(history[-times - 1], history[-1]):
        times += 1
    return times


def _exhausted(history: Sequence[Ended], in_vain: int) -> str:
    furthest = max(ended.furthest for ended in history)
    if not furthest:
        got = "came to no training step"
    else:
        got = f"got no further than step {furthest}"
    return (
        f"The workers were started again {_times(in_vain)} and {got}. Give --max-restarts more "
        f"than {in_vain} to try more often."
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"


def _at(step: int) -> str:
    return f"after step {step}" if step else "before the first step"
