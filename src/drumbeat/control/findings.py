"""What differs between a run on one worker and one on several, why, and what to do. Pure."""

from __future__ import annotations

from dataclasses import replace

from drumbeat.cluster.recording import JIT, LOCAL_SGD
from drumbeat.control import differences
from drumbeat.control.batches import batch_findings
from drumbeat.control.comparison import Comparison, some, workers
from drumbeat.control.differences import Run, step_difference
from drumbeat.control.finding import Finding
from drumbeat.control.gradients import gradient_findings, same_rate

# Weights that start further apart, relative to their size, were drawn apart.
STARTS_ALIKE = 1e-6
_SCOPE = "with strategy.scope():"
_UNREPEATABLE_WHY = (
    "The script does not repeat itself: a second run on one worker differs from the first in the "
    "same way. Something in it draws from a source that drumbeat does not seed: "
    "random.Random() or np.random.RandomState() without a seed, the clock, os.urandom, or a "
    "service."
)


def compare(one: Run, many: Run, again: Run | None = None) -> tuple[Finding, ...]:
    """Everything that is to be said about the two runs, the most telling first.

    Args:
        one: The run on one worker.
        many: The run on several.
        again: A second run on one worker, nudged after its first step: differences that it
            shows too are not the workers' doing.
    """
    both = Comparison(one, many, again)
    ended = _ended(both)
    if both.steps == 0:
        return ended or (_no_steps(both),)
    for structure in (_not_together(both), _other_model(both)):
        if structure:
            return (structure, *ended)
    batches = batch_findings(one, many)
    grows = any(finding.kind == "batch_grows" for finding in batches)
    found = [_initial_weights(both), *batches, _learning_rate(both, grows), _workers_apart(both)]
    spoilt = min((f.spoils_from for f in found if f and f.spoils_from), default=both.steps + 1)
    found += gradient_findings(both, spoilt - 1)
    found += [*ended, _length(both), _compiled(both), _local_sgd(both)]
    return _with_repetition(tuple(f for f in found if f), both)


def _with_repetition(findings: tuple[Finding, ...], both: Comparison) -> tuple[Finding, ...]:
    """Puts the blame on the script's own chance where a second run on one worker shows it."""
    if both.again is None:
        return findings
    chance = _not_repeated(both.one, both.again)
    return tuple(
        replace(finding, why=_UNREPEATABLE_WHY, do=_SEED) if finding.kind in chance else finding
        for finding in findings
    )


def _not_repeated(one: Run, again: Run) -> set[str]:
    """The kinds of findings in which two runs on one worker differ."""
    steps = range(1, min(one.steps, again.steps) + 1)
    if _apart_at_start(one, again) > STARTS_ALIKE:
        return {"initial_weights"}
    if any(one.rows(step) != again.rows(step) for step in steps):
        return {"rows"}
    # From the second step on it was nudged.
    if not step_difference(one, again, 1).is_rounding:
        return {"gradient", "random"}
    return set()


_SEED = "Seed it, with the same number on every worker, and check again."


def _no_steps(both: Comparison) -> Finding:
    del both
    return Finding(
        kind="no_steps",
        what="No optimizer step was seen, so there is nothing to compare.",
        why=(
            "The script does not train within what the check runs, or without a Keras 3 optimizer "
            "(a hand-written update, tf_keras, another backend)."
        ),
        do="Check a script that calls fit(), train_on_batch() or optimizer.apply().",
    )


def _ended(both: Comparison) -> tuple[Finding, ...]:
    found = []
    early = _early_end(both.many)
    if early:
        return (early,)
    for run in (both.one,) if both.many is both.one else (both.one, both.many):
        on = workers(run.world_size)
        made = ", ".join(str(len(steps)) for steps in run.workers)
        steps = f"{made} step{'' if made == '1' else 's'}"
        if run.world_size > 1:
            steps = f"steps made by each worker: {made}"
        if run.ending == "failed":
            found.append(
                Finding(
                    kind="failed",
                    what=f"The script failed on {on} ({steps}).",
                    why=run.text,
                    do=_failed_advice(both, run),
                )
            )
        if run.ending == "limit":
            found.append(
                Finding(
                    kind="limit",
                    what=f"The time was up before the script had made its steps on {on} ({steps}).",
                    why="It takes long before or between its steps, waits for something, or has "
                    "no more steps to make but does not end.",
                    do="Give a longer --timeout, fewer --steps, or the script less to prepare.",
                )
            )
    return tuple(found)


def _early_end(run: Run) -> Finding | None:
    """Some workers end their script while others wait for them: they never train to the end."""
    if run.ending == "failed" or not any(run.ended) or all(run.ended):
        return None
    early = [rank for rank, ended in enumerate(run.ended) if ended]
    steps = len(run.workers[early[0]])
    who = some([str(rank) for rank in early])
    return Finding(
        kind="early_end",
        what=f"The script ends after {steps} step{'' if steps == 1 else 's'} on worker {who}, but "
        "goes on elsewhere.",
        why="The number of steps or epochs, or a test around the training, depends on the rank. "
        "The other workers wait for the one that is gone.",
        do="Let every worker make the same steps; what only one should do (print, save) goes "
        "under a test, training does not.",
    )


def _failed_advice(both: Comparison, run: Run) -> str:
    if run.world_size == 1:
        return "Make it run on one worker first."
    if len({len(steps) for steps in run.workers}) > 1:
        return (
            "The workers made different numbers of steps: look for a loop or a test that depends "
            "on the rank. Every worker has to make every step."
        )
    if both.one.ending == "failed":
        return "It fails on one worker too."
    if both.one.facts(JIT) and "XLA" in run.text:
        return (
            "XLA can't compile the communication between workers: leave out jit_compile=True where "
            "a function holds the training step."
        )
    return (
        "It does run on one worker: look for what depends on the number of workers, the rank or "
        "TF_CONFIG."
    )


def _not_together(both: Comparison) -> Finding | None:
    apart = [step for step in range(1, both.steps + 1) if not both.many.is_together(step)]
    if not apart:
        return None
    if both.many.at(apart[0]).in_scope:
        return Finding(
            kind="outside_run",
            what=f"The {both.n} workers take their steps each for itself: no gradient is summed.",
            why="The training step runs in the strategy's scope, but not through strategy.run().",
            do="Call it as strategy.run(step, args=(batch,)).",
        )
    return Finding(
        kind="not_in_scope",
        what=f"{both.n} models are trained, one on each worker, instead of one model by all.",
        why="The model was made outside of strategy.scope(), and is trained by a loop or a "
        "train_step of its own, or beside a strategy: so no worker knows of the others.",
        do="Make the model (or load it) and compile it within "
        f"`strategy = tf.distribute.MultiWorkerMirroredStrategy()` and `{_SCOPE}`, and call a "
        "loop's step with strategy.run().",
    )


def _other_model(both: Comparison) -> Finding | None:
    for step in range(1, both.steps + 1):
        if both.is_same_model(step):
            continue
        a, b = both.one.at(step), both.many.at(step)
        counts = [f"{len(r.variables)} variables by {r.optimizer}" for r in (a, b)]
        return Finding(
            kind="other_model",
            what=f"Step {step} updates another model: {counts[0]} on one worker, {counts[1]} on "
            f"{both.n}, or variables of other shapes.",
            why="The script builds or chooses its model by the number of workers, their rank, or "
            "its data.",
            do="Build the same model for any number of workers.",
        )
    return None


def _initial_weights(both: Comparison) -> Finding | None:
    apart = _apart_at_start(both.one, both.many)
    if not apart > STARTS_ALIKE:
        return None
    return Finding(
        kind="initial_weights",
        what=f"The trainings start from different weights (relative difference {apart:.1g}).",
        why=(
            "Random numbers are drawn before the model is built, or seeds are set, in a way that "
            "depends on the rank or on the number of workers; or the second run found a "
            "checkpoint or backup that the first one wrote."
        ),
        do="Seed the same way on all workers (keras.utils.set_random_seed), and remove old "
        "checkpoints.",
        spoils_from=1,
    )


def _apart_at_start(one: Run, other: Run) -> float:
    """How far the weights are apart before the first step of each: of several models, too."""
    seen: set[str] = set()
    apart = [0.0]
    for step in range(1, min(one.steps, other.steps) + 1):
        names = {variable.name for variable in one.at(step).variables}
        if not names <= seen:
            apart.append(differences.values_apart(one.at(step), other.at(step), names - seen))
        seen |= names
    return max(apart)


def _learning_rate(both: Comparison, batch_grows: bool) -> Finding | None:
    for step in range(1, both.steps + 1):
        rates = [run.at(step).learning_rate for run in (both.one, both.many)]
        if same_rate(both, step):
            continue
        scaled = abs(rates[1] - both.n * rates[0]) < 0.01 * abs(rates[1])
        what = f"The learning rate is {rates[0]:.6g} on one worker and {rates[1]:.6g} on {both.n}"
        if scaled and batch_grows:
            return Finding(
                kind="learning_rate",
                what=f"{what}, from step {step} on: it grows with the workers, as the batch does.",
                why="The script multiplies it by the number of workers, to match the larger batch.",
                do="Fix it together with the batch.",
                spoils_from=step + 1,
            )
        if scaled:
            return Finding(
                kind="learning_rate",
                what=f"{what}, from step {step} on: it grows with the workers.",
                why="The script multiplies it by the number of workers. That belongs to a batch "
                "that grows as well, as in many tutorials; here the batch stays the same.",
                do="Leave it as it is for one worker.",
                spoils_from=step + 1,
            )
        return Finding(
            kind="learning_rate",
            what=f"{what} in step {step}.",
            why="It is computed from the number of workers or the rank, or its schedule counts "
            "steps per epoch of another length.",
            do="Compute it from the global batch alone.",
            spoils_from=step + 1,
        )
    return None


def _workers_apart(both: Comparison) -> Finding | None:
    for step in range(1, both.many.steps + 1):
        records = [steps[step - 1] for steps in both.many.workers]
        before, after = (
            [
                first.name
                for first, *others in zip(*(r.variables for r in records), strict=False)
                if any(getattr(other, what) != getattr(first, what) for other in others)
            ]
            for what in ("before", "checksum")
        )
        if not before and not after:
            continue
        when = f"before step {step}" if before else f"after step {step}, but had before it"
        return Finding(
            kind="workers_apart",
            what=f"The workers don't have the same weights {when} ({some(before or after)}).",
            why="Every worker makes the same update, so some changed weights by themselves: "
            "weights loaded or assigned on one worker only, a variable made outside of the scope, "
            "constraints or optimizer settings that depend on the rank.",
            do="Make, load and change weights on every worker alike.",
            spoils_from=step if before else step + 1,
        )
    return None


def _length(both: Comparison) -> Finding | None:
    if {both.one.ending, both.many.ending} & {"failed", "limit"} or _early_end(both.many):
        return None
    if both.one.steps == both.many.steps or both.one.ending == both.many.ending == "steps":
        return None
    return Finding(
        kind="steps",
        what=f"The script makes {both.one.steps} steps on one worker, {both.many.steps} on "
        f"{both.n}.",
        why="It computes the number of steps or batches from the number of workers, or gives each "
        "worker a part of the data that is cut once more.",
        do="Give the whole data and the global batch size on every worker; they are cut for you.",
    )


def _local_sgd(both: Comparison) -> Finding | None:
    averaged = both.many.facts(LOCAL_SGD)
    if not averaged:
        return None
    return Finding(
        kind="local_sgd",
        what=f"The script asks for local SGD (sync_every={averaged[0]}); for the check, gradients "
        "are summed in every step.",
        why="With steps of their own, workers train another model than one would, by intention.",
        do="Nothing. docs/strategies.md says what to expect of it.",
        harmless=True,
    )


def _compiled(both: Comparison) -> Finding | None:
    if not both.one.facts(JIT):
        return None
    return Finding(
        kind="jit",
        what=f"On one worker XLA would compile the step ({some(both.one.facts(JIT))}); for the "
        "check it did not.",
        why="XLA can't compile the communication between workers, and rounds a little differently.",
        do="Nothing.",
        harmless=True,
    )
