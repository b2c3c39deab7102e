"""Callbacks of tf_keras's kind, to stand behind the user's."""

from __future__ import annotations

from typing import Any

import tf_keras

from drumbeat.data.rows import BatchRows
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.strategies.rebalance import Rebalancer
from drumbeat.training.keras_loops import RebalanceHooks, TogetherHooks


def unwatched(cls: type) -> type:
    """Keeps tf_keras from timing its own callbacks because of this one, and warning of them.

    It does so where a callback has a class with another name than one of its own.
    """
    cls.__name__ = "Callback"
    return cls


@unwatched
class Together(TogetherHooks, tf_keras.callbacks.Callback):
    """See `TogetherHooks`."""

    def __init__(self, strategy: DataParallelStrategy) -> None:
        super().__init__(strategy)
        # Keras need not wait for a step to make numbers of what it logs.
        self._supports_tf_logs = True


@unwatched
class Rebalance(RebalanceHooks, tf_keras.callbacks.Callback):
    """See `RebalanceHooks`."""

    def __init__(self, rebalancer: Rebalancer) -> None:
        super().__init__(rebalancer)
        self._supports_tf_logs = True


@unwatched
class PredictedRows(tf_keras.callbacks.Callback):
    """Counts the rows of this worker that each step of `predict` has had.

    Args:
        recorded: Where the strategy's iterators note them.

    Attributes:
        counts: By step.
    """

    def __init__(self, recorded: BatchRows) -> None:
        super().__init__()
        self._supports_tf_logs = True
        self._recorded = recorded
        self.counts: list[int] = []

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Args: Keras's."""
        del batch, logs
        self.counts.append(int(self._recorded.value[1]))
