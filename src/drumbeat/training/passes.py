"""A fit that begins at a later epoch reads its data in that epoch's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from drumbeat.data.ordered import OrderedDataset


def callbacks(arguments: Mapping[str, Any]) -> list[keras.callbacks.Callback]:
    """What to put behind the user's callbacks.

    Args:
        arguments: Of `fit`, by name.
    """
    data = arguments.get("x")
    if not isinstance(data, OrderedDataset):
        return []
    return [_GoesOn(data, arguments.get("initial_epoch", 0))]


class _GoesOn(keras.callbacks.Callback):
    """Skips the passes of epochs that an earlier process has made."""

    def __init__(self, data: OrderedDataset, initial_epoch: int) -> None:
        super().__init__()
        self._data = data
        self._initial_epoch = initial_epoch

    def on_train_begin(self, logs: Any = None) -> None:
        # A callback that restores a backup says so on the model, as Keras has it.
        model: Any = self.model
        first = model._initial_epoch or self._initial_epoch
        # A second fit in the same process has come further than epoch 0.
        if first > self._data.epoch:
            self._data.epoch = first
