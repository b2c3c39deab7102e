"""Fences of a job's agents: where they wait for each other, and merge what they bring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from drumbeat.launch import wire
from drumbeat.launch.roster import Node, missing_nodes


@dataclass
class _Fence:
    """A barrier that some nodes have reached."""

    among: tuple[int, ...]
    values: dict[int, dict[str, str]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


class Fences:
    """Those of one meeting, in the server's event loop.

    Args:
        num_nodes: How many nodes the job may have.
        nodes: Those that take part, by node rank.
        gone: What became of those that are no longer there.
        left: Those of them that said goodbye.
        send: Sends a message to a node, if it is there.
    """

    def __init__(
        self,
        num_nodes: int,
        nodes: Mapping[int, Node],
        gone: Mapping[int, str],
        left: Collection[int],
        send: Callable[[int, Mapping[str, object]], None],
    ) -> None:
        self._num_nodes = num_nodes
        self._nodes = nodes
        self._gone = gone
        self._left = left
        self._send = send
        self._fences: dict[str, _Fence] = {}
        self._failed_fences: dict[str, tuple[str, bool]] = {}

    def close(self) -> None:
        """Ends the deadlines."""
        for fence in self._fences.values():
            if fence.timer:
                fence.timer.cancel()

    def check(self) -> None:
        """After a node is gone."""
        for name in tuple(self._fences):
            self._check(name)

    def enter(self, node: Node, message: Mapping[str, Any]) -> None:
        """A node is at a fence."""
        name, timeout_s = message["name"], message["timeout_s"]
        if name in self._failed_fences:
            reason, lost = self._failed_fences[name]
            self._answer(node.node_rank, name, failed=reason, lost=lost)
            return
        among = message["among"]
        fence = self._fences.setdefault(
            name, _Fence(tuple(self._nodes) if among is None else tuple(among))
        )
        fence.values[node.node_rank] = message["values"]
        if fence.timer is None and timeout_s is not None:
            loop = asyncio.get_running_loop()
            fence.timer = loop.call_later(timeout_s, self._expire, name, timeout_s)
        self._check(name)

    def _check(self, name: str) -> None:
        fence = self._fences[name]
        missing = [rank for rank in fence.among if rank not in fence.values]
        gone = next((rank for rank in missing if rank in self._gone), None)
        if gone is not None:
            reason = f"{self._nodes[gone]} {self._gone[gone]}."
            self._fail(name, reason, lost=gone not in self._left)
        elif not missing:
            merged, conflict = self._merge(fence)
            if conflict:
                self._fail(name, conflict)
            else:
                self._end(name)
                self._answer_all(fence, name, merged)

    def _answer_all(self, fence: _Fence, name: str, merged: dict[str, str]) -> None:
        try:
            for rank in fence.values:
                self._answer(rank, name, values=merged)
        except wire.WireError as error:
            for rank in fence.values:
                self._answer(rank, name, failed=str(error))

    def _merge(self, fence: _Fence) -> tuple[dict[str, str], str | None]:
        merged: dict[str, str] = {}
        owners: dict[str, int] = {}
        for rank, values in sorted(fence.values.items()):
            for key, value in values.items():
                if merged.setdefault(key, value) != value:
                    first, second = self._nodes[owners[key]], self._nodes[rank]
                    return {}, (
                        f"the key {key!r} is {merged[key]!r} on {first} and {value!r} on {second}."
                    )
                owners.setdefault(key, rank)
        return merged, None

    def _expire(self, name: str, timeout_s: float) -> None:
        fence = self._fences[name]
        missing = [rank for rank in fence.among if rank not in fence.values]
        names = [str(self._nodes.get(rank, f"node {rank}")) for rank in range(self._num_nodes)]
        who = missing_nodes(missing, names)
        self._fail(name, f"after {timeout_s:g} s {who} had not arrived.")

    def _fail(self, name: str, reason: str, *, lost: bool = False) -> None:
        fence = self._end(name)
        # Bounded; the oldest are those nobody can still be on the way to.
        for old in list(self._failed_fences)[:-255]:
            del self._failed_fences[old]
        self._failed_fences[name] = reason, lost
        for rank in fence.values:
            self._answer(rank, name, failed=reason, lost=lost)

    def _end(self, name: str) -> _Fence:
        fence = self._fences.pop(name)
        if fence.timer:
            fence.timer.cancel()
        return fence

    def _answer(self, rank: int, name: str, **answer: object) -> None:
        self._send(rank, {"type": "fence", "name": name, **answer})
