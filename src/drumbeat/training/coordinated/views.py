"""What a step on a worker sees of variables that other workers change at the same time.

Metrics are counted by adding to what was read: two workers that do so at once would lose
one of both counts. So a step reads a metric's variables once, counts on with what it read,
and at its end what it has counted is added on the ps. The factor that a loss is scaled with
is read once, too, as gradients are divided by it later in the same step, and so are the
number of updates and the learning rate, which each variable's update would fetch again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch


class _Views:
    """Of the one thread that traces steps."""

    def __init__(self) -> None:
        self.counted: set[int] = set()
        self.fixed: dict[int, Any] = {}


_views = _Views()


def integrate() -> None:
    """Lets assignments to the variables of a step's view be part of it."""
    touch.wrap(touch.VARIABLE_ASSIGN, _direct_assign)


def _direct_assign(original: Any) -> Any:
    def direct_assign(self: Any, value: Any) -> None:
        if not took(self, value):
            original(self, value)

    return direct_assign


def took(variable: Any, value: Any) -> bool:
    """Whether an assignment to a Keras variable was one to a view of it."""
    if id(variable) in _views.counted:
        variable._value = tf.cast(value, variable._value.dtype)
        return True
    if id(variable) in _views.fixed:
        own = _views.fixed[id(variable)]
        own.assign(tf.cast(value, own.dtype))
        return True
    return False


def owner_of(variable: Any) -> Any:
    """The variable on the ps tasks behind a view that reads one value only; None for others."""
    return _views.fixed.get(id(variable))


@contextlib.contextmanager
def of_step(counted: Sequence[Any], fixed: Sequence[Any]) -> Iterator[None]:
    """A step that is traced within this sees these variables as described above.

    Args:
        counted: Keras variables that add up what they see, on ps tasks.
        fixed: Keras variables of which the step reads one value only.
    """
    owners = [(variable, variable._value) for variable in (*counted, *fixed)]
    starts = [tf.convert_to_tensor(own) for _, own in owners]
    before = _views.counted, _views.fixed
    _views.counted = {id(variable) for variable in counted}
    _views.fixed = {id(variable): variable._value for variable in fixed}
    for (variable, _), start in zip(owners, starts, strict=True):
        variable._value = start
    try:
        yield
        ends = [variable._value for variable in counted]
    finally:
        for variable, own in owners:
            variable._value = own
        _views.counted, _views.fixed = before
    for (_, own), start, end in zip(owners, starts, ends, strict=False):
        if end is start:
            continue
        if own.dtype.is_floating or own.dtype.is_integer:
            own.assign_add(end - start)
        else:
            own.assign(end)
