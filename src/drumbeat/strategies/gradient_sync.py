"""The one place where the gradients of the workers become sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drumbeat.collectives.communicator import Communicator


class GradientSync:
    """Sums the gradients of one step over all workers.

    Outside of exact mode, which has an order of its own (`collectives.tree`).

    Args:
        communicator: Of the workers.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def sum(self, gradients: Sequence[Any]) -> list[Any]:
        """The sum of each gradient over all workers.

        Args:
            gradients: Tensors or `tf.IndexedSlices`, alike in number, dtype and shape on
                all workers; IndexedSlices may have any number of rows.

        Returns:
            A list like `gradients`, with the same bytes on every worker.

        Raises:
            CollectiveError: See `Communicator`.
        """
        return self._communicator.all_reduce(gradients)
