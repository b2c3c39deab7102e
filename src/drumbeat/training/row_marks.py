"""Tensors in the graph of a step that have an entry for each row of a batch, or are alike on all.

They are marked as such.

Where a script names no strategy, what its layers do is looked at in the graph, see `step_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from drumbeat.training import current

_TYPE, _NAME, _ALIKE = "PlaceholderWithDefault", "drumbeat_rows", "drumbeat_alike"
_SCOPE = "drumbeat_draw"


def of_any_number(batch: Any) -> Any:
    """`batch`, whose number of rows is not known in the graph that is traced.

    As with one worker, where a batch comes out of a dataset. A number would look like any other
    there, and what is divided by it like a sum. As it is where the script names a strategy, and in
    what runs eagerly.
    """
    if tf.executing_eagerly() or current.with_whole_batches() is None:
        return batch
    return tf.nest.map_structure(_marked, batch)


def alike(number: Any) -> Any:
    """`number`, which all workers have worked out together for the global batch."""
    if tf.executing_eagerly() or current.with_whole_batches() is None:
        return number
    return tf.raw_ops.PlaceholderWithDefault(input=number, shape=number.shape, name=_ALIKE)


def is_alike(operation: Any) -> bool:
    """Whether an operation is that of `alike`."""
    return operation.type == _TYPE and _ALIKE in operation.name


def drawn(draw: Callable[[], Any]) -> Any:
    """What `draw` returns: random numbers, of which each row gets its own.

    If they have a first axis of any length.
    """
    with tf.name_scope(_SCOPE):
        numbers = draw()
    if not isinstance(numbers, tf.Tensor) or not numbers.shape.rank or numbers.shape[0] is not None:
        return numbers
    return of_any_number(numbers)


def is_of_draw(operation: Any) -> bool:
    """Whether an operation is one of `drawn`."""
    return _SCOPE in operation.name


def is_mark(operation: Any) -> bool:
    """Whether the result of an operation is marked."""
    return operation.type == _TYPE and _NAME in operation.name


def _marked(leaf: Any) -> Any:
    if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
        return leaf
    return tf.raw_ops.PlaceholderWithDefault(input=leaf, shape=[None, *leaf.shape[1:]], name=_NAME)
