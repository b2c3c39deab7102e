"""What the graph of a step says of the rows of a batch, in a model's own layers.

Keras's own layers keep rows apart, or drumbeat sees to what they do with them, so their insides
are of no account. Operations are known by the layer in whose scope they are.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Sequence
from typing import Any

import keras

from drumbeat import keras_internals as touch
from drumbeat.training import row_marks
from drumbeat.training.rowwise import Rows

_LOOKED_INTO = ("Concatenate", "CutMix", "Lambda", "MixUp", "Softmax", "UnitNormalization")
"""Layers of Keras's that may do anything, or mix rows if they are told to."""


class Layers:
    """The layers of a model, by the scopes of their operations.

    Args:
        layers: All of them, the model among them.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._by_name = {str(layer.name): layer for layer in layers}
        self._at = functools.cache(self._innermost)

    def _innermost(self, scope: str) -> Any | None:
        """The innermost layer in a scope such as "model/block/dense_1"; None outside of all."""
        for part in reversed(scope.split("/")):
            # The scopes of later calls of a layer are numbered.
            for name in (part, re.sub(r"_\d+$", "", part)):
                if name in self._by_name:
                    return self._by_name[name]
        return None

    def of(self, operation: Any) -> Any | None:
        """The innermost layer that has made an operation; None if none has."""
        return self._at(operation.name.rpartition("/")[0])

    def name_of(self, operation: Any) -> str:
        """The name of the innermost layer that has made an operation; its own if none has."""
        layer = self.of(operation)
        return str(operation.name if layer is None else layer.name)

    def keeps_apart(self, operation: Any) -> bool:
        """Whether an operation is surely known to keep rows apart, as `Rows` wants to know."""
        if row_marks.is_mark(operation):
            return True
        return is_trusted(self.of(operation))


def is_trusted(layer: Any | None) -> bool:
    """Whether a layer is one of Keras's that keeps rows apart, or that drumbeat knows."""
    if layer is None or isinstance(layer, keras.Model) or type(layer).__name__ in _LOOKED_INTO:
        return False
    return touch.is_keras_own(type(layer))


_of_graphs: Any = weakref.WeakKeyDictionary()


def of(graph: Any, layers: Layers) -> Rows:
    """What the tensors of the graph of a step, as far as it is traced, have to do with rows."""
    if graph not in _of_graphs:
        _of_graphs[graph] = Rows((), layers.keeps_apart)
    found = _of_graphs[graph]
    found.follow(graph)
    return found
