"""What every way of compressing sums of gradients has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.residuals import Group


class Method(ABC):
    """Sums the gradients of one group over the workers, in fewer bytes.

    Error feedback: what a worker doesn't send of a gradient it adds to the next one. So
    over any number of steps, what was returned plus the residuals that all workers hold is
    the sum of the gradients, but for float32's rounding.

    Whatever happens, all workers return the same bytes. If something among the sums is
    infinite or not a number, as where a scaled loss was too large, all workers leave their
    residuals as they were: the step doesn't count, for the residuals as for the optimizer.
    """

    def __init__(self, communicator: Communicator, group: Group) -> None:
        self._communicator = communicator
        self._group = group
        self._spare = [np.empty_like(memory.array) for memory in group.residuals]

    def sum(self, gradients: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        """The sums over all workers, which must all call this.

        Args:
            gradients: float32, in the group's shapes.
            results: The same; sums are written into them.

        Raises:
            CollectiveError: See `Communicator`.
        """
        residuals = [memory.array for memory in self._group.residuals]
        left = self._spare
        with np.errstate(all="ignore"):
            if not self._sum(gradients, residuals, left, results):
                return
        for memory, array in zip(self._group.residuals, left, strict=True):
            memory.array = array
        self._spare = residuals

    @abstractmethod
    def _sum(
        self,
        gradients: Sequence[np.ndarray],
        residuals: Sequence[np.ndarray],
        left: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
    ) -> bool:
        """Writes sums into `results` and new residuals into `left`; whether all is finite."""


def flat(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Views with one dimension."""
    return [array.reshape(-1) for array in arrays]
