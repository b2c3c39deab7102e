"""Variables of a script's own that the replicas of a worker write to together.

As in tf.distribute: what replicas assign to a variable made with an `aggregation` is made
one value first, and then assigned once; without an `aggregation` they may not assign. Else
each of them would, one after the other, and a counter would count for every device.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from drumbeat.errors import ConfigError
from drumbeat.tf_internals import ResourceVariable


class _Here(threading.local):
    as_it_is = False


_here = _Here()


@contextlib.contextmanager
def as_it_is() -> Iterator[None]:
    """Within this, each replica that assigns does so itself."""
    before, _here.as_it_is = _here.as_it_is, True
    try:
        yield
    finally:
        _here.as_it_is = before


def _together(assign: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(assign)
    def assign_together(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        extended: Any = tf.distribute.get_strategy().extended
        if _here.as_it_is or not getattr(extended, "is_in_lockstep", False):
            return assign(self, value, *args, **kwargs)
        if self.aggregation == tf.VariableAggregation.NONE:
            raise ConfigError(_HOW.format(self.name))

        def once(everyones: list[Any]) -> Any:
            return assign(self, extended.aggregated(everyones, self.aggregation), *args, **kwargs)

        return extended.meet(tf.convert_to_tensor(value, self.dtype), once)

    return assign_together


_HOW = (
    "The variable {} is assigned to within strategy.run, by several replicas at once, but it was "
    "made without an aggregation, so what is to become of their values isn't known. Make it with "
    "tf.Variable(..., aggregation=tf.VariableAggregation.SUM), MEAN or, where all have the same "
    "value, ONLY_FIRST_REPLICA."
)


def _not_by_replicas(scatter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scatter)
    def scatter_alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        extended: Any = tf.distribute.get_strategy().extended
        if not _here.as_it_is and getattr(extended, "is_in_lockstep", False):
            raise ConfigError(
                f"{scatter.__name__} of the variable {self.name} is called within strategy.run, by "
                "several replicas at once. Expected assign, assign_add or assign_sub there, of "
                "all of its rows."
            )
        return scatter(self, *args, **kwargs)

    return scatter_alone


class AggregatedVariable(ResourceVariable):
    """A `tf.Variable` that replicas can't write to one by one."""

    assign = _together(ResourceVariable.assign)
    assign_add = _together(ResourceVariable.assign_add)
    assign_sub = _together(ResourceVariable.assign_sub)
    scatter_add = _not_by_replicas(ResourceVariable.scatter_add)
    scatter_sub = _not_by_replicas(ResourceVariable.scatter_sub)
    scatter_update = _not_by_replicas(ResourceVariable.scatter_update)
    scatter_nd_add = _not_by_replicas(ResourceVariable.scatter_nd_add)
    scatter_nd_sub = _not_by_replicas(ResourceVariable.scatter_nd_sub)
    scatter_nd_update = _not_by_replicas(ResourceVariable.scatter_nd_update)


def aggregate(variable: Any) -> Any:
    """`variable`, which replicas from now on write to together.

    But for those that each replica counts in by itself (ON_READ), and for unusual kinds.
    """
    if (
        type(variable) is ResourceVariable
        and variable.synchronization != tf.VariableSynchronization.ON_READ
    ):
        variable.__class__ = AggregatedVariable
    return variable
