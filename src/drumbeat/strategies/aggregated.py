"""Variables of a script's own that the replicas of a worker write to together.

As in tf.distribute: what replicas assign to a variable made with an `aggregation` is made
one value first, and then assigned once. Without this each of them would assign, one after
the other, and a counter would count for every device.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

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

        def once(everyones: list[Any]) -> Any:
            return assign(self, extended.aggregated(everyones, self.aggregation), *args, **kwargs)

        return extended.meet(tf.convert_to_tensor(value, self.dtype), once)

    return assign_together


class AggregatedVariable(ResourceVariable):
    """A `tf.Variable` with an `aggregation`."""

    assign = _together(ResourceVariable.assign)
    assign_add = _together(ResourceVariable.assign_add)
    assign_sub = _together(ResourceVariable.assign_sub)


def aggregate(variable: Any) -> Any:
    """`variable`, which replicas now write to together if it was made to be written to so."""
    if (
        type(variable) is ResourceVariable
        and variable.aggregation != tf.VariableAggregation.NONE
        and variable.synchronization != tf.VariableSynchronization.ON_READ
    ):
        variable.__class__ = AggregatedVariable
    return variable
