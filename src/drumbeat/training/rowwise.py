"""Whether row i of what a graph computes depends on row i of what it is given, and no other.

Such a function gives a worker, of its own rows, what it would give of the global batch. Each
operation on the way has to be known as one that keeps rows apart: what is not listed here, or
draws, or has a state, counts as one that mixes them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from drumbeat import tf_internals
from drumbeat.training import row_counts, row_marks, row_rules


class Kind(enum.Enum):
    """What a tensor has to do with the rows of a batch."""

    FIXED = "is the same whatever the batch"
    COUNT = "depends on how many rows there are"
    ROWS = "has an entry for each row along its first axis"
    FLAT = "has several entries for each row along its first axis, row after row"


FIXED, COUNT, ROWS, FLAT = Kind
Found = Kind | None  # None: nothing is known.


def is_rowwise(outputs: Iterable[Any], inputs: Iterable[Any]) -> bool:
    """Whether each of `outputs` has a row for each of `inputs`, and of that row alone.

    Args:
        outputs: Tensors of one graph.
        inputs: Tensors of that graph. Those with a first axis have the rows there, the others
            are the same whatever the batch.
    """
    outputs, inputs = list(outputs), list(inputs)
    if not outputs:
        return False
    found = Rows(inputs)
    found.follow(outputs[0].graph)
    return all(found.of(output) is ROWS for output in outputs)


def is_rowwise_function(function: Callable[..., Any], given: Sequence[Any]) -> bool:
    """Whether `function` gives for each row of `given` a row that depends on that one alone.

    It is traced beside the graph at hand, of which nothing is run. False as well where it has
    a state, makes variables, can't be traced, or where no graph is at hand.

    Args:
        function: Takes what `given` has, and returns a tensor.
        given: Structures of tensors. Those with a first axis have the rows there.
    """
    if tf.executing_eagerly():
        return False
    try:
        specs: list[Any] = tf.nest.map_structure(_without_rows, list(given))
        beside = tf.function(_without_variables(function), autograph=False)
        graph = beside.get_concrete_function(*specs).graph
    except Exception:  # noqa: BLE001
        return False  # Where it is called in earnest it says what is wrong.
    count = len(tf.nest.flatten(specs))
    if len(graph.outputs) != 1 or _leaves_something_behind(graph):
        return False
    return is_rowwise(graph.outputs, graph.inputs[:count])


def _without_rows(tensor: Any) -> tf.TensorSpec:
    tensor = tf.convert_to_tensor(tensor)
    shape = tensor.shape if tensor.shape.rank in (None, 0) else [None, *tensor.shape[1:]]
    return tf.TensorSpec(shape, tensor.dtype)


class _MakesVariables(Exception):
    pass


def _without_variables(function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise _MakesVariables

    def traced(*args: Any) -> Any:
        with tf.variable_creator_scope(refuse):
            return function(*args)

    return traced


_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_HARMLESS = (*_READS, *CALLS, "Placeholder", "Assert")


def _leaves_something_behind(graph: Any) -> bool:
    """Whether what a graph does shows in more than its outputs, or isn't the same each time."""
    for operation in graph.get_operations():
        if operation.type not in _HARMLESS and operation.op_def.is_stateful:
            return True
        if operation.type in CALLS and _leaves_something_behind(_called(operation)):
            return True
    return False


def _called(operation: Any) -> Any:
    return tf_internals.called_graph(operation)


class Rows:
    """What the tensors of a graph have to do with rows.

    Args:
        inputs: As `is_rowwise` has them.
        surely: Of an operation, whether a first axis of unknown length that its results have is
            surely one of rows kept apart, whatever it does.
    """

    def __init__(
        self, inputs: Iterable[Any], surely: Callable[[Any], bool] = lambda operation: False
    ) -> None:
        self._surely = surely
        self._followed = 0
        self._kinds: dict[str, Found] = {
            tensor.name: ROWS if tensor.shape.rank else FIXED for tensor in inputs
        }
        self._given = set(self._kinds)
        self._counts = row_counts.Counts()

    def of(self, tensor: Any) -> Found:
        """What is known of a tensor; None where it may mix rows."""
        return self._kinds.get(tensor.name)

    def begins_with_rows(self, shape: Any) -> bool:
        """Whether this is the number of rows, or a shape that begins with it."""
        return self._counts.begins_with_rows(shape)

    def follow(self, graph: Any) -> None:
        """Go through the operations of `graph`, of which more may come before the next call.

        They are in an order in which they can run.
        """
        new = graph.get_operations()[self._followed :]
        self._followed += len(new)
        for operation in new:
            kinds = self._of_outputs(operation)
            if self._surely(operation):
                kinds = map(_surely, kinds, operation.outputs)
            for tensor, kind in zip(operation.outputs, kinds, strict=True):
                if tensor.name not in self._given:
                    self._kinds[tensor.name] = kind

    def _of_outputs(self, operation: Any) -> list[Found]:
        count = len(operation.outputs)
        kinds = [self.of(tensor) for tensor in operation.inputs]
        if row_marks.is_alike(operation):
            return [FIXED]
        if operation.type == "Placeholder":
            # Made outside, in a graph of the step: rows of it, or of all steps the same.
            return [_of_captured(output) for output in operation.outputs]
        if None in kinds:
            return [None] * count
        if operation.type == "IdentityN":
            return kinds
        if operation.type in CALLS:
            return self._of_call(operation)
        if all(kind in (FIXED, COUNT) for kind in kinds):
            return [self._of_numbers(operation, kinds)] * count
        return [self._of_rows(operation, kinds)] * count

    def _of_call(self, operation: Any) -> list[Found]:
        graph, within = self.within(operation)
        return [within.of(output) for output in graph.outputs]

    def within(self, call: Any) -> tuple[Any, Rows]:
        """The graph of the function that a PartitionedCall calls, and what its tensors are."""
        graph = _called(call)
        within = Rows((), self._surely)
        for tensor, outer in zip(graph.inputs, call.inputs, strict=True):
            within._kinds[tensor.name] = self.of(outer)
            within._given.add(tensor.name)
        within.follow(graph)
        return graph, within

    # Numbers and shapes ----------------------------------------------------

    def _of_numbers(self, operation: Any, kinds: list[Found]) -> Found:
        if operation.type not in _READS and operation.op_def.is_stateful:
            return None
        given = list(operation.inputs)
        if operation.type == "Fill" and self._counts.begins_with_rows(given[0]):
            return ROWS if kinds[1] is FIXED else None
        if operation.type == "BroadcastTo" and self._counts.begins_with_rows(given[1]):
            new, old = operation.outputs[0].shape.rank, given[0].shape
            fits = None not in (new, old.rank) and (old.rank < new or old[0] == 1)
            return ROWS if kinds[0] is FIXED and fits else None
        is_same = COUNT not in kinds
        if len(operation.outputs) == 1:
            is_same = self._counts.note(operation, is_same=is_same)
        return FIXED if is_same else COUNT

    # Rows ------------------------------------------------------------------

    def _of_rows(self, operation: Any, kinds: list[Found]) -> Found:
        """Of an operation whose inputs are known, and of which some have rows."""
        kind, given = operation.type, list(operation.inputs)
        if kind == "Shape" and given[0].shape.rank:
            first = row_counts.ROWS if kinds[0] is ROWS else row_counts.OTHER
            self._counts.note_shape(operation.outputs[0], given[0], first)
        if kind in ("Shape", "Size"):
            return COUNT
        if kind == "Rank":
            return FIXED
        if any(each.shape.rank is None for each in given):
            return None
        if kind == "Reshape":
            return self._of_reshape(operation, kinds)
        if kind == "BroadcastTo":
            same = operation.outputs[0].shape.rank == given[0].shape.rank
            return (
                ROWS
                if kinds[0] is ROWS and same and self._counts.begins_with_rows(given[1])
                else None
            )
        found = {each for each in kinds if each in (ROWS, FLAT)}
        if COUNT in kinds or len(found) != 1:
            return None
        keeps = row_rules.RULES.get(kind)
        fixed = [each is FIXED for each in kinds]
        return found.pop() if keeps is not None and keeps(operation, given, fixed) else None

    def _of_reshape(self, operation: Any, kinds: list[Found]) -> Found:
        before, shape = operation.inputs
        after = operation.outputs[0].shape
        if kinds[0] not in (ROWS, FLAT) or not after.rank:
            return None
        if self._counts.begins_with_rows(shape):
            return ROWS
        there = _size(after[1:].as_list())
        if there is None:
            there = _size((self._counts.of(shape) or [row_counts.OTHER])[1:])
        if after[0] is not None or there is None:
            return None
        if _size(before.shape[1:].as_list()) == there:
            return kinds[0]
        # Parts of a row, one after the other: where they don't cross from one row to the next.
        return FLAT if there and _last_known(before.shape) % there == 0 else None


def _size(axes: list[Any]) -> int | None:
    """How many entries there are along axes of some lengths, None where one isn't known."""
    return math.prod(axes) if all(isinstance(each, int) and each >= 0 for each in axes) else None


def _last_known(shape: Any) -> int:
    """The entries behind the last axis of unknown length, of which the first counts as one."""
    known = 1
    for size in reversed(shape[1:].as_list()):
        if size is None:
            break
        known *= size
    return known


def _surely(kind: Found, tensor: Any) -> Found:
    is_known = kind in (ROWS, FLAT) or not tensor.shape.rank or tensor.shape[0] is not None
    return kind if is_known else ROWS


def _of_captured(tensor: Any) -> Found:
    return ROWS if tensor.shape.rank and tensor.shape[0] is None else FIXED
