"""From a phase's variables and Python objects to a state that any node can restart from, and back.

What all workers hold alike is in it once. What each has of its own (what its metrics have
counted, moving statistics, its callbacks) is gathered from all of them; large parts of
that, such as a callback's predictions, once where they are equal.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression import residuals
from drumbeat.errors import DivergenceError, StateError
from drumbeat.state.format import State, pack
from drumbeat.strategies import choose
from drumbeat.strategies.local_sgd import LocalSgd, round_of
from drumbeat.training import divergence, resizing
from drumbeat.training.holdings import Held, Holdings, Kind

_PYTHON, _PARTS = "python", "parts"
# What Python objects hold is compared between workers in parts from this size on.
_PART_BYTES = 1 << 16


class KnownToDiffer(Exception):
    """Workers have other hyperparameters, which is mended, and told, at the end of the epoch."""


def take(
    holdings: Holdings,
    python: Mapping[str, Any],
    communicator: Communicator,
    *,
    step: int,
    meta: Mapping[str, Any],
    units: Sequence[int],
) -> State:
    """The state of all workers; all must call this after the same step.

    Its arrays are views of the variables: they are to be written before the next step.

    Args:
        holdings: What the phase holds.
        python: What else this worker has, for pickle.
        communicator: Of the workers.
        step: Finished training steps of the job.
        meta: Plain values, alike on all workers.
        units: Each worker's share of the rows, see `data.shares`.

    Raises:
        DivergenceError: What should be the same on all workers is not.
        KnownToDiffer: The same, but it is known why.
    """
    views = [each.view for each in holdings.held]
    alike = [True] * len(views)
    if communicator.size > 1:
        alike = divergence.alike(views, communicator)
        views = _examined(holdings.held, views, alike, communicator)
    names = resizing.names_of(holdings.held)
    own = {names[i]: views[i] for i, same in enumerate(alike) if not same}
    common = _put_python(own, python, communicator)
    everyones = _gathered(pack(State(step, {}, own)), communicator)
    arrays = {names[i]: views[i] for i, same in enumerate(alike) if same} | common
    arrays |= {f"own{rank}": data for rank, data in enumerate(everyones)}
    facts = {
        "paths": [each.path for each in holdings.mains],
        "trained": [holdings.trained_by(optimizer) for optimizer in holdings.optimizers],
        "compressed": [_compressed(optimizer) for optimizer in holdings.optimizers],
        "averaged": [_averaged(optimizer) for optimizer in holdings.optimizers],
        "workers": communicator.size,
        "shards": holdings.shards,
        "units": list(units),
    }
    return State(step, {**meta, **facts}, arrays)


def python_of(state: State, rank: int) -> dict[str, Any]:
    """What worker `rank` gave to `take` as `python`; a new worker gets the chief's."""
    own = resizing.own_of(state, rank).arrays
    arrays = {**state.arrays, **own}
    parts = [arrays[_part_name(digest)].tobytes() for digest in own[_PARTS].tolist()]
    return pickle.loads(own[_PYTHON].tobytes(), buffers=parts)


def put_back(state: State, holdings: Holdings, rank: int, size: int) -> None:
    """Gives the variables what they held.

    Args:
        state: Of as many workers and devices, or of more or fewer.
        holdings: What the phase holds.
        rank: Of this worker.
        size: How many there are now.

    Raises:
        StateError: They are other variables than those of the state.
    """
    _check_averaging(state, size)
    paths: Sequence[str] = state.meta["paths"]
    if len(paths) != len(holdings.mains):
        raise StateError(_other_variables(paths, holdings.mains))
    former = None
    if (state.meta["workers"], state.meta["shards"]) == (size, holdings.shards):
        arrays = {**state.arrays, **resizing.own_of(state, rank).arrays}
        values = [arrays[name] for name in resizing.names_of(holdings.held)]
    else:
        former = resizing.Former(state, holdings, rank, size)
        values = former.values()
    numbers = itertools.accumulate(each.shard == 0 for each in holdings.held)
    for each, number, value in zip(holdings.held, numbers, values, strict=True):
        path = paths[number - 1]
        shape, dtype = tuple(each.variable.shape), tf.as_dtype(each.variable.dtype).name
        if shape != value.shape or dtype != value.dtype.name:
            raise StateError(
                f"The snapshot of step {state.step} does not fit: it has {path} with "
                f"{value.dtype.name} of shape {list(value.shape)} where there is {each.path} with "
                f"{dtype} of shape {list(shape)}. {_SAME_SCRIPT}"
            )
    for each, value in zip(holdings.held, values, strict=True):
        each.variable.assign(value)
    if former is not None:
        former.merge()


_SAME_SCRIPT = (
    "Expected that the script makes the same model again when it is run again: nothing that it "
    "builds may depend on time, or on files that it has written itself."
)


def _compressed(optimizer: Any) -> list[dict[str, Any]]:
    """What is kept for the gradients of `optimizer`, as plain values."""
    return [group.to_json() for group in residuals.groups_of(optimizer)]


def _averaged(optimizer: Any) -> str:
    """How its weights are averaged, as `Averaging` writes it; "" where no step was made so."""
    found = round_of(optimizer)
    return "" if found is None else str(found.settings)


def _check_averaging(state: State, size: int) -> None:
    local = _local_sgd()
    now = "" if local is None else str(local.settings)
    then = next(filter(None, state.meta.get("averaged", ())), now)
    if then != now:
        raise StateError(
            f"The state of step {state.step} is of a training in which workers average their "
            f"weights every so many steps (sync_every and outer: {then}); now it is "
            f"{now or 'one in which they sum gradients in every step'}. Go on as it began."
        )
    if then and state.meta["workers"] != size:
        raise StateError(
            f"The state of step {state.step} is of {state.meta['workers']} workers, each of which "
            f"has optimizer variables of its own (sync_every={then}), and can't be shared out "
            f"among {size}. Go on with as many as there were."
        )


def _local_sgd() -> LocalSgd | None:
    strategy = choose.existing()
    return None if strategy is None else strategy.extended.local_sgd


def build_optimizers(state: State, holdings: Holdings) -> bool:
    """Builds optimizers that had been built when the state was taken; whether there were any.

    With what compression had kept for their gradients, and local SGD for their weights.
    """
    built = False
    for optimizer, described in zip(
        holdings.optimizers, state.meta.get("compressed", ()), strict=False
    ):
        built = residuals.rebuild(optimizer, described) or built
    for optimizer, trained in zip(holdings.optimizers, state.meta["trained"], strict=False):
        if trained and not optimizer.built:
            optimizer.build([holdings.mains[i].variable for i in trained])
            built = True
    local = _local_sgd()
    for optimizer, settings in zip(
        holdings.optimizers, state.meta.get("averaged", ()), strict=False
    ):
        if settings and local is not None and round_of(optimizer) is None:
            local.prepare(optimizer)
            built = True
    return built


def _other_variables(paths: Sequence[str], held: Sequence[Held]) -> str:
    own = [each.path for each in held]
    place = next((i for i, (a, b) in enumerate(zip(paths, own, strict=False)) if a != b), None)
    place = min(len(paths), len(own)) if place is None else place
    there = paths[place] if place < len(paths) else "nothing more"
    here = own[place] if place < len(own) else "nothing more"
    return (
        f"The snapshot has {len(paths)} variables, the training that goes on has {len(own)}. The "
        f"first that differs is number {place + 1}: {there} in the snapshot, {here} now. "
        f"{_SAME_SCRIPT}"
    )


def _examined(
    held: Sequence[Held], views: list[np.ndarray], alike: list[bool], communicator: Communicator
) -> list[np.ndarray]:
    """`views`, all right where all workers must have the same; `alike` says so then."""
    wrong = [i for i, same in enumerate(alike) if not same and not held[i].may_differ]
    if not wrong:
        return views
    if any(_is_hyperparameter(held[i]) for i in wrong):
        raise KnownToDiffer
    chiefs = communicator.broadcast([tf.constant(views[i]) for i in wrong], name="differing")
    chiefs = [np.asarray(value) for value in chiefs]
    gaps = np.array([[divergence.gap(views[i], v) for i, v in zip(wrong, chiefs, strict=True)]])
    gaps = communicator.all_gather_numpy(gaps, name="by how much they differ")
    text = divergence.describe([held[i].path for i in wrong], gaps)
    if text:
        raise DivergenceError(_DIVERGED.format(held[wrong[0]].kind.value, text))
    for i, value in zip(wrong, chiefs, strict=True):
        # No more than rounding, as operations without a fixed order make on GPUs.
        held[i].variable.assign(value)
        views[i], alike[i] = held[i].view, True
    return views


_DIVERGED = (
    "The workers no longer have the same {}: {}. Either memory is bad, or something changes "
    "variables on some workers only: a callback that acts on the logs of a batch, code under "
    "`if rank == 0`, or gradients in a loop of your own that are not summed over the workers."
)


def _is_hyperparameter(each: Held) -> bool:
    return each.kind is Kind.OPTIMIZER and each.path.rpartition("/")[2].partition(":")[0] in (
        "learning_rate",
        "current_learning_rate",
    )


def _put_python(
    own: dict[str, np.ndarray], python: Mapping[str, Any], communicator: Communicator
) -> dict[str, np.ndarray]:
    """Adds `python` to `own`, but for the large parts that all workers have, which it returns."""
    parts: list[np.ndarray] = []

    def keep_within(buffer: pickle.PickleBuffer) -> bool:
        raw = np.frombuffer(buffer.raw(), np.uint8)
        if raw.size >= _PART_BYTES:
            parts.append(raw)
        return raw.size < _PART_BYTES

    text = pickle.dumps(dict(python), protocol=5, buffer_callback=keep_within)
    digests = [hashlib.blake2b(part.data, digest_size=8).digest() for part in parts]
    own[_PYTHON] = np.frombuffer(text, np.uint8)
    own[_PARTS] = np.frombuffer(b"".join(digests), np.uint64)
    everyones = [set(each.view(np.uint64)) for each in _gathered(b"".join(digests), communicator)]
    everywhere = set.intersection(*everyones)
    common: dict[str, np.ndarray] = {}
    for digest, part in zip(own[_PARTS], parts, strict=True):
        (common if digest in everywhere else own)[_part_name(digest)] = part
    return common


def _part_name(digest: int) -> str:
    return f"part {digest:016x}"


def _gathered(data: bytes, communicator: Communicator) -> list[np.ndarray]:
    """Each worker's bytes, by rank."""
    mine = np.frombuffer(data, np.uint8)
    if communicator.size == 1:
        return [mine]
    sizes = communicator.all_gather_numpy(np.array([mine.size], np.int64), name="sizes")
    if not sizes.any():
        return [mine] * communicator.size
    everyones = communicator.all_gather_numpy(mine, name="each worker's own state")
    return np.split(everyones, np.cumsum(sizes)[:-1])
