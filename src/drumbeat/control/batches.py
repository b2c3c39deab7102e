"""Which rows two runs of a script train on. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from drumbeat.cluster.recording import SHARDING
from drumbeat.control.differences import Run, in_common
from drumbeat.control.finding import Finding

Batch = Sequence[str]


def batch_findings(one: Run, many: Run) -> list[Finding]:
    """What is to be said about the rows of each step; the first difference counts."""
    steps = min(one.steps, many.steps)
    reordered = 0
    for step in range(1, steps + 1):
        whole, parts = one.rows(step), many.rows(step)
        if whole is None or parts is None:
            return [_not_seen(step)]
        alone, together = list(whole[0]), [row for part in parts for row in part]
        if Counter(alone) != Counter(together):
            found = _wrongly_cut(alone, parts, step) or _other_rows(one, many, step)
            return [found]
        if alone != together and not reordered:
            reordered = step
    return [_reordered(reordered)] if reordered else []


def _not_seen(step: int) -> Finding:
    return Finding(
        kind="rows_not_seen",
        what=f"Which rows step {step} trains on was not seen, so they are not compared.",
        why="The batch does not come through the arguments of strategy.run().",
        do="For a comparison of the data: strategy.run(step, args=(batch,)).",
        harmless=True,
    )


def _reordered(step: int) -> Finding:
    return Finding(
        kind="order",
        what=f"From step {step} on, batches hold the same rows in another order.",
        why="The data is sharded in another way than by cutting each batch.",
        do="Nothing: a batch's order does not change its gradient.",
        harmless=True,
    )


def _wrongly_cut(alone: Batch, parts: Sequence[Batch], step: int) -> Finding | None:
    """What can be told from one step: the number of rows, and whether workers share them."""
    sizes, n = [len(part) for part in parts], len(parts)
    if len(set(parts)) == 1 and sizes[0]:
        return _copies(alone, parts[0], n, step)
    if sum(sizes) != len(alone):
        return _size(n, len(alone), sum(sizes), step)
    return None


def _copies(alone: Batch, part: Batch, n: int, step: int) -> Finding:
    same = "the batch of one worker" if Counter(part) == Counter(alone) else "the same rows"
    return Finding(
        kind="copies",
        what=f"In step {step} each of the {n} workers trains on {same} ({len(part)} rows), so "
        f"every row counts {n} times.",
        why="The dataset was not distributed, or each worker makes its own that is not sharded.",
        do="Give fit() the data as it is, or in a loop of your own iterate "
        "strategy.experimental_distribute_dataset(dataset).",
        spoils_from=step,
    )


def _size(n: int, alone: int, together: int, step: int) -> Finding:
    what = f"The global batch has {alone} rows on one worker and {together} on {n} (step {step})"
    if together == n * alone:
        return Finding(
            kind="batch_grows",
            what=f"{what}: it grows with the workers.",
            why="The script multiplies its batch size by the number of workers. TensorFlow's "
            "tutorials mean it so: each worker gets what one had, steps become fewer, and the "
            "learning rate is usually raised to match. It is another training than that of one "
            "worker.",
            do=f"To compare, and for the same model on any number of workers: a fixed global batch "
            f"of {alone} or {together} rows, without the factor num_replicas_in_sync.",
            spoils_from=step,
        )
    if together * n in range(alone - n + 1, alone + n):
        return Finding(
            kind="batch_shrinks",
            what=f"{what}: it shrinks with the workers.",
            why="The script divides its batch size by the number of workers, as one does where "
            "every worker makes its own batches. Here the batch size is that of all workers "
            "together, and is divided for you.",
            do="Give the global batch size.",
            spoils_from=step,
        )
    return Finding(
        kind="batch_size",
        what=f"{what}.",
        why="The batch size, or how much data there is, depends on the number of workers or the "
        "rank; or a dataset function does not use context.get_per_replica_batch_size.",
        do="Give the same data and the same global batch size on any number of workers.",
        spoils_from=step,
    )


def _sharded(policies: Sequence[str], step: int, many: Run) -> Finding:
    ways = " and ".join(policies)
    return Finding(
        kind="sharding",
        what=f"The rows of step {step} are others than on one worker.",
        why=f"The data is sharded by {ways}: each of the {many.world_size} workers reads a part of "
        "its own, so which rows meet in a batch depends on how many workers there are. Over an "
        "epoch every row still counts once.",
        do="For the same batches on any number of workers: AutoShardPolicy.DATA (the default "
        "here), or drumbeat.data.",
        spoils_from=step,
    )


def _other_rows(one: Run, many: Run, step: int) -> Finding:
    policies = many.facts(SHARDING)
    if policies:
        return _sharded(policies, step, many)
    alone, together = _all_rows(one), _all_rows(many)
    shared = in_common(alone, together)
    what = (
        f"Step {step} trains on other rows than on one worker; in all steps seen, {shared} of "
        f"{len(alone)} rows are the same"
    )
    twice = len(together) - len(set(together)) - (len(alone) - len(set(alone)))
    if twice > 0:
        what += f", and {twice} come more than once"
    return Finding(
        kind="rows",
        what=f"{what}.",
        why="The workers don't read the same data in the same order: a shuffle or a choice of rows "
        "that depends on the rank or on the number of workers, a source that yields in any order, "
        "or data that the script has already split by worker.",
        do="Give every worker the same data in the same order, and leave the cutting to the "
        "strategy. A dataset that is split already: distribute_datasets_from_function.",
        spoils_from=step,
    )


def _all_rows(run: Run) -> list[str]:
    steps = [run.rows(step) or () for step in range(1, run.steps + 1)]
    return [row for parts in steps for part in parts for row in part]
