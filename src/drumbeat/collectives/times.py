"""What collectives cost a worker, counted as they go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CollectiveTimes:
    """Sums over all collectives of a communicator so far; they only grow.

    Attributes:
        waiting_s: From this worker's arrival at a collective until all had come.
        transfer_s: From then until the results were there, and what compressing gradients took.
        calls: Collectives that were begun.
        bytes_sent: What this worker brought to them, before any algorithm's copies.
    """

    waiting_s: float = 0.0
    transfer_s: float = 0.0
    calls: int = 0
    bytes_sent: int = 0

    @property
    def spent_s(self) -> float:
        """All of the time spent in collectives, seconds."""
        return self.waiting_s + self.transfer_s
