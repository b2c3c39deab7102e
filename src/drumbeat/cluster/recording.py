"""What `drumbeat check` asks of the workers, and the form in which they answer. Pure.

The command puts a `Recording` into the environment of a run; each worker then writes
one file for each of its first optimizer steps, the bytes of a `StepRecord`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drumbeat.errors import ConfigError

VARIABLE = "DRUMBEAT_CHECK"
# How many numbers stand for a tensor; one with no more entries is there as it is.
SKETCH_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The order to record the first steps of a training.

    Attributes:
        folder: Where the records go; exists.
        steps: How many steps, at least 1.
        nudge: Change all weights by their last bits after the first step, to see how much
            rounding matters to what follows.
    """

    folder: Path
    steps: int
    nudge: bool = False

    def to_env(self) -> dict[str, str]:
        """The environment variable that carries this to the workers."""
        return {VARIABLE: f"{self.steps}:{int(self.nudge)}:{self.folder}"}

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Recording | None:
        """The recording that a check put into `env`, or None outside of one.

        Raises:
            ConfigError: The variable is malformed.
        """
        if VARIABLE not in env:
            return None
        steps, nudge, folder = [*env[VARIABLE].split(":", 2), "", ""][:3]
        if not steps.isdecimal() or nudge not in ("0", "1") or not folder:
            raise ConfigError(
                f"{VARIABLE} is {env[VARIABLE]!r}; expected STEPS:NUDGE:FOLDER, as "
                "`drumbeat check` writes it. Unset it."
            )
        return cls(folder=Path(folder), steps=int(steps), nudge=nudge == "1")

    def path(self, rank: int, step: int) -> Path:
        """The file for one step of one worker; `step` counts from 1."""
        return self.folder / f"worker-{rank}-step-{step}.json"

    def end_path(self, rank: int) -> Path:
        """The file that says that the script has ended on a worker that trained."""
        return self.folder / f"worker-{rank}-ended"

    def have_made(self, step: int, world_size: int) -> bool:
        """Whether all workers have recorded a step. Looks at the disk."""
        return all(self.path(rank, step).exists() for rank in range(world_size))


@dataclass(frozen=True, kw_only=True)
class VariableRecord:
    """One trainable variable in one step.

    A sketch is a fixed linear map of a tensor to `SKETCH_SIZE` numbers: entry i is added
    to number i mod `SKETCH_SIZE`, with a sign that is drawn once for each i. The distance of
    two sketches is that of the tensors within about 10 %, without bias; tensors of up to
    `SKETCH_SIZE` entries are kept whole. Source: Charikar, Chen, Farach-Colton, "Finding
    frequent items in data streams" (2002).

    Attributes:
        name: Its path in the model.
        shape: Its shape.
        gradient: Sketch of the gradient that was applied, summed over the workers;
            empty where the step has none for it.
        before: Sketch of its value before the update.
        after: Sketch of its value after the update.
        gradient_norm: Euclidean norm of the gradient.
        norm: Euclidean norm of the value after the update.
        checksum: CRC-32 of the value's bytes after the update.
    """

    name: str
    shape: tuple[int, ...]
    gradient: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    gradient_norm: float
    norm: float
    checksum: int


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step of one worker.

    Attributes:
        loss: What was differentiated: this worker's part of the loss; None where it
            can't be told.
        rows: A digest of each row of the local batch, in order; None where the step's
            batch was not seen.
        together: Whether the gradient was summed over several workers.
        in_scope: Whether the step ran under drumbeat's strategy, with one worker or more.
        optimizer: Class of the optimizer.
        learning_rate: As it was in this step.
        variables: Those that the optimizer updates.
        facts: What was seen of the training up to this step, as pairs of a kind
            (one of the names in this module) and a detail.
    """

    loss: float | None
    rows: tuple[str, ...] | None
    together: bool
    in_scope: bool
    optimizer: str
    learning_rate: float
    variables: tuple[VariableRecord, ...]
    facts: tuple[tuple[str, str], ...]

    def to_bytes(self) -> bytes:
        """The record as a file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StepRecord:
        """Reads what `to_bytes` wrote.

        Raises:
            ValueError, KeyError, TypeError: It is something else.
        """
        fields: dict[str, Any] = {k: _tuples(v) for k, v in json.loads(data).items()}
        variables = ({k: _tuples(v) for k, v in each.items()} for each in fields["variables"])
        return cls(**{**fields, "variables": tuple(VariableRecord(**each) for each in variables)})


# Kinds of facts.
BATCH_STATISTICS = "batch statistics"  # Name of a layer that normalises with its own rows.
RANDOM_LAYER = "random layer"  # Name of a Keras layer that draws random numbers in the step.
RANDOM_OP = "random op"  # Name of a TensorFlow op that draws from the global stream.
SHARDING = "sharding"  # An auto-shard policy other than AUTO and DATA, or "dataset function".
HALF = "half"  # The dtype in which the model computes, of 16 bits.
TF32 = "tf32"  # A GPU multiplies with 10 bits of mantissa.
LOCAL_SGD = "local SGD"  # How often weights would be averaged, as `Averaging` writes it.
JIT = "jit"  # Name of a function that XLA would compile on one worker.


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
