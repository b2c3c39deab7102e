"""Metrics of a script's own class that get the global batch, and count it once.

What such a metric keeps need not be a sum over the rows: how many batches there were, a maximum,
a mean of roots, a list. So every worker updates it with the targets and predictions of all, and
has the state that one worker would have; nothing is added up. It costs their bytes in each step.

For what Keras 3's `compile(metrics=...)` was given in scripts that name no strategy, but for
metrics with a `merge_state`: these say themselves how two become one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.training import current, whole_batch

_WHOLE = "_drumbeat_whole"


def mark(given: Iterable[Any]) -> None:
    """Has those of the metrics that compile() was given count the global batch that need it."""
    for metric in given:
        own = not touch.is_keras_own(type(metric).update_state)
        if own and not callable(getattr(metric, "merge_state", None)):
            # Not by setattr, in which Keras looks for layers and variables to track.
            metric.__dict__[_WHOLE] = True
            _mark_variables(metric)


def has_whole_state(variable: Any) -> bool:
    """Whether every worker has in a metric's variable what all have seen."""
    return getattr(variable, _WHOLE, False)


def around_update(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the `update_state` of metrics of Keras 3."""

    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.with_whole_batches()
        if strategy is None or _WHOLE not in self.__dict__:
            return original(self, *args, **kwargs)
        given = tf.nest.flatten((args, kwargs))
        there = [each for each in given if each is not None]
        of_all = iter(whole_batch.everyones(there, strategy))
        filled = [None if each is None else next(of_all) for each in given]
        own_args, own_kwargs = tf.nest.pack_sequence_as((args, kwargs), filled)

        def update(_: Any) -> None:
            with current.as_one_worker(strategy):
                original(self, *own_args, **own_kwargs)

        # Once in each worker, however many replicas it runs.
        strategy.extended.meet((), update)
        _mark_variables(self)
        return None

    return update_state


def _mark_variables(metric: Any) -> None:
    for variable in metric.variables:
        setattr(variable, _WHOLE, True)
