"""Where the time of training steps goes: the numbers, what they say, and how agents get them.

Nothing here measures; `drumbeat.training.step_clock` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumbeat.state.progress import FD_VARIABLE

INPUT_PART = 0.2
"""From this part of the time on, waiting for the next batch is worth a word."""
CALLBACKS_PART = 0.1
"""From this part of the time on, so is a callback."""
ENOUGH_STEPS = 30
ENOUGH_S = 3.0
"""Fewer steps, or a shorter time, say little about the rest of a training."""
FAR_BEHIND = 1.1
"""A worker that is busy so many times as long as the mean is named in the summary."""

WORKER_FILES = "*/times.jsonl"
"""Under the folder of a run."""

_NAMES = {
    "compute_s": "compute",
    "input_s": "input",
    "communication_s": "communication",
    "waiting_s": "waiting for other workers",
    "callbacks_s": "callbacks",
    "other_s": "rest",
}


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The time of some steps of one worker, in parts that add up to the whole.

    A step lasts from the end of the one before it, callbacks included. The first step of a
    `fit`, in which TensorFlow makes its graphs, is not among them.

    Attributes:
        steps: How many. With `steps_per_execution` those of one execution count singly.
        input_s: Waiting for the next batch, seconds for all of the steps.
        compute_s: The step itself: forward, backward, update, and Keras's own work.
        communication_s: Moving gradients and other values between workers.
        waiting_s: Waiting in a collective until the other workers had come to it.
        callbacks_s: The hooks of callbacks for the beginning and end of a batch.
        other_s: Between steps: snapshots, and Keras's loop.
    """

    steps: int = 0
    input_s: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    waiting_s: float = 0.0
    callbacks_s: float = 0.0
    other_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The time of all of the steps, seconds."""
        return sum(getattr(self, name) for name in _NAMES)

    @property
    def step_s(self) -> float:
        """The mean time of a step, seconds; 0.0 of none."""
        return self.total_s / self.steps if self.steps else 0.0

    @property
    def busy_s(self) -> float:
        """The mean time of a step without the waiting for other workers, seconds."""
        return (self.total_s - self.waiting_s) / self.steps if self.steps else 0.0

    def __add__(self, other: StepTimes) -> StepTimes:
        return self._with(other, 1)

    def __sub__(self, other: StepTimes) -> StepTimes:
        return self._with(other, -1)

    def _with(self, other: StepTimes, sign: int) -> StepTimes:
        return StepTimes(
            **{name: getattr(self, name) + sign * getattr(other, name) for name in _FIELDS}
        )

    def means(self) -> dict[str, float]:
        """The mean time of a step and of its parts, by name without unit, seconds."""
        steps = max(self.steps, 1)
        parts = {name.removesuffix("_s"): getattr(self, name) / steps for name in _NAMES}
        return {"total": self.step_s, **parts}

    def to_json(self) -> dict[str, Any]:
        """As plain values, to the microsecond."""
        return {name: round(value, 6) for name, value in dataclasses.asdict(self).items()}


_FIELDS = tuple(field.name for field in dataclasses.fields(StepTimes))


@dataclass(frozen=True, kw_only=True)
class EpochTimes(StepTimes):
    """The same of the steps of one epoch, and what there was beside them.

    Attributes:
        fit: Number of the `fit` among those (and resumable loops) of the script, from 0; -1
            for a model that is trained outside of the strategy.
        epoch: From 0.
        attempt: The job's, from 1; an epoch that was interrupted is there for both.
        epoch_s: From the beginning of its first step to the end of all callbacks' hooks,
            seconds; also of a first step.
        validation_s: Of these: evaluating, and putting metrics together.
        epoch_callbacks_s: Hooks of callbacks for the beginning and the end of the epoch.
    """

    fit: int
    epoch: int
    attempt: int
    epoch_s: float
    validation_s: float
    epoch_callbacks_s: float


def worker_file(run_dir: Path, name: str) -> Path:
    """Where a worker keeps the times of its epochs, one JSON object a line.

    Args:
        run_dir: Folder of the run.
        name: The worker's, such as "worker 1".
    """
    return run_dir / WORKER_FILES.replace("*", name.replace(" ", "-"))


def read_file(path: Path) -> list[dict[str, Any]]:
    """What is in such a file; what a worker was killed while it wrote is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def are_enough(times: StepTimes) -> bool:
    """Whether these steps say something about those to come."""
    return times.steps >= ENOUGH_STEPS and times.total_s >= ENOUGH_S


def input_advice(times: StepTimes) -> str:
    """What to tell a user whose steps wait for their batches; "" where they hardly do."""
    part = times.input_s / times.total_s if times.total_s else 0.0
    if not are_enough(times) or part < INPUT_PART:
        return ""
    waits, step = _ms(times.input_s, times.steps), _ms(times.total_s, times.steps)
    return (
        f"The input is the bottleneck: {part:.0%} of the time of {times.steps} steps is waiting "
        f"for the next batch ({waits} of {step}"
        " ms a step). What can help: dataset.cache() before the shuffle if the data fits into "
        "memory, map(…, num_parallel_calls=tf.data.AUTOTUNE), batch before a map that can work on "
        "whole batches, prefetch(tf.data.AUTOTUNE) at the end, or drumbeat.data, with which each "
        "worker reads and decodes only its own rows."
    )


def callback_advice(name: str, seconds: float, steps: int, total_s: float) -> str:
    """What to tell a user about a callback that takes much of the time.

    Args:
        name: Its class.
        seconds: What its batch hooks took in `steps` steps.
        steps: How many were looked at.
        total_s: What these steps took.

    Returns:
        "" where it takes little.
    """
    if total_s <= 0 or seconds / total_s < CALLBACKS_PART:
        return ""
    return (
        f"The callback {name} takes {seconds / total_s:.0%} of the time of a step "
        f"({_ms(seconds, steps)} of {_ms(total_s, steps)} ms): all workers wait for it. Do less "
        "in its hooks for batches, or do it every so many batches."
    )


def epoch_callback_advice(name: str, seconds: float, epoch_s: float) -> str:
    """The same for hooks at the beginning and end of an epoch of `epoch_s`, both seconds."""
    if epoch_s < ENOUGH_S or seconds / epoch_s < CALLBACKS_PART:
        return ""
    return (
        f"The callback {name} took {seconds:.1f} s between two epochs, {seconds / epoch_s:.0%} of "
        f"the {epoch_s:.1f} s of an epoch: all workers wait for it. Let it do less, or every so "
        "many epochs."
    )


def summary(workers: Sequence[tuple[str, StepTimes]]) -> str:
    """One or two lines on where the time went; "" where nobody made a step.

    Args:
        workers: Names and times of workers that trained together.
    """
    known = [(name, times) for name, times in workers if times.steps]
    if not known:
        return ""
    total = sum((times for _, times in known), StepTimes())
    of = f"mean of {len(known)} workers, " if len(known) > 1 else ""
    steps = max(times.steps for _, times in known)
    lines = [
        f"A step took {_ms(total.total_s, total.steps)} ms: {parts(total)} ({of}{steps} steps)."
    ]
    name, slowest = max(known, key=lambda pair: pair[1].busy_s)
    mean_busy_s = sum(times.busy_s for _, times in known) / len(known)
    if len(known) > 1 and slowest.busy_s > FAR_BEHIND * mean_busy_s:
        lines.append(
            f"The others wait for {name}, which is busy for {1e3 * slowest.busy_s:.1f} ms a step "
            f"(mean {1e3 * mean_busy_s:.1f}): {parts(slowest)}."
        )
    return "\n".join(lines)


def parts(times: StepTimes) -> str:
    """The parts in percent, the largest first: "compute 76%, input 20%, rest 4%"."""
    sizes = {name: getattr(times, field) for field, name in _NAMES.items()}
    ordered = sorted(sizes.items(), key=lambda pair: (pair[0] == "rest", -pair[1]))
    total_s = times.total_s or 1.0
    shown = [(name, seconds / total_s) for name, seconds in ordered]
    return ", ".join(f"{name} {part:.0%}" for name, part in shown if part >= 0.005)


def _ms(seconds: float, steps: int) -> str:
    milliseconds = 1e3 * seconds / max(steps, 1)
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:.0f}"


class TimesNote:
    """The part of a worker's progress page (see `drumbeat.state.progress`) for its step times.

    The worker calls `write`, the agent `read`, also when the worker is dead.
    """

    # A count that is odd while the rest is being written, then the fields.
    _COUNT = struct.Struct("<q")
    _FIELDS = struct.Struct("<q6d")
    _AT = 1536
    _PAGE_BYTES = 4096
    _READ_TRIES = 100

    def __init__(self, fd: int) -> None:
        """Args: descriptor of the page."""
        self._page = mmap.mmap(fd, self._PAGE_BYTES)
        self._count = 0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> TimesNote | None:
        """The page whose descriptor the agent has given to this worker, if it has."""
        text = env.get(FD_VARIABLE, "")
        return cls(int(text)) if text else None

    def close(self) -> None:
        """Gives the memory back; the descriptor is its owner's."""
        self._page.close()

    def write(self, times: StepTimes) -> None:
        """Replaces what is there."""
        self._count += 1
        self._COUNT.pack_into(self._page, self._AT, self._count)
        values = dataclasses.astuple(times)
        self._FIELDS.pack_into(self._page, self._AT + self._COUNT.size, *values)
        self._count += 1
        self._COUNT.pack_into(self._page, self._AT, self._count)

    def read(self) -> StepTimes:
        """What the worker wrote last; no steps if it never did."""
        values = self._values()
        for _ in range(self._READ_TRIES):
            (before,) = self._COUNT.unpack_from(self._page, self._AT)
            values = self._values()
            if before % 2 == 0 and before == self._COUNT.unpack_from(self._page, self._AT)[0]:
                break
        return StepTimes(**dict(zip(_FIELDS, values, strict=True)))

    def _values(self) -> tuple[Any, ...]:
        return self._FIELDS.unpack_from(self._page, self._AT + self._COUNT.size)
