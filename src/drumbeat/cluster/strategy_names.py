"""The strategies by name, and which of them fits a cluster. Pure."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError

AUTO = "auto"
ONE_DEVICE = "one-device"
MIRRORED = "mirrored"
CENTRAL_STORAGE = "central-storage"
MULTI_WORKER = "multi-worker"
PARAMETER_SERVER = "parameter-server"
NAMES = (ONE_DEVICE, MIRRORED, CENTRAL_STORAGE, MULTI_WORKER, PARAMETER_SERVER)
CHOICES = (AUTO, *NAMES)
IN_ONE_PROCESS = (ONE_DEVICE, MIRRORED, CENTRAL_STORAGE)
"""These train in one process on one machine."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What there is to train on.

    Attributes:
        workers: Tasks that can compute steps, of the whole job.
        ps: Parameter servers.
        devices: Devices of one process.
        options: What else was asked for that only multi-worker training has, such as
            "--exact"; in the words of whoever asked.
        started: By an agent, which may start more workers later.
    """

    workers: int = 1
    ps: int = 0
    devices: int = 1
    options: tuple[str, ...] = ()
    started: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided.

    Attributes:
        name: One of `NAMES`.
        why: The reason, for the log, such as "2 workers".
    """

    name: str
    why: str

    def __str__(self) -> str:
        return f"Strategy: {self.name} ({self.why})."


def decide(asked: str, facts: Facts) -> Decision:
    """The strategy for a cluster.

    Args:
        asked: One of `CHOICES`. AUTO takes parameter servers where there are any,
            multi-worker training with several workers, all devices of a single one, and
            else one device.
        facts: What there is.

    Raises:
        ConfigError: `asked` is no strategy, or one that this cluster can't have; says what
            is missing.
    """
    check(asked)
    if asked == AUTO:
        decision = _found(facts)
    else:
        decision = Decision(name=asked, why="as asked for")
    _refuse(decision, facts)
    return decision


def check(asked: object, option: str = "--strategy") -> None:
    """Looks whether there is such a strategy.

    Raises:
        ConfigError: There is none of this name; names the nearest.
    """
    if asked in CHOICES:
        return
    name = str(asked).strip().lower().replace("_", "-").removesuffix("strategy")
    close = difflib.get_close_matches(name, CHOICES, n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    raise ConfigError(
        f"{option} is {shown(asked)}; expected one of {listed(CHOICES, len(CHOICES))}.{meant}"
    )


def _found(facts: Facts) -> Decision:
    if facts.ps:
        return Decision(name=PARAMETER_SERVER, why=f"{facts.ps} ps task{_s(facts.ps)}")
    if facts.workers > 1:
        return Decision(name=MULTI_WORKER, why=f"{facts.workers} workers")
    if facts.options:
        return Decision(name=MULTI_WORKER, why=f"{listed(facts.options)}, on one worker")
    if facts.devices > 1:
        return Decision(name=MIRRORED, why=f"one worker with {facts.devices} devices")
    if facts.started:
        return Decision(name=MULTI_WORKER, why="one worker of drumbeat run")
    return Decision(name=ONE_DEVICE, why="one worker with one device")


def _refuse(decision: Decision, facts: Facts) -> None:
    name = decision.name
    if name == PARAMETER_SERVER and not facts.ps:
        raise ConfigError(
            f"The strategy {name} was asked for, but the job has no ps task, which would hold the "
            "variables. Add --ps 1 to drumbeat run, or ps tasks to the cluster in TF_CONFIG."
        )
    if name in IN_ONE_PROCESS and facts.workers > 1:
        raise ConfigError(
            f"The strategy {name} was asked for, which trains in one process, but the cluster "
            f"has {facts.workers} workers. Expected one; for several give {MULTI_WORKER}."
        )
    # One device is the one worker of multi-worker training, if it has to be.
    if facts.options and name not in (MULTI_WORKER, ONE_DEVICE):
        with_ps = ": with parameter servers, workers don't train in step"
        raise ConfigError(
            f"{listed(facts.options)} is of the strategy {MULTI_WORKER}, but the strategy is "
            f"{name} ({decision.why}){with_ps if name == PARAMETER_SERVER else ''}. Leave it "
            f"out, or give --strategy {MULTI_WORKER}."
        )


def _s(count: int) -> str:
    return "s" if count > 1 else ""
