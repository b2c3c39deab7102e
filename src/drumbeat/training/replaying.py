"""Values of the global batch, where a graph has those of a worker's own rows.

What a layer makes of its rows is done once more, from where rows meet: with the sum over all
workers' rows, the mean over them, or with the rows themselves. What was done with each row alone
is left as it is.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import whole_batch
from drumbeat.training.rowwise import CALLS, FIXED, FLAT, ROWS, Rows


class NotRepeatable(Exception):
    """Something in a graph can't be done once more: it draws, has a state, or is a loop."""


class Replay:
    """Of one graph, in the graph at hand.

    Args:
        rows: What its tensors have to do with rows.
        strategy: Of the workers.
        around: Of the graph that calls this one, and the call; None where it is the one at hand.
    """

    def __init__(
        self,
        rows: Rows,
        strategy: DataParallelStrategy,
        around: tuple[Replay, Any] | None = None,
    ) -> None:
        self.rows = rows
        self._strategy = strategy
        self._around = around
        self._whole: dict[str, Any] = {}
        self._here: dict[str, Any] = {}
        self._within: dict[str, tuple[Any, Replay]] = {}

    def whole(self, tensor: Any) -> Any:
        """A tensor of the global batch; gradients flow as those of `whole_batch.everyones`.

        Raises:
            NotRepeatable: It can't be had.
        """
        if tensor.name not in self._whole:
            self._whole[tensor.name] = self._of_all(tensor)
        return self._whole[tensor.name]

    def here(self, tensor: Any) -> Any:
        """A tensor of this worker's rows."""
        if self._around is None:
            return tensor
        if tensor.name not in self._here:
            operation = tensor.op
            outer = self.given(tensor)
            if outer is not None:
                self._here[tensor.name] = self._around[0].here(outer)
            elif operation.type in CALLS:
                output, within = self.called(tensor)
                self._here[tensor.name] = within.here(output)
            else:
                made = again(operation, [self.here(each) for each in operation.inputs])
                self._here[tensor.name] = made[tensor.value_index]
        return self._here[tensor.name]

    def called(self, tensor: Any) -> tuple[Any, Replay]:
        """What the result of a call is in the graph that is called, and that graph's replay."""
        call = tensor.op
        if call.name not in self._within:
            graph, rows = self.rows.within(call)
            self._within[call.name] = graph, Replay(rows, self._strategy, (self, call))
        graph, within = self._within[call.name]
        return graph.outputs[tensor.value_index], within

    def given(self, tensor: Any) -> Any | None:
        """What the graph around gives for an argument of this one; None if it isn't one."""
        if self._around is None or tensor.op.type != "Placeholder":
            return None
        _, call = self._around
        for argument, value in zip(tensor.graph.inputs, call.inputs, strict=True):
            if argument is tensor:
                return value
        return None

    def _of_all(self, tensor: Any) -> Any:
        operation, kind = tensor.op, self.rows.of(tensor)
        if kind is FIXED:
            return self.here(tensor)
        if kind in (ROWS, FLAT):
            return whole_batch.everyones(self.here(tensor), self._strategy)
        outer = self.given(tensor)
        if outer is not None and self._around is not None:
            return self._around[0].whole(outer)
        if operation.type in CALLS:
            output, within = self.called(tensor)
            return within.whole(output)
        given = list(operation.inputs)
        is_of_rows = bool(given) and self.rows.of(given[0]) in (ROWS, FLAT)
        if is_of_rows and operation.type in ("Sum", "Mean"):
            return self._reduced(operation)
        if is_of_rows and operation.type in ("Shape", "Size"):
            return self._shape(self.here(given[0]), operation)
        return again(operation, [self.whole(each) for each in given])[tensor.value_index]

    def _reduced(self, operation: Any) -> Any:
        """The sum or the mean over all rows."""
        values, axes = map(self.here, operation.inputs)
        keeps = operation.get_attr("keep_dims")
        total = self._total(tf.reduce_sum(values, axes, keeps))
        if operation.type == "Sum":
            return total
        everything = self._shape(values, None)
        count = tf.reduce_prod(tf.gather(everything, tf.reshape(axes % values.shape.rank, [-1])))
        return total / tf.cast(count, total.dtype)

    def _total(self, part: Any) -> Any:
        """The sum over the workers, with a gradient as that of `whole_batch.everyones`."""
        strategy = self._strategy
        fraction = strategy.extended.loss_fraction(part.dtype)

        @tf.custom_gradient
        def of_all(part: Any) -> Any:
            total = strategy.extended.total(part)
            return total, lambda upstream: tf.math.divide_no_nan(upstream, fraction)

        return of_all(part)

    def _shape(self, values: Any, operation: Any | None) -> Any:
        """The shape of what has the rows of all, or what `operation` says in place of it."""
        shape = tf.shape(values, tf.int64)
        span = self._strategy.extended.span()
        # A row that stands in for none counts as one.
        first = shape[:1] // tf.maximum(span.rows, 1) * span.total
        shape = tf.concat([first, shape[1:]], 0)
        if operation is None:
            return shape
        if operation.type == "Size":
            shape = tf.reduce_prod(shape)
        return tf.cast(shape, operation.outputs[0].dtype)


def again(operation: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of an operation for other inputs, in the graph at hand.

    Raises:
        NotRepeatable: It isn't the same each time, or calls functions.
    """
    function = getattr(tf.raw_ops, operation.type, None)
    definition = operation.op_def
    kinds = {attribute.name: attribute.type for attribute in definition.attr}
    if function is None or definition.is_stateful or {"func", "list(func)"} & {*kinds.values()}:
        raise NotRepeatable(operation.type)
    left, given = iter(inputs), {}
    parameters = [name for name in inspect.signature(function).parameters if name != "name"]
    if operation.type == "Squeeze":
        given["axis"] = operation.get_attr("squeeze_dims")
        parameters.remove("axis")
    # In the order of the definition, if not by the same names.
    arguments = iter(definition.input_arg)
    for name in parameters:
        if name in kinds:
            given[name] = operation.get_attr(name)
            continue
        argument = next(arguments)
        count = _count(operation, argument)
        given[name] = next(left) if count is None else [next(left) for _ in range(count)]
    made = function(**given)
    return [made] if isinstance(made, tf.Tensor) else list(made)


def constant(tensor: Any) -> np.ndarray | None:
    """The value of a tensor that is made of constants only; None of any other."""
    value = tf.get_static_value(tensor)
    if value is not None or not tensor.op.inputs:
        return value
    given: list[Any] = [constant(each) for each in tensor.op.inputs]
    if any(each is None for each in given):
        return None
    with contextlib.suppress(NotRepeatable), tf.init_scope():
        made = again(tensor.op, [tf.constant(each) for each in given])
        return made[tensor.value_index].numpy()
    return None


def _count(operation: Any, argument: Any) -> int | None:
    """How many inputs an argument of an operation is; None for one that is no list."""
    if argument.number_attr:
        return operation.get_attr(argument.number_attr)
    if argument.type_list_attr:
        return len(operation.get_attr(argument.type_list_attr))
    return None
