"""Why the gradients of two runs differ, though weights and rows are the same. Pure."""

from __future__ import annotations

import math

from drumbeat.cluster.recording import BATCH_STATISTICS, RANDOM_LAYER, RANDOM_OP, VariableRecord
from drumbeat.control import differences
from drumbeat.control.comparison import Comparison, some
from drumbeat.control.differences import StepDifference
from drumbeat.control.finding import Finding


def same_rate(both: Comparison, step: int) -> bool:
    """Whether the optimizers have one learning rate in a step."""
    rates = [run.at(step).learning_rate for run in (both.one, both.many)]
    return not abs(rates[0] - rates[1]) > 1e-5 * abs(rates[0])


def gradient_findings(both: Comparison, steps: int) -> list[Finding]:
    """What is to be said about the first of `steps` whose gradient or update differs."""
    enlarged = [d for d in both.differences[:steps] if d.is_enlarged]
    for difference in both.differences[:steps]:
        if not difference.is_rounding:
            return _explain_gradient(both, difference)
        if difference.is_enlarged:
            continue
        update = _update(both, difference)
        if update and same_rate(both, difference.step):
            return [update]
    return [_sensitive(both, enlarged[0])] if enlarged else []


def _sensitive(both: Comparison, difference: StepDifference) -> Finding:
    return Finding(
        kind="sensitive",
        what=f"The gradients differ by {difference.gradient:.1g} of their size in step "
        f"{difference.step}: rounding, which this model enlarges.",
        why="On one worker, a change of the weights in their last bits makes as much of a "
        "difference. Deep models with ReLU and normalisation do that.",
        do="Nothing. To see the same to more digits: keras.config.set_floatx('float64') for a "
        "check.",
        harmless=True,
    )


def _explain_gradient(both: Comparison, difference: StepDifference) -> list[Finding]:
    step, n = difference.step, both.n
    a, b = both.one.at(step), both.many.at(step)
    since = f"in step {step}" if step == 1 else f"from step {step} on; before, they are equal"
    apart = f"The gradients differ by {difference.gradient:.1g} of their size {since}"
    times = differences.multiple(a, b)
    for factor, make in ((float(n), _too_large), (1 / n, _too_small)):
        if times.is_about(factor):
            return [make(both, times.is_exactly(factor), step)]
    if differences.excess_along_weights(a, b):
        return [
            Finding(
                kind="penalty",
                what=f"{apart}, and what they differ by is a multiple of the weights.",
                why=f"An L2 penalty (weight decay in the loss) counts {n} times, once on each "
                "worker.",
                do="Divide it by strategy.num_replicas_in_sync, as "
                "tf.nn.scale_regularization_loss does.",
            )
        ]
    known = [cause for make in (_batch_statistics, _random_op) if (cause := make(both, apart))]
    if known:
        return known
    # Random layers draw alike unless used oddly, so they are suspects only where nothing else is.
    return [_random_layer(both, apart) or _unexplained(both, apart)]


def _too_large(both: Comparison, exactly: bool, step: int) -> Finding:
    times = f"{both.n} times" if exactly else f"about {both.n} times"
    return Finding(
        kind="gradient_sum",
        what=f"The gradient on {both.n} workers is {times} that of one, in step {step}.",
        why="The loss is a mean over the rows of each worker, but workers' gradients are summed. "
        "A mean over the rows at hand has to be one over the global batch.",
        do="Use tf.nn.compute_average_loss(losses, global_batch_size=...) on losses of single rows "
        '(reduction="none"), or a keras.losses object, or self.compute_loss in a train_step.',
    )


def _too_small(both: Comparison, exactly: bool, step: int) -> Finding:
    part = f"1/{both.n}" if exactly else f"about 1/{both.n}"
    return Finding(
        kind="gradient_divided",
        what=f"The gradient on {both.n} workers is {part} of that of one, in step {step}.",
        why="The loss is divided by the number of workers twice: keras.losses objects and "
        "compute_loss are a part of the global mean already.",
        do="Don't divide the loss or the gradient by strategy.num_replicas_in_sync.",
    )


def _batch_statistics(both: Comparison, apart: str) -> Finding | None:
    layers = both.many.facts(BATCH_STATISTICS)
    if not layers:
        return None
    return Finding(
        kind="batch_statistics",
        what=f"{apart}.",
        why=f"BatchNormalization ({some(layers)}) normalises with the rows of its own worker, "
        f"1/{both.n} of the batch. The result is another training, usually as good.",
        do="For the same training: BatchNormalization(synchronized=True), at the price of "
        "communication in every such layer.",
    )


def _random_op(both: Comparison, apart: str) -> Finding | None:
    ops = both.many.facts(RANDOM_OP)
    if not ops:
        return None
    return Finding(
        kind="random",
        what=f"{apart}.",
        why=f"The step draws from TensorFlow's own stream ({some(ops)}), and every worker "
        "draws for itself. The result is another training, usually as good.",
        do="Draw with keras.random and a keras.random.SeedGenerator: then each row gets the "
        "numbers that it gets on one worker.",
    )


def _random_layer(both: Comparison, apart: str) -> Finding | None:
    layers = both.many.facts(RANDOM_LAYER)
    if not layers:
        return None
    return Finding(
        kind="random",
        what=f"{apart}.",
        why=f"Layers draw random numbers ({some(layers)}). Each row gets those that it gets on "
        "one worker if the first axis of what is drawn is the batch, and the same generator "
        "draws in the same order; something here may not keep to that.",
        do="Set their rate or strength to 0 once, to see whether the rest is the same.",
    )


def _unexplained(both: Comparison, apart: str) -> Finding:
    return Finding(
        kind="gradient",
        what=f"{apart}, though the weights and the rows are the same.",
        why="Something mixes the rows of a batch, so that a part of a batch gives another result: "
        "a layer or loss with statistics over the batch, a loss that compares rows with each "
        "other, a penalty that is not divided by the workers, clipping before the gradients are "
        "summed; or the code depends on the rank.",
        do="Look at the first step in which the gradients differ: on one worker and on "
        f"{both.n}, the sum over the workers of each one's gradient has to be the same.",
    )


def _update(both: Comparison, difference: StepDifference) -> Finding | None:
    a, b = both.one.at(difference.step), both.many.at(difference.step)
    moved = [_moves(x, y) for x, y in differences.significant(a, b)]
    size = max((s for s, _ in moved), default=0.0)
    apart = max((d for s, d in moved if s > 1e-3 * size), default=0.0)
    if not (size > 0 and apart > 0.1 * size and difference.weights > 1e-5):
        return None
    return Finding(
        kind="update",
        what=f"The gradients are the same, but the update of step {difference.step} is not (it "
        f"differs by {apart / size:.1g} of its size).",
        why=f"The optimizer ({b.optimizer}) works with other settings or another state: weight "
        "decay, clipping, a schedule or moments that depend on the rank or the number of workers.",
        do="Give the optimizer the same settings on any number of workers.",
    )


def _moves(x: VariableRecord, y: VariableRecord) -> tuple[float, float]:
    """How far a variable moves, and how far the two moves are apart."""
    one = [q - p for p, q in zip(x.before, x.after, strict=True)]
    many = [q - p for p, q in zip(y.before, y.after, strict=True)]
    zero = [0.0] * len(one)
    return max(_distance(one, zero), _distance(many, zero)), _distance(one, many)


def _distance(a: list[float], b: list[float]) -> float:
    return math.dist(a, b)
