"""How far two recordings of the same training are apart. Pure.

Numbers only; what they mean is said in `drumbeat.control.findings`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from drumbeat.cluster.recording import HALF, TF32, StepRecord, VariableRecord

# Relative difference of a gradient that rounding explains, by what it was computed in.
_ROUNDING = {"float32": 2e-5, "tf32": 5e-3, "float16": 1e-2, "bfloat16": 5e-2}
# From step to step rounding grows, as each step starts from what the last one left.
_GROWTH, _GROWN_LIMIT = 5.0, 5e-3
# A difference is rounding, too, if it is no more than so many times what a change of the
# weights' last bits makes of the gradient on one worker; up to a limit.
_LAST_BITS, _LAST_BITS_LIMIT = 10.0, 0.1
# A gradient this much smaller than others, for each entry, is all rounding (such as that of a
# bias before a normalisation); optimizers like Adam make full updates of it.
_NOISE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run of the script left.

    Attributes:
        workers: The steps of each worker, by rank.
        ending: "steps" when all were recorded, "script" when the script ended before,
            "failed", or "limit" when it took too long.
        ended: For each worker, whether its script came to its end.
        text: Why it failed.
    """

    workers: tuple[tuple[StepRecord, ...], ...]
    ending: str = "steps"
    ended: tuple[bool, ...] = ()
    text: str = ""

    @property
    def world_size(self) -> int:
        """How many workers it had."""
        return len(self.workers)

    @property
    def steps(self) -> int:
        """How many steps all workers have made."""
        return min(len(steps) for steps in self.workers)

    def at(self, step: int) -> StepRecord:
        """The chief's record of a step, from 1."""
        return self.workers[0][step - 1]

    def is_together(self, step: int) -> bool:
        """Whether all workers made one step, which is so where there is only one."""
        return self.world_size == 1 or self.at(step).together

    def loss(self, step: int) -> float | None:
        """The loss over the global batch; None where a worker's part of it is not known."""
        parts = [steps[step - 1].loss for steps in self.workers]
        return None if None in parts else math.fsum(part for part in parts if part is not None)

    def rows(self, step: int) -> tuple[tuple[str, ...], ...] | None:
        """The rows of each worker, by rank; None where they were not seen."""
        found = [steps[step - 1].rows for steps in self.workers]
        known = tuple(rows for rows in found if rows is not None)
        return known if len(known) == len(found) else None

    def facts(self, kind: str) -> tuple[str, ...]:
        """The details of one kind that the chief noted, up to its last step."""
        last = self.workers[0][-1:]
        return tuple(detail for record in last for name, detail in record.facts if name == kind)


@dataclass(frozen=True, kw_only=True)
class StepDifference:
    """One step of two runs.

    Attributes:
        step: From 1.
        losses: Of each run; None where unknown.
        loss: Relative difference of the two; None where unknown.
        gradient_norms: Of each run.
        gradient: Relative difference of the gradients: norm of the difference / norm.
        weights: The same of the weights after the step.
        plain_rounding: The relative difference of gradients that rounding makes of most models.
        rounding: The same of this one, if it is known to enlarge it.
    """

    step: int
    losses: tuple[float | None, float | None]
    loss: float | None
    gradient_norms: tuple[float, float]
    gradient: float
    weights: float
    plain_rounding: float
    rounding: float

    @property
    def is_rounding(self) -> bool:
        """Whether the gradients differ by no more than rounding."""
        return self.gradient <= self.rounding

    @property
    def is_enlarged(self) -> bool:
        """Whether they differ by rounding, but more than most models do."""
        return self.plain_rounding < self.gradient <= self.rounding


def step_difference(one: Run, many: Run, step: int, sensitivity: float = 0.0) -> StepDifference:
    """Compares a step that both runs have made, with variables of the same shapes.

    Args:
        one: On one worker.
        many: On several.
        step: From 1.
        sensitivity: Relative difference that the last bits of the weights make.
    """
    a, b = one.at(step), many.at(step)
    losses = (one.loss(step), many.loss(step))
    plain = rounding(many, step)
    known = losses[0] is not None and losses[1] is not None
    return StepDifference(
        step=step,
        losses=losses,
        loss=relative(abs(losses[0] - losses[1]), losses) if known else None,  # type: ignore[operator,arg-type]
        gradient_norms=(gradient_norm(a), gradient_norm(b)),
        gradient=_apart(
            [(x.gradient, y.gradient) for x, y in pairs(a, b)],
            (gradient_norm(a), gradient_norm(b)),
        ),
        weights=_apart(
            [(x.after, y.after) for x, y in significant(a, b)],
            tuple(math.hypot(*(v.norm for v in r.variables)) for r in (a, b)),
        ),
        plain_rounding=plain,
        rounding=max(plain, min(_LAST_BITS * sensitivity, _LAST_BITS_LIMIT)),
    )


def sensitivities(one: Run, nudged: Run | None, steps: int) -> list[float]:
    """What the last bits of the weights make of the gradient in each of `steps` steps.

    Args:
        one: A run on one worker.
        nudged: Another one, whose weights were changed by their last bits after step 1;
            None for zeros. Its step k + 1 tells what rounding makes of step k.
        steps: How many are wanted.
    """
    made = 1 if nudged is None else min(one.steps, nudged.steps)
    found, largest = [], 0.0
    for step in range(1, steps + 1):
        if nudged is not None and step < made:
            largest = max(largest, step_difference(one, nudged, step + 1).gradient)
        found.append(largest)
    return found


def rounding(run: Run, step: int) -> float:
    """The relative difference of gradients that is no more than rounding in this step."""
    names = {"float32", *run.facts(HALF), *("tf32" for _ in run.facts(TF32))}
    base = max(_ROUNDING[name] for name in names)
    return max(base, min(base * _GROWTH ** (step - 1), _GROWN_LIMIT))


def pairs(a: StepRecord, b: StepRecord) -> list[tuple[VariableRecord, VariableRecord]]:
    """The variables that have a gradient in both records."""
    both = zip(a.variables, b.variables, strict=False)
    return [(x, y) for x, y in both if x.gradient and y.gradient]


def significant(a: StepRecord, b: StepRecord) -> list[tuple[VariableRecord, VariableRecord]]:
    """Those of `pairs` whose gradient is more than rounding."""
    found = pairs(a, b)
    sizes = [max(_typical_entry(x), _typical_entry(y)) for x, y in found]
    least = _NOISE * max(sizes, default=0.0)
    return [pair for pair, size in zip(found, sizes, strict=True) if not size < least]


def _typical_entry(variable: VariableRecord) -> float:
    return variable.gradient_norm / math.sqrt(max(math.prod(variable.shape), 1))


def gradient_norm(record: StepRecord) -> float:
    """Euclidean norm of all gradients together."""
    return math.hypot(*(v.gradient_norm for v in record.variables))


def relative(difference: float, sizes: Sequence[float]) -> float:
    """`difference` over the larger of `sizes`; infinite where only one of them is finite."""
    finite = [math.isfinite(size) for size in sizes]
    if not all(finite):
        return math.inf if any(finite) else 0.0
    largest = max(abs(size) for size in sizes)
    return difference / largest if largest else 0.0


def _apart(
    sketches: Sequence[tuple[Sequence[float], Sequence[float]]], norms: Sequence[float]
) -> float:
    return relative(math.hypot(*(math.dist(x, y) for x, y in sketches)), norms)


def values_apart(a: StepRecord, b: StepRecord, names: Collection[str]) -> float:
    """Relative difference of the variables called `names`, in `a`, before a step."""
    each = zip(a.variables, b.variables, strict=False)
    both = [(x.before, y.before) for x, y in each if x.name in names]
    norms = [math.hypot(*(math.hypot(*pair[i]) for pair in both)) for i in (0, 1)]
    return _apart(both, norms)


@dataclass(frozen=True, kw_only=True)
class Multiple:
    """A gradient as a multiple of another one.

    Attributes:
        factor: The multiple that comes nearest.
        rest: Norm of what that leaves, relative to the gradient.
    """

    factor: float
    rest: float

    def is_about(self, factor: float) -> bool:
        """Whether the gradient is `factor` times the other and little else."""
        return abs(self.factor / factor - 1) < 0.15 and self.rest < 0.5

    def is_exactly(self, factor: float) -> bool:
        """Whether it is that within 1 %."""
        return abs(self.factor / factor - 1) < 0.01 and self.rest < 0.01


def multiple(a: StepRecord, b: StepRecord) -> Multiple:
    """The gradient of `b` as a multiple of that of `a`, by least squares."""
    return _multiple(
        [value for x, _ in pairs(a, b) for value in x.gradient],
        [value for _, y in pairs(a, b) for value in y.gradient],
    )


def excess_along_weights(a: StepRecord, b: StepRecord) -> bool:
    """Whether each gradient of `b` exceeds that of `a` by a positive multiple of the weights.

    That is what an L2 penalty that counts several times looks like.
    """
    found = False
    for x, y in pairs(a, b):
        excess = [q - p for p, q in zip(x.gradient, y.gradient, strict=True)]
        if math.hypot(*excess) <= 1e-5 * max(x.gradient_norm, y.gradient_norm):
            continue
        along = _multiple(x.before, excess)
        if along.factor <= 0 or along.rest > 0.02:
            return False
        found = True
    return found


def _multiple(base: Sequence[float], other: Sequence[float]) -> Multiple:
    square = math.fsum(p * p for p in base)
    size = math.hypot(*other)
    if not (square > 0 and size > 0 and math.isfinite(square) and math.isfinite(size)):
        return Multiple(factor=math.nan, rest=math.inf)
    factor = math.fsum(p * q for p, q in zip(base, other, strict=True)) / square
    rest = math.dist([factor * p for p in base], other)
    return Multiple(factor=factor, rest=rest / size)


def in_common(a: Sequence[str], b: Sequence[str]) -> int:
    """How many rows two batches share, each counted as often as both have it."""
    return (Counter(a) & Counter(b)).total() if a and b else 0
