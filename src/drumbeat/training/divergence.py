"""State that every worker holds alike: given out at the start, checked and mended later.

All workers start a fit from the chief's weights and take the same steps, so these
stay the same bytes. Two things part them. Moving statistics of a worker's own rows
do by their nature: they become the workers' mean. Anything else that some workers
changed alone, such as a learning rate set from a batch's own loss, would go on
unseen in two trainings that pass for one: it is found at the end of each epoch, all
workers go on with the chief's, and the chief says what differed.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.collectives.communicator import Communicator
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.strategies.local_sgd import is_own

logger = logging.getLogger("drumbeat")

# Differences up to this part of a variable's largest value are mended without a word:
# GPU operations that don't add in a fixed order make such, and it is what we call the
# same result on one worker and on many.
ROUNDING = 1e-5


def take_chiefs(model: Any, communicator: Communicator) -> None:
    """Give `model` and its optimizer the chief's values on every worker."""
    variables = [*_weights(model, "variables"), *_of_optimizer(model)]
    values = communicator.broadcast([tf.convert_to_tensor(v) for v in variables])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def take_chiefs_epoch(model: Any, communicator: Communicator) -> None:
    """Give `model` the epoch on every worker that the chief's is to begin with."""
    epoch = np.array([-1 if model._initial_epoch is None else model._initial_epoch], np.int64)
    epoch = int(communicator.broadcast_numpy(epoch)[0])
    model._initial_epoch = None if epoch < 0 else epoch


def average_drifted(model: Any, strategy: DataParallelStrategy) -> None:
    """Make float weights that aren't trained and differ between workers their mean.

    Such as the moving statistics of BatchNormalization. In scripts that name no strategy also
    TensorFlow's own variables in layers, which Keras 3 doesn't train. A worker counts by its
    share of each batch's rows.
    """
    communicator = strategy.communicator
    own = _weights(model, "non_trainable_weights")
    if strategy.extended.adopts:
        own += _plain(model)
    own = [weight for weight in own if tf.as_dtype(weight.dtype).is_floating]
    drifted = _differing(own, communicator)
    if drifted and strategy.extended.adopts and strategy.is_chief:
        warn_of_drift(path_of(drifted[0]), len(drifted) - 1)
    units = strategy.extended.shares.units
    mine = units[communicator.rank]
    totals: list[Any] = communicator.all_reduce(
        [tf.convert_to_tensor(v) * mine for v in drifted], "sum", name="moving statistics"
    )
    for variable, total in zip(drifted, totals, strict=True):
        variable.assign(total / sum(units))


_said_of_drift: list[str] = []


def warn_of_drift(path: str, more: int) -> None:
    """Say, once, that a script that names no strategy trains another model than with one worker."""
    if _said_of_drift:
        return
    _said_of_drift.append(path)
    logger.warning(
        "%s%s is worked out from each worker's own rows of a batch, so the model is not quite that "
        "of one worker. All go on with the workers' mean. For the model of one worker: "
        "BatchNormalization(synchronized=True), and in layers of your own no weights that follow "
        "the rows of a batch.",
        path,
        f" (and {more} more)" if more else "",
    )


def mend(model: Any, communicator: Communicator, moment: str) -> None:
    """Give all workers the chief's weights and optimizer variables where they differ.

    All workers must call this. Costs about 5 ms for each 100 MB on every worker (the
    time to read them once) and one exchange of 8 bytes a variable.

    Args:
        model: Its variables, those of random layers and of its optimizer are
            compared; those of metrics are each worker's own.
        communicator: Of the workers.
        moment: When this is, for the warning, such as "after epoch 3".
    """
    optimizer = [v for v in _of_optimizer(model) if not is_own(model.optimizer, v)]
    kinds = {"weights": _weights(model, "variables"), "optimizer variables": optimizer}
    named = [(kind, variable) for kind, own in kinds.items() for variable in own]
    differing = _differing([variable for _, variable in named], communicator)
    if not differing:
        return
    chiefs = communicator.broadcast(
        [tf.convert_to_tensor(v) for v in differing], name="variables that differ"
    )
    gaps = np.array([[gap(_view(v), _view(c)) for v, c in zip(differing, chiefs, strict=True)]])
    gaps = communicator.all_gather_numpy(gaps, name="by how much they differ")
    for variable, value in zip(differing, chiefs, strict=True):
        variable.assign(value)
    if communicator.rank == 0:
        kind_of = {id(variable): kind for kind, variable in named}
        for kind in kinds:
            own = [i for i, v in enumerate(differing) if kind_of[id(v)] == kind]
            text = describe([path_of(differing[i]) for i in own], gaps[:, own])
            if text:
                logger.warning(_WARNING, moment.capitalize(), kind, text)


_WARNING = (
    "%s, %s differed between workers: %s. All workers go on with the chief's. Something "
    "changed them on some workers only. Look for a callback that acts on the logs of a batch, "
    "which are each worker's own (at the end of an epoch they are alike), for code under "
    "`if rank == 0`, and, on GPUs, for operations that tf.config.experimental."
    "enable_op_determinism() makes deterministic."
)


def describe(paths: Sequence[str], gaps: np.ndarray) -> str:
    """Which variables differ, where and by how much; "" where it is no more than rounding.

    Args:
        paths: The variables' paths.
        gaps: Shape [workers, variables], see `gap`.
    """
    beyond = gaps > ROUNDING
    if not beyond.any():
        return ""
    columns = np.flatnonzero(beyond.any(axis=0))
    ranks = np.flatnonzero(beyond.any(axis=1)).tolist()
    more = f" and {len(columns) - 1} more" if len(columns) > 1 else ""
    workers = "worker " if len(ranks) == 1 else "workers "
    largest = gaps[:, columns[0]].max()
    amount = f" (by up to {largest:.2g} of its largest value)" if np.isfinite(largest) else ""
    return f"{paths[columns[0]]}{amount}{more}, on {workers}{', '.join(map(str, ranks))}"


def gap(mine: np.ndarray, chiefs: np.ndarray) -> float:
    """The largest difference of two arrays, as a part of the largest value in `chiefs`.

    Infinite where that says nothing: whole numbers and truth values that differ, NaN on
    one side only, or all of `chiefs` is zero.
    """
    if np.array_equal(mine, chiefs):
        return 0.0
    if mine.dtype.kind in "iub":
        return float("inf")
    ours, theirs = mine.astype(np.float64), chiefs.astype(np.float64)
    if np.array_equal(ours, theirs, equal_nan=True):
        return 0.0
    with np.errstate(all="ignore"):
        part = np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs))
    return float(part) if np.isfinite(part) else float("inf")


def _weights(model: Any, name: str) -> list[Any]:
    """`model.<name>` but for what counts for a metric, which in Keras 2 a model has as well."""
    variables = weights_of(model, name)
    counted = {id(variable) for metric in model.metrics for variable in metric.variables}
    return [variable for variable in variables if id(variable) not in counted]


def _plain(model: Any) -> list[Any]:
    """Variables of TensorFlow's own in the layers of a model of Keras 3, if of one shape."""
    known = {id(variable) for variable in weights_of(model, "variables")}
    plain = touch.plain_variables(touch.all_layers(model)).values()
    return [v for v in plain if id(v) not in known and v.shape.is_fully_defined()]


def weights_of(layer: Any, name: str) -> list[Any]:
    """`layer.<name>`, a list of variables; none where a model of Keras 2 has not been built."""
    try:
        return list(getattr(layer, name))
    except ValueError:
        return []


def _of_optimizer(model: Any) -> list[Any]:
    return optimizer_variables(model.optimizer) if model.optimizer else []


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer of Keras's; of some of old they are a method."""
    variables = optimizer.variables
    return list(variables if isinstance(variables, list | tuple) else variables())


def path_of(variable: Any) -> str:
    """How messages call a variable of Keras's or TensorFlow's."""
    return str(getattr(variable, "path", getattr(variable, "name", "")))


def _differing(variables: Sequence[Any], communicator: Communicator) -> list[Any]:
    """Those of `variables` that don't have the same bytes on all workers.

    Equal ones are left alone: a mean of equal values can differ from them by rounding.
    """
    same = alike([_view(v) for v in variables], communicator)
    return [v for v, equal in zip(variables, same, strict=True) if not equal]


def alike(arrays: Sequence[np.ndarray], communicator: Communicator) -> list[bool]:
    """Which of `arrays`, of the same shapes everywhere, have the same bytes on all workers."""
    if not arrays:
        return []
    sums = np.array([fingerprint(array) for array in arrays], np.int64)
    # Equal where the largest is the smallest, which is minus the largest of the negatives.
    both = communicator.all_reduce_numpy(np.concatenate([sums, -sums]), "max", name="fingerprints")
    return (both[: len(sums)] == -both[len(sums) :]).tolist()


def _view(variable: Any) -> np.ndarray:
    """What `variable` holds; on a CPU without a copy."""
    return np.asarray(tf.convert_to_tensor(variable))


def fingerprint(array: np.ndarray) -> int:
    """A number below 2**62 that tells arrays of one shape and dtype apart by their bytes.

    The sum of the bytes taken as 64-bit words: five times as fast as a CRC. It would
    miss words that change places.
    """
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = data.size // 8 * 8
    return (
        int(np.add.reduce(data[:whole].view(np.int64))) + zlib.crc32(data[whole:].tobytes())
    ) % 2**62
