"""Where Keras's loops meet local SGD: before anything looks at weights they are averaged."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.data.rows import Span
from drumbeat.errors import ConfigError
from drumbeat.strategies import choose
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import current, holdings

logger = logging.getLogger("drumbeat")


class _Here(threading.local):
    """Of the thread at hand: how many loops of Keras's it is in; one may only go by steps."""

    loops = 0
    steps_alone = False


_here = _Here()
_told: set[str] = set()


def step(
    optimizer: Any,
    variables: Any,
    gradients: Sequence[Any],
    update: Callable[[list[Any]], Any],
    strategy: DataParallelStrategy,
) -> Any:
    """What `optimizer.apply` does in a replica; see `strategies.local_sgd.LocalSgd.step`."""
    extended, size = strategy.extended, strategy.communicator.size
    if not _here.loops:
        _tell_of_loops(strategy)
    replica = extended.replicas.current
    if replica is None or replica.has_batch:
        span = extended.span()
    else:
        # What was recorded last may be of other data: all workers count alike.
        span = Span(*(tf.constant(n, tf.int64) for n in (strategy.communicator.rank, 1, size)))
    absent = extended.absent
    if absent is None and replica is not None and replica.has_batch and not _here.loops:
        # Loops of one's own know of no rows that stand in for none.
        absent = None if replica.known_rows else tf.equal(span.rows, 0)
    extended.local_sgd.step(optimizer, variables, gradients, update, span, absent)
    return optimizer.iterations


def _tell_of_loops(strategy: DataParallelStrategy) -> None:
    every = strategy.extended.local_sgd.settings.every
    if strategy.is_chief and "loops" not in _told:
        _told.add("loops")
        logger.warning(
            "sync_every=%d in a training loop of your own: workers average their weights after "
            "every %d steps. Where weights are used in between or at the end (saved, compared, "
            "evaluated by hand), call drumbeat.average_weights(optimizer) on all workers before.",
            every,
            every,
        )


@contextlib.contextmanager
def loop(model: Any, strategy: DataParallelStrategy) -> Iterator[None]:
    """Within this, Keras runs one of its loops on `model`, which begins with averaged weights.

    Raises:
        ConfigError: The model has a layer that local SGD can't train.
    """
    local = strategy.extended.local_sgd
    if local is None:
        yield
        return
    _check(model, local.settings.every)
    finish(model, strategy)
    _here.loops += 1
    try:
        yield
    finally:
        _here.loops -= 1


@contextlib.contextmanager
def single_step() -> Iterator[None]:
    """Within this, results are asked for after a step that is not the end of anything."""
    before, _here.steps_alone = _here.steps_alone, True
    try:
        yield
    finally:
        _here.steps_alone = before


def finish(root: Any, strategy: DataParallelStrategy) -> None:
    """Averages the weights that the optimizers of `root` update, where they are not alike.

    All workers must call this.

    Args:
        root: A model, an optimizer, or a list of such.
        strategy: Of the workers.
    """
    local = strategy.extended.local_sgd
    if local is not None and not _here.steps_alone:
        roots = root if isinstance(root, list | tuple) else [root]
        local.finish(holdings.of(list(roots)).optimizers)


def average_weights(*roots: Any) -> None:
    """See `drumbeat.average_weights`."""
    strategy = choose.existing()
    if strategy is None or strategy.extended.local_sgd is None:
        return
    if not tf.executing_eagerly() or current.in_replica() is not None:
        raise ConfigError(
            "average_weights was called within strategy.run or a tf.function; expected outside of "
            "both, on all workers. Within, weights are averaged after every "
            f"{strategy.extended.local_sgd.settings.every} steps."
        )
    finish(list(roots), strategy)


def average_own(model: Any, strategy: DataParallelStrategy) -> None:
    """Makes weights their mean that each worker has set from what only it has.

    Such as the moving averages of weights (`use_ema`), which optimizers put in at the end.
    """
    if strategy.extended.local_sgd is None or not getattr(model.optimizer, "use_ema", False):
        return
    communicator = strategy.communicator
    weights = model.trainable_weights
    totals: list[Any] = communicator.all_reduce(
        [tf.convert_to_tensor(weight) for weight in weights], name="moving averages of weights"
    )
    for weight, total in zip(weights, totals, strict=True):
        weight.assign(total / communicator.size)


def _check(model: Any, every: int) -> None:
    for layer in touch.all_layers(model):
        if getattr(layer, "synchronized", False):
            raise ConfigError(
                f"Layer {layer.name} is {type(layer).__name__}(synchronized=True), for which "
                f"workers wait for each other in every step, but sync_every={every} was asked "
                "for. Leave one of the two out."
            )
