"""What compression has left out so far and still owes: kept for each optimizer, across restarts.

A worker's residual of a gradient is float32 in the gradient's shape, for every method
alike, so that another number of workers, or another method, can take it over: what
counts is the sum over the workers.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drumbeat.cluster.compression import NONE
from drumbeat.collectives.buffers import aligned_empty


@dataclass(frozen=True)
class Owner:
    """Whose gradients they are.

    Attributes:
        optimizer: Which applies them.
        names: Of the variables they belong to, in order.
        scale: A scalar tensor that the loss, and so they, were multiplied with; None for 1.
    """

    optimizer: Any
    names: tuple[str, ...]
    scale: Any = None

    def without(self, absent: Sequence[int]) -> Owner:
        """Leaves out the variables of these positions, which have no gradient."""
        if not absent:
            return self
        names = tuple(n for i, n in enumerate(self.names) if i not in absent)
        return replace(self, names=names)


class Memory:
    """An array that is kept between steps; for snapshots it passes for a variable.

    Attributes:
        path: For messages.
        array: What it holds.
        is_shared: All workers hold the same in it; else each has its own, of which the
            sum counts.
    """

    def __init__(self, path: str, array: np.ndarray, *, is_shared: bool) -> None:
        self.path = path
        self.array = array
        self.is_shared = is_shared

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array."""
        return self.array.dtype

    def assign(self, value: np.ndarray) -> None:
        """Copies `value`, of the same shape, into it."""
        np.copyto(self.array, value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype=dtype, copy=copy)


class Group:
    """What is kept for the gradients that an optimizer gets in one call.

    Attributes:
        names: Of the variables.
        shapes: Of their gradients.
        method: How they are compressed, as `Compress` writes it; "" until that is decided.
        residuals: One for each gradient, unless nothing is compressed.
        factors: What a method keeps besides, by name; the same on all workers.
        runner: What sums them, once it is made.
        scale: What the loss was multiplied with in the last step, and residuals are with it.
    """

    def __init__(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> None:
        self.names = tuple(names)
        self.shapes = tuple(tuple(shape) for shape in shapes)
        self.method = ""
        self.residuals: list[Memory] = []
        self.factors: dict[str, Memory] = {}
        self.runner: Any = None
        self.scale = 1.0

    def use(self, method: str) -> None:
        """From now on they are compressed so; residuals are taken over."""
        if method == self.method:
            return
        self.method, self.factors, self.runner = method, {}, None
        if method == NONE:
            self.residuals = []
        elif not self.residuals:
            self.residuals = [
                Memory(f"residual of {name}", zeros(shape), is_shared=False)
                for name, shape in zip(self.names, self.shapes, strict=True)
            ]

    def rescale(self, scale: float) -> None:
        """The loss is multiplied with `scale` from now on."""
        if scale != self.scale:
            for memory in self.residuals:
                memory.array *= np.float32(scale / self.scale)
            self.scale = scale

    @property
    def memories(self) -> list[Memory]:
        """All that is kept."""
        return [*self.residuals, *self.factors.values()]

    def factor(self, name: str, initial: np.ndarray) -> Memory:
        """The factor of that name, which starts as `initial`."""
        if name not in self.factors:
            self.factors[name] = Memory(name, initial.copy(), is_shared=True)
        return self.factors[name]

    def to_json(self) -> dict[str, Any]:
        """What it takes to make another one like it; plain values."""
        return {
            "names": list(self.names),
            "shapes": [list(shape) for shape in self.shapes],
            "method": self.method,
            "scale": self.scale,
            "factors": {name: list(memory.shape) for name, memory in self.factors.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Group:
        """Inverse of `to_json`, with zeros in its memories."""
        group = cls(value["names"], [tuple(shape) for shape in value["shapes"]])
        group.use(value["method"])
        group.scale = value["scale"]
        for name, shape in value["factors"].items():
            group.factor(name, zeros(tuple(shape)))
        return group


def zeros(shape: Sequence[int]) -> np.ndarray:
    """float32, aligned as TensorFlow wants it to take an array over without a copy."""
    count = int(np.prod(shape, dtype=np.int64))
    return aligned_empty(4 * count).view(np.float32).reshape(shape)


_groups: weakref.WeakKeyDictionary[Any, list[Group]] = weakref.WeakKeyDictionary()


def groups_of(optimizer: Any) -> list[Group]:
    """All groups of `optimizer`, in the order in which they were made."""
    return _groups.get(optimizer, [])


def group(owner: Owner, positions: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> Group:
    """The group of those variables of `owner`, made if it isn't there.

    Args:
        owner: Of the gradients.
        positions: Which of its variables.
        shapes: Of their gradients.
    """
    names = tuple(owner.names[i] for i in positions)
    known = _groups.setdefault(owner.optimizer, [])
    for each in known:
        if each.names == names and each.shapes == tuple(shapes):
            return each
    known.append(Group(names, shapes))
    return known[-1]


def rebuild(optimizer: Any, described: Sequence[Mapping[str, Any]]) -> bool:
    """Makes the groups of `optimizer` those that were `described`; whether any changed.

    Args:
        optimizer: See above.
        described: `Group.to_json` of each.
    """
    if [each.to_json() for each in groups_of(optimizer)] == list(described):
        return False
    _groups[optimizer] = [Group.from_json(value) for value in described]
    return True
