"""Communicator of a worker that is alone."""

from __future__ import annotations

from typing import Any

from drumbeat.collectives.bridge import Bridge
from drumbeat.collectives.calls import Call
from drumbeat.collectives.communicator import Communicator


class LocalCommunicator(Communicator):
    """Returns what it is given, after the same checks of op, root and dtype as the others."""

    def __init__(self) -> None:
        """Stores."""
        super().__init__(rank=0, size=1, timeout_s=0.0, bridge=Bridge(on_device=False))

    def _agree(self, call: Call) -> None:
        raise AssertionError("a single worker has no one to agree with")

    def _reduce(self, call: Call, values: list[Any], op: str, prepared: Any) -> list[Any]:
        raise AssertionError("a single worker has nothing to reduce")

    def _broadcast(self, call: Call, values: list[Any], root: int) -> list[Any]:
        raise AssertionError("a single worker has no one to broadcast to")

    def _gather(self, call: Call, values: list[Any]) -> list[Any]:
        raise AssertionError("a single worker has nothing to gather")

    def _swap(self, call: Call, rows: Any, peers: Any) -> Any:
        raise AssertionError("a single worker has no one to swap with")
