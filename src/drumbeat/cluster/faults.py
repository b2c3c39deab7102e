"""Failures to rehearse: what `--inject` says, checked, and handed on to the workers. Pure.

A fault is addressed by the place where it strikes, a rank or a node, and by the
training step of the job after which it does. It strikes once in a job, also when
that step comes again after a restart.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError

VARIABLE = "DRUMBEAT_INJECT"
MAX_FAULTS = 60
"""As many as a worker's page has bits to note which were carried out."""
MAX_STEP = 2**62
DEFAULT_SLOW_STEPS = 10.0
DEFAULT_EXIT_CODE = 1.0
# A failure is noticed by the others after 10 s of silence; this one lasts longer.
DEFAULT_PARTITION_S = 15.0


class FaultKind(str, enum.Enum):
    """What happens, and to whom."""

    KILL = "kill"
    """The worker is killed (SIGKILL), as by a system that is out of memory."""
    STOP = "stop"
    """The worker stands still (SIGSTOP), as in a deadlock."""
    CRASH = "crash"
    """The worker's native code crashes (SIGSEGV)."""
    EXIT = "exit"
    """The worker ends with an exit code, as where a library calls exit()."""
    RAISE = "raise"
    """The worker's script gets an exception."""
    OOM = "oom"
    """The worker gets no more memory from the system, and asks for it."""
    DELAY = "delay"
    """The worker pauses once."""
    SLOW = "slow"
    """The worker pauses after each of some steps."""
    CORRUPT_SNAPSHOT = "corrupt-snapshot"
    """The newest snapshot of the worker's node is damaged, and the worker killed."""
    AGENT_KILL = "agent-kill"
    """The agent of a node is killed (SIGKILL), and with it all of the node's workers."""
    PARTITION = "partition"
    """Nothing is heard of a node for a while, then it is back."""

    @property
    def is_of_node(self) -> bool:
        """Whether it strikes a node, not a worker."""
        return self in (FaultKind.AGENT_KILL, FaultKind.PARTITION)


OF_SERVERS = (FaultKind.KILL, FaultKind.STOP, FaultKind.CRASH)
"""What can happen to a process that only serves a coordinator."""

# Numbers that a kind takes besides its place and its step: name, and the default or None.
_NUMBERS: Mapping[FaultKind, Mapping[str, float | None]] = {
    FaultKind.EXIT: {"code": DEFAULT_EXIT_CODE},
    FaultKind.DELAY: {"seconds": None},
    FaultKind.SLOW: {"seconds": None, "steps": DEFAULT_SLOW_STEPS},
    FaultKind.PARTITION: {"seconds": DEFAULT_PARTITION_S},
}
_LIMITS = {"code": (1, 255), "seconds": (0, 86_400), "steps": (1, MAX_STEP)}
_EXAMPLE = "kill:rank=1,step=37"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One failure that is to happen.

    Attributes:
        kind: What happens.
        place: The rank, or the node where the kind is of a node.
        step: Finished training steps of the job when it happens, at least 1.
        numbers: What the kind takes besides: "seconds", "steps", "code".
    """

    kind: FaultKind
    place: int
    step: int
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it lasts, or each of its pauses."""
        return self.numbers.get("seconds", 0.0)

    def __str__(self) -> str:
        """As `--inject` has it."""
        where = "node" if self.kind.is_of_node else "rank"
        extra = "".join(f",{name}={value:g}" for name, value in self.numbers.items())
        return f"{self.kind.value}:{where}={self.place},step={self.step}{extra}"


def parse(text: str) -> Fault:
    """Reads one fault, such as "kill:rank=1,step=37".

    Raises:
        ConfigError: It is something else; says what, and what was expected.
    """
    name, _, rest = text.partition(":")
    kind = _kind(name.strip(), text)
    values = _values(rest, text)
    where = "node" if kind.is_of_node else "rank"
    numbers = _NUMBERS.get(kind, {})
    _check_names(values, where, numbers, kind, text)
    place = values.pop(where)
    given = {key: _number(key, value, text) for key, value in values.items()}
    step = int(given.pop("step"))
    return Fault(
        kind=kind,
        place=0 if place == "chief" and where == "rank" else int(_number(where, place, text)),
        step=step,
        numbers={key: given.get(key, default or 0.0) for key, default in numbers.items()},
    )


def parse_all(texts: Sequence[str]) -> tuple[Fault, ...]:
    """Reads all that were given.

    Raises:
        ConfigError: See `parse`; or they are too many.
    """
    if len(texts) > MAX_FAULTS:
        raise ConfigError(f"--inject was given {len(texts)} times; at most {MAX_FAULTS} fit.")
    return tuple(parse(text) for text in texts)


def check_places(faults: Sequence[Fault], *, workers: int, nodes: int) -> None:
    """Looks whether each of them can happen.

    Args:
        faults: As parsed.
        workers: How many ranks the job has.
        nodes: How many nodes.

    Raises:
        ConfigError: A rank or a node is not there.
    """
    for fault in faults:
        count, what = (nodes, "node") if fault.kind.is_of_node else (workers, "worker")
        if fault.place >= count:
            there = f"{count} {what}{'s' if count > 1 else ''}"
            where = "node" if what == "node" else "rank"
            raise ConfigError(
                f"--inject {fault}: there is no {where} {fault.place} in a job of {there}; "
                f"expected 0{f' to {count - 1}' if count > 1 else ''}."
            )


def check_servers(faults: Sequence[Fault], nodes: int) -> None:
    """Looks whether a server, which runs no script, can have what is to happen to it.

    Raises:
        ConfigError: It can't.
    """
    for fault in faults:
        if not fault.place or fault.kind.is_of_node:
            continue
        if nodes > 1:
            raise ConfigError(
                f"--inject {fault}: rank {fault.place} is a server, perhaps on another node than "
                "the chief, whose steps count. Rehearse it on one machine."
            )
        if fault.kind not in OF_SERVERS:
            raise ConfigError(
                f"--inject {fault}: rank {fault.place} is a server, which runs no script; expected "
                f"{listed([kind.value for kind in OF_SERVERS])} there, or rank=chief."
            )


def of_servers(faults: Sequence[Fault], ranks: Mapping[str, int], fired: int) -> dict[int, str]:
    """The faults that are still to happen to servers of a node: number and the server's name.

    Args:
        faults: All of the job.
        ranks: The servers' ranks for faults, by name.
        fired: Bit i is set where fault i has happened.
    """
    names = {rank: name for name, rank in ranks.items()}
    return {
        number: names[fault.place]
        for number, fault in enumerate(faults)
        if not fault.kind.is_of_node and fault.place in names and not fired >> number & 1
    }


def for_worker(faults: Sequence[Fault], rank: int, fired: int) -> str:
    """What a worker is told: the faults that are still to happen to it, or "".

    Args:
        faults: All of the job.
        rank: The worker's.
        fired: Bit i is set where fault i has happened.
    """
    return ";".join(
        f"{index}={fault}"
        for index, fault in enumerate(faults)
        if not fault.kind.is_of_node and fault.place == rank and not fired >> index & 1
    )


def from_worker_text(text: str) -> dict[int, Fault]:
    """Inverse of `for_worker`: the faults by their number in the job."""
    parts = (part.partition("=") for part in text.split(";") if part)
    return {int(index): parse(fault) for index, _, fault in parts}


def due(faults: Mapping[int, Fault], before: int, step: int) -> list[int]:
    """The numbers of the faults whose step is after `before` and not after `step`."""
    return [index for index, fault in faults.items() if before < fault.step <= step]


def _kind(name: str, text: str) -> FaultKind:
    names = [kind.value for kind in FaultKind]
    if name in names:
        return FaultKind(name)
    close = difflib.get_close_matches(name.lower().replace("_", "-"), names, n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    raise ConfigError(
        f"--inject {shown(text)}: there is no fault {shown(name)}.{meant} Expected one of "
        f"{listed(names, len(names))}, such as {_EXAMPLE}."
    )


def _values(rest: str, text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in rest.split(","):
        name, sign, value = (word.strip() for word in part.partition("="))
        if not part.strip():
            continue
        if not sign or not value:
            raise ConfigError(
                f"--inject {shown(text)}: {shown(part)} is not name=value; expected something "
                f"such as {_EXAMPLE}."
            )
        if name in values:
            raise ConfigError(f"--inject {shown(text)}: {name} is given twice.")
        values[name] = value
    return values


def _check_names(
    values: Collection[str],
    where: str,
    numbers: Mapping[str, float | None],
    kind: FaultKind,
    text: str,
) -> None:
    known = [where, "step", *numbers]
    for name in values:
        if name in known:
            continue
        close = difflib.get_close_matches(name, known, n=1)
        meant = f" Did you mean {close[0]}?" if close else ""
        if {name, where} == {"rank", "node"}:
            meant = f" This one strikes a {'node' if where == 'node' else 'worker'}: give {where}=."
        raise ConfigError(
            f"--inject {shown(text)}: {kind.value} has no {shown(name)}; it takes "
            f"{listed(known)}.{meant}"
        )
    for name in known:
        if name not in values and numbers.get(name) is None:
            raise ConfigError(
                f"--inject {shown(text)}: {name}= is missing; {kind.value} takes {listed(known)}."
            )


def _number(name: str, value: str, text: str) -> float:
    low, high = _LIMITS.get(name, (1 if name == "step" else 0, MAX_STEP))
    try:
        number = float(value) if name == "seconds" else int(value)
        if low <= number <= high:
            return number
    except ValueError:
        pass
    what = "a number" if name == "seconds" else "a whole number"
    up_to = f" to {high}" if high < MAX_STEP else " or more"
    raise ConfigError(
        f"--inject {shown(text)}: {name} is {shown(value)}; expected {what}, {low}{up_to}."
    )
