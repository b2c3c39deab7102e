"""How late gradients come: what `drumbeat.metrics.staleness` shows."""

from __future__ import annotations

import logging

logger = logging.getLogger("drumbeat")


class Staleness:
    """Of the last fit with parameter servers in this process.

    Attributes:
        of_epochs: For each epoch, how many updates by other workers came, on average, between a
            step's reading of the variables and its update of them.
    """

    def __init__(self) -> None:
        self.of_epochs: tuple[float, ...] = ()

    def fit_begins(self) -> None:
        """Forgets an earlier fit."""
        self.of_epochs = ()

    def epoch_ended(self, late: float, steps: int) -> None:
        """Steps have been made, which updated the model.

        Args:
            late: Updates of others, summed over all steps.
            steps: How many there were.
        """
        if steps:
            self.of_epochs = (*self.of_epochs, late / steps)

    def tell(self) -> None:
        """Logs the mean."""
        if self.of_epochs:
            mean = sum(self.of_epochs) / len(self.of_epochs)
            logger.info(
                "Staleness: between a step's reading of the variables and its update came %.2f "
                "updates of other workers, on average.",
                mean,
            )


LATEST = Staleness()
