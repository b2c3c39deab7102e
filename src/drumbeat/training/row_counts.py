"""The numbers in the shapes that a graph works with, where they are or aren't how many rows."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import tensorflow as tf

ROWS = "the number of rows"
SAME = "unknown, but the same whatever the batch"
OTHER = "unknown"
Entry = int | str

_ARITHMETIC = {
    "Add": operator.add,
    "AddV2": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
}


class Counts:
    """What is known of integers and vectors of them, entry by entry."""

    def __init__(self) -> None:
        self._known: dict[str, list[Entry]] = {}

    def of(self, tensor: Any) -> list[Entry] | None:
        """The entries of a number or vector, None where not even how many there are is known."""
        if tensor.name in self._known:
            return self._known[tensor.name]
        if not tensor.dtype.is_integer or tensor.shape.rank not in (0, 1):
            return None
        value = tf.get_static_value(tensor)
        return None if value is None else [int(entry) for entry in np.ravel(value)]

    def begins_with_rows(self, tensor: Any) -> bool:
        """Whether a shape is one of something that has a first axis for the rows."""
        return (self.of(tensor) or [OTHER])[0] == ROWS

    def note_shape(self, shape: Any, of: Any, first: Entry) -> None:
        """Note the result of a Shape, of a tensor whose first axis is that long."""
        sizes = of.shape.as_list()
        self._known[shape.name] = [first, *(SAME if size is None else size for size in sizes[1:])]

    def note(self, operation: Any, *, is_same: bool) -> bool:
        """Note what an operation makes of such numbers.

        Args:
            operation: With one output.
            is_same: Its inputs are the same whatever the batch.

        Returns:
            Whether the result surely is so.
        """
        entries = self._made_by(operation)
        if entries is None:
            return is_same
        if is_same:
            entries = [entry if isinstance(entry, int) else SAME for entry in entries]
        self._known[operation.outputs[0].name] = entries
        return not {ROWS, OTHER}.intersection(entries)

    def _made_by(self, operation: Any) -> list[Entry] | None:
        kind, given = operation.type, list(operation.inputs)
        if operation.outputs[0].dtype not in (tf.int32, tf.int64):
            return None
        if kind in ("Identity", "Cast"):
            return self.of(given[0])
        if kind == "Pack" and operation.outputs[0].shape.rank == 1:
            return [(self.of(each) or [OTHER])[0] for each in given]
        if kind == "ConcatV2" and operation.outputs[0].shape.rank == 1:
            parts = [self.of(each) for each in given[:-1]]
            return None if None in parts else [entry for part in parts for entry in part or ()]
        entries = self.of(given[0]) if given and given[0].shape.rank == 1 else None
        if kind == "StridedSlice" and entries is not None:
            return self._sliced(operation, entries)
        if kind == "Slice" and entries is not None:
            begin, size = self._number(given[1]), self._number(given[2])
            if begin is None or size is None:
                return None
            return entries[begin:] if size == -1 else entries[begin : begin + size]
        if kind in _ARITHMETIC and operation.outputs[0].shape.rank == 0:
            first, second = map(self._number, given)
            if first is not None and second is not None:
                return [_ARITHMETIC[kind](first, second)]
        return None

    def _sliced(self, operation: Any, entries: list[Entry]) -> list[Entry] | None:
        _, begin, end, step = operation.inputs
        masks = {
            name: operation.get_attr(f"{name}_mask")
            for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
        }
        first, last, stride = self._number(begin), self._number(end), self._number(step)
        if masks["ellipsis"] or masks["new_axis"] or not stride:
            return None
        if masks["shrink_axis"]:
            return None if first is None else [entries[first]]
        if (first is None and not masks["begin"]) or (last is None and not masks["end"]):
            return None
        return entries[
            slice(None if masks["begin"] else first, None if masks["end"] else last, stride)
        ]

    def _number(self, tensor: Any) -> int | None:
        entries = self.of(tensor)
        if entries is None or len(entries) != 1 or not isinstance(entries[0], int):
            return None
        return entries[0]
