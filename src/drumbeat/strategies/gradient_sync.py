"""The one place where the gradients of the workers become sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.compression import Compression
from drumbeat.collectives.compression.residuals import Owner
from drumbeat.strategies.reductions import unless


class GradientSync:
    """Sums the gradients of one step over all workers.

    Outside of exact mode, which has an order of its own (`collectives.tree`).

    Args:
        communicator: Of the workers.

    Attributes:
        compression: What makes gradients smaller before they travel, if anything does.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.compression: Compression | None = None

    def sum(
        self, gradients: Sequence[Any], of: Owner | None = None, absent: Any = None
    ) -> list[Any]:
        """The sum of each gradient over all workers.

        Args:
            gradients: Tensors or `tf.IndexedSlices`, alike in number, dtype and shape on
                all workers; IndexedSlices may have any number of rows.
            of: Whose they are; where nobody says, they are not compressed.
            absent: Whether this worker's are to count as zeros, a bool tensor; None for no.

        Returns:
            A list like `gradients`, with the same bytes on every worker.

        Raises:
            CollectiveError: See `Communicator`.
        """

        def mask(some: list[Any]) -> list[Any]:
            return some if absent is None else unless(absent, some)

        compression = self.compression
        if compression is not None and of is not None and compression.acts_on(gradients, of):
            return compression.sum(mask(list(gradients)), of)
        return self._communicator.sum_gradients(gradients, mask)
