"""Which worker hangs, and which has ended although others wait for it. Pure.

A worker that waits in a collective does not hang: it waits for somebody. The one
that hangs is not in a collective, or is stopped, or is in one that the others have
left behind. When all wait in the same collective and none moves, nobody here can say
which link is lost; the deadline of the collective ends that.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from drumbeat.cluster.wording import listed
from drumbeat.control.restart import Kind

SHORTEST_LIMIT_S = 60.0
FACTOR = 10.0
START_FACTOR = 2.0
"""A last batch of another shape has a graph traced anew, as the first step had."""
ENDED_AFTER_S = 2.0
"""A wait for a worker that has ended is taken for what it is after this long."""
HAS_ENDED = "has ended, but"
"""How a finding about such a worker begins."""
NEVER_JOINED = -1
"""Number of collectives of a worker that has not even begun to make its strategy."""


class Place(enum.Enum):
    """Where in its script a worker is, as far as it makes a difference here."""

    STEPS = "within the steps of an epoch"
    """Steps of which two and more are done: it is known how long they take."""
    PHASE = "in fit, evaluate or predict"
    """A first step, callbacks at an epoch's end, validation: these may take minutes."""
    SCRIPT = "in the script"
    """Outside of phases: nothing is known."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is known of a worker. All times are of one monotonic clock.

    Attributes:
        name: Such as "worker 1".
        place: Where it is.
        alive_s: When it last gave a sign of life.
        slowest_step_s: The slowest of its recent steps.
        longest_pause_s: Its longest pause between signs of life within a phase so far,
            but not within steps.
        longest_start_s: The longest that the first step of an epoch has taken.
        number: Collectives it has begun.
        waits: It is in one.
        since_s: It has been in, or out of, that one since then.
        where: The collective in words.
        stopped: The process is stopped, as by SIGSTOP.
        ended: The process has ended, with exit code 0.
        lost: It has failed because the collective it was in has.
        remote: On another node, whose agent judges it.
    """

    name: str
    place: Place = Place.SCRIPT
    alive_s: float = 0.0
    slowest_step_s: float = 0.0
    longest_pause_s: float = 0.0
    longest_start_s: float = 0.0
    number: int = NEVER_JOINED
    waits: bool = False
    since_s: float = 0.0
    where: str = ""
    stopped: bool = False
    ended: bool = False
    lost: bool = False
    remote: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a worker may be silent.

    Attributes:
        hang_s: Within phases; 0 for any time, None to go by what is usual in the job.
        collective_s: Deadline of a collective.
        patience: By how much longer what is usual is, see `patience`.
    """

    hang_s: float | None
    collective_s: float
    patience: float = 1.0

    def of(self, reading: Reading) -> float:
        """Seconds without a sign of life after which a worker hangs."""
        if self.hang_s == 0:
            return float("inf")
        if reading.place is Place.SCRIPT and not reading.stopped:
            return self.collective_s
        if self.hang_s is not None:
            return self.hang_s
        if reading.place is Place.PHASE and not reading.stopped:
            return self.patience * max(self.collective_s, FACTOR * reading.longest_pause_s)
        usual_s = FACTOR * reading.slowest_step_s
        start_s = START_FACTOR * reading.longest_start_s
        return self.patience * max(SHORTEST_LIMIT_S, usual_s, start_s)


def patience(kinds: Sequence[Kind]) -> float:
    """How much longer workers may be silent after the last attempts ended by hangs.

    What was taken for a hang may have been a callback that takes long now and then:
    doubling lets the job come past it.

    Args:
        kinds: How all attempts so far have ended, oldest first.
    """
    hangs = 0
    while hangs < len(kinds) and kinds[-hangs - 1] is Kind.HANG:
        hangs += 1
    return 2.0**hangs


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A worker because of which the job can't go on.

    Attributes:
        name: Its name.
        kind: HANG; ECHO where it may only be busy, for longer than others can wait;
            MISTAKE for one that has ended while others wait for it.
        how: What it did, to follow its name.
        why: Sentences that say what is known.
    """

    name: str
    kind: Kind
    how: str
    why: str

    @property
    def ended(self) -> bool:
        """The worker has ended; otherwise it hangs."""
        return self.kind is Kind.MISTAKE


def find(readings: Sequence[Reading], limits: Limits, now_s: float) -> list[Finding]:
    """The workers that keep the job from going on; none as long as all is well.

    Args:
        readings: Of all workers of this node, and of those of others that have ended
            or wait in a collective.
        limits: How long they may be silent.
        now_s: The time.
    """
    return _find_ended(readings, now_s) or _find_hung(readings, limits, now_s)


def _find_ended(readings: Sequence[Reading], now_s: float) -> list[Finding]:
    """Who has ended before the collective in which a worker of this node waits."""
    waiting = [
        reading
        for reading in readings
        if not (reading.remote or reading.ended)
        and (reading.lost or (reading.waits and now_s - reading.since_s >= ENDED_AFTER_S))
    ]
    findings = []
    for ended in readings:
        # One that was in the collective too has done its part: the data is on its way.
        vain = [reading for reading in waiting if ended.ended and reading.number > ended.number]
        if vain:
            names = listed([reading.name for reading in vain])
            waited = any(reading.lost for reading in vain)
            does = "waited" if waited else "waits" if len(vain) == 1 else "wait"
            why = (
                f"{names} {does} for it in {vain[0].where}. Every worker must make the same calls: "
                "look for fit(), evaluate(), save() or the like that only some of them come to, "
                "as under `if rank == 0`, or for a script that ends early on some."
            )
            how = f"{HAS_ENDED} {names} {does} for it"
            # Which calls a script makes is not by chance.
            findings.append(Finding(name=ended.name, kind=Kind.MISTAKE, how=how, why=why))
    return findings


def _find_hung(readings: Sequence[Reading], limits: Limits, now_s: float) -> list[Finding]:
    findings = []
    for reading in readings:
        since_s = _silent_since(reading, readings)
        if since_s is None or now_s - since_s < limits.of(reading):
            continue
        findings.append(
            Finding(
                name=reading.name,
                kind=_kind(reading),
                how=f"made no progress for {now_s - since_s:.0f} s",
                why=_silence(reading, readings, limits),
            )
        )
    return findings


def _kind(reading: Reading) -> Kind:
    return Kind.ECHO if reading.place is Place.SCRIPT and not reading.stopped else Kind.HANG


def _silent_since(reading: Reading, readings: Sequence[Reading]) -> float | None:
    """Since when others could expect something of this worker; None if they can't."""
    if reading.remote or reading.ended or reading.lost:
        return None
    others = [other for other in readings if other is not reading and not other.ended]
    if reading.waits and not reading.stopped and not _is_behind(reading, others):
        return None
    if reading.place is not Place.SCRIPT:
        return reading.alive_s
    # The script may do what it likes for as long as nobody waits for it.
    waits = [other.since_s for other in others if other.waits]
    return max(reading.alive_s, min(waits)) if waits else None


def _is_behind(reading: Reading, others: Sequence[Reading]) -> bool:
    return any(other.number > reading.number for other in others)


def _silence(reading: Reading, readings: Sequence[Reading], limits: Limits) -> str:
    """Where it is, who waits for it, and which limit has passed."""
    where = f"in {reading.where}" if reading.waits else reading.place.value
    state = "Its process is stopped (SIGSTOP), " if reading.stopped else "It is "
    parts = [f"{state}{where}."]
    waiting = [other for other in readings if other is not reading and other.waits]
    if waiting and not reading.waits:
        names = listed([other.name for other in waiting])
        parts.append(f"{names} {'waits' if len(waiting) == 1 else 'wait'} in {waiting[0].where}.")
    elif reading.waits and not reading.stopped:
        parts.append("The others have left that one behind.")
    return " ".join([*parts, f"{_allowed(reading, limits)}."])


def _allowed(reading: Reading, limits: Limits) -> str:
    limit_s = limits.of(reading)
    if reading.place is Place.SCRIPT and not reading.stopped:
        return f"--collective-timeout is {limit_s:g} s"
    if limits.hang_s is not None:
        return f"--hang-timeout is {limit_s:g} s"
    allowed = f"{limit_s:.4g} s were allowed; --hang-timeout changes that"
    if reading.place is Place.STEPS:
        return f"The slowest of its recent steps took {reading.slowest_step_s:.3g} s, and {allowed}"
    return allowed
