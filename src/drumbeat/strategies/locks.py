"""One update at a time of a variable and its slots on a ps.

Keras updates a variable by several operations: first the slots, such as Adam's two moments,
then the variable with what they hold. Of two workers that update at the same time, one may
find the other's first moment without the second, which is 0 at the start, and divide by next
to nothing. So an update holds a lock on the ps, from when its gradient is there to its end.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_LOCK = "_drumbeat_lock"
_numbers = itertools.count()
_ends: Any = weakref.WeakKeyDictionary()
"""For each graph the operations at the ends of its updates."""


@contextlib.contextmanager
def held(variable: Any, waits_for: Any) -> Iterator[None]:
    """Operations of a function that are made within this run under the lock of `variable`.

    Outside of functions it does nothing: the chief updates variables while no step runs.

    Args:
        variable: On one device.
        waits_for: Tensors, or structures of such, that are to be there before the lock is taken.
    """
    if tf.executing_eagerly():
        yield
        return
    lock = _lock_of(variable)
    graph = tf.compat.v1.get_default_graph()
    leaves = tf.nest.flatten(waits_for, expand_composites=True)
    there = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    with tf.control_dependencies(there), tf.device(variable.device):
        token: Any = tf.raw_ops.MutexLock(mutex=lock)
    before = len(graph.get_operations())
    with tf.control_dependencies([token]):
        yield
    made = graph.get_operations()[before:]
    with tf.control_dependencies(made), tf.device(variable.device):
        end: Any = tf.raw_ops.ConsumeMutexLock(mutex_lock=token)
    _ends.setdefault(graph, []).append(end)


def after_updates() -> contextlib.AbstractContextManager[Any]:
    """Operations that are made within this run when the updates made before have ended.

    Those of the function, or of the branch, that is being traced.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.control_dependencies(_ends.get(tf.compat.v1.get_default_graph(), []))


def _lock_of(variable: Any) -> Any:
    lock = vars(variable).get(_LOCK)
    if lock is None:
        with tf.init_scope(), tf.device(variable.device):
            name = f"drumbeat_lock_{next(_numbers)}"
            lock = tf.raw_ops.MutexV2(container="", shared_name=name)
        setattr(variable, _LOCK, lock)
    return lock
