"""Brings the agents of a job together, and keeps them in touch.

The agent of node 0 hosts the `Server`; every agent, that one too, joins as a
`Client`. Everything runs in the event loop of the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from drumbeat.errors import RendezvousError
from drumbeat.launch import wire
from drumbeat.launch.joining import Joining, beat
from drumbeat.launch.rendezvous_server import LATE_S, Server
from drumbeat.launch.roster import (
    JobOver,
    Node,
    NodesLost,
    check_token,
    parse_roster,
    with_absent,
)

__all__ = ["LATE_S", "Client", "JobOver", "Node", "NodesLost", "Server"]


class Client:
    """One node's connection to the others. Made by `join` or `alone`.

    Attributes:
        job_id: Random name of this run of the job, the same on all nodes.
        roster: All nodes, by node rank; absent ones without a host and workers.
        events: What other agents told, as they passed it to `tell`, with the
            node rank of the teller under "from"; and {"type": "node_lost",
            "node_rank": k, "host": ..., "reason": ...} when a node drops out
            without goodbye, "node_left" when it leaves, and "rendezvous_lost"
            or "rendezvous_closed" with a "reason" when this node has lost touch
            with all others; with "again" where those are about to meet anew; and
            {"type": "node_joins", "node_rank": k, "host": ...} when a node that is absent
            waits to be let in when all meet anew.
        gone: Ranks of nodes that are known to be lost.
        lost: The first of these events that tells of a loss, not of a goodbye; None
            as long as all nodes can be reached or have left.
    """

    def __init__(
        self,
        roster: tuple[Node, ...],
        *,
        job_id: str,
        channel: wire.Channel | None,
        heartbeat_s: float = 2.0,
        lost_after_s: float = 10.0,
    ) -> None:
        self.roster = roster
        self.job_id = job_id
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.gone: set[int] = set()
        self.lost: dict[str, Any] | None = None
        self._channel = channel
        self._heartbeat_s = heartbeat_s
        self._lost_after_s = lost_after_s
        self._fences: dict[str, asyncio.Future[dict[str, str]]] = {}
        self._closed_because = ""
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    @classmethod
    def alone(cls, node: Node, job_id: str) -> Client:
        """The client of a job of one node: the same interface, no connection."""
        return cls((node,), job_id=job_id, channel=None)

    @classmethod
    async def join(
        cls,
        address: tuple[str, int],
        token: str,
        node: Node,
        num_nodes: int,
        *,
        timeout_s: float,
        on_waiting: Callable[[str], None],
        expected: Sequence[str] = (),
        stopped: asyncio.Event | None = None,
        ready: asyncio.Event | None = None,
        wanted: Collection[int] | None = None,
        sure: Collection[int] | None = None,
        waiting_every_s: float = 5.0,
        heartbeat_s: float = 2.0,
        lost_after_s: float = 10.0,
    ) -> Client:
        """Joins the job and returns when all of its nodes have.

        Retries while the server can't be reached, as machines start in any order.

        Args:
            address: Host name or address, and port, of the server.
            token: The shared secret.
            node: What this agent says of itself.
            num_nodes: How many nodes the job has.
            timeout_s: Deadline for all of them to be here, seconds.
            on_waiting: Called every `waiting_every_s` seconds with who is missing.
            expected: A name for each node rank for these messages, such as
                "worker 2 (10.0.0.7:2222)".
            stopped: Set when this node's user has stopped it: then the others, who wait
                too, are told that nothing will come of it.
            ready: Set when this node can start workers. Where the job goes on without it, it
                is not interrupted before.
            wanted: Ranks of the nodes to wait for, where not all have to come; None for all.
            sure: Those of them that are known to live.
            waiting_every_s: See `on_waiting`.
            heartbeat_s: A sign of life is sent this often.
            lost_after_s: A node is lost when none has come for so long.

        Raises:
            JobOver: The job went on without this node, and has succeeded.
            RendezvousError: At the deadline, saying who is missing or why the
                server could not be reached; at once if the tokens differ, if this
                node does not fit the others, or if the rendezvous was closed.
        """
        check_token(token)
        joining = Joining(
            address, token, node, num_nodes, tuple(expected), timeout_s, ready, wanted, sure
        )
        beside = [asyncio.create_task(joining.report(on_waiting, waiting_every_s))]
        if stopped is not None:
            beside.append(asyncio.create_task(joining.call_off(stopped)))
        try:
            channel, welcome = await joining.run(heartbeat_s, lost_after_s)
        finally:
            for task in beside:
                task.cancel()
        client = cls(
            with_absent(parse_roster(welcome["nodes"]), num_nodes),
            job_id=welcome["job_id"],
            channel=channel,
            heartbeat_s=heartbeat_s,
            lost_after_s=lost_after_s,
        )
        client._tasks = (
            asyncio.create_task(client._listen(channel)),
            asyncio.create_task(beat(channel, heartbeat_s)),
        )
        return client

    async def fence(
        self,
        name: str,
        contribution: dict[str, str],
        timeout_s: float | None,
        *,
        among: Collection[int] | None = None,
    ) -> dict[str, str]:
        """Waits until the nodes are at the fence `name`, and merges what they bring.

        Each name is used once; one that has failed stays failed.

        Args:
            name: The same on all of the nodes.
            contribution: What this node brings.
            timeout_s: Deadline, seconds from the arrival of the first node. None
                has no deadline of its own: the wait ends when a missing node
                leaves or is lost, or this node loses touch, which the heartbeats
                make sure of.
            among: Node ranks that take part, all of them if None. Must be the
                same on each, and hold this node.

        Raises:
            NodesLost: A missing node is lost, or this node has lost touch.
            RendezvousError: The deadline passed, a missing node has left, or two
                nodes bring different values for the same key. Names them.
        """
        channel = self._channel
        if channel is None:
            return dict(contribution)
        if self._closed_because:
            raise self._error(f"Can't wait for the other nodes: {self._closed_because}.")
        assert name not in self._fences, f"this node is at the fence {name!r} already"  # noqa: S101
        arrived: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._fences[name] = arrived
        request = {
            "type": "fence",
            "name": name,
            "values": contribution,
            "timeout_s": timeout_s,
            "among": None if among is None else sorted(among),
        }
        try:
            self._send(request)
            # The server's deadline knows who is missing; this one is for its silence.
            backstop_s = None if timeout_s is None else timeout_s + self._lost_after_s
            return await asyncio.wait_for(arrived, backstop_s)
        except asyncio.TimeoutError:
            raise RendezvousError(
                f"Waiting for the other nodes at {name!r} failed: the rendezvous did not answer "
                f"within {timeout_s:g} s."
            ) from None
        finally:
            self._fences.pop(name, None)

    async def tell(self, event: dict[str, Any]) -> None:
        """Sends `event`, a JSON object, to all other agents; no answer is awaited.

        Raises:
            RendezvousError: This node has lost touch with the others.
        """
        if self._channel is not None:
            self._send({"type": "tell", "event": event})

    async def leave(self, *, again: bool = False) -> None:
        """Says goodbye, so that the others do not take this node for lost. Repeatable.

        Args:
            again: To meet anew; the others then are told of a loss.
        """
        tasks, self._tasks = self._tasks, ()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None and tasks:
            with contextlib.suppress(OSError):
                self._channel.send({"type": "leave", "again": again})
            await self._channel.close()
            self._end("this node has left the job")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._channel is not None  # noqa: S101
        if self._closed_because:
            raise self._error(f"Can't reach the other nodes: {self._closed_because}.")
        try:
            self._channel.send(message)
        except OSError as error:
            raise NodesLost(f"Can't reach the other nodes: {error}.") from None

    def _error(self, text: str) -> RendezvousError:
        return RendezvousError(text) if self.lost is None else NodesLost(text)

    async def _listen(self, channel: wire.Channel) -> None:
        kind, again = "rendezvous_lost", True
        try:
            while True:
                message = await channel.receive(self._lost_after_s)
                if message["type"] == "closing":
                    kind, reason = "rendezvous_closed", str(message["reason"])
                    again = message.get("again") is True
                    break
                self._handle(message)
        except asyncio.TimeoutError:
            reason = (
                f"nothing was heard of the rendezvous at {channel.peer} for "
                f"{self._lost_after_s:g} s"
            )
        except (wire.WireError, OSError) as error:
            reason = f"the connection to the rendezvous at {channel.peer} was lost: {error}"
        channel.abort()
        if kind == "rendezvous_lost":
            self.gone.add(0)
        event = {"type": kind, "reason": reason, "again": again}
        if again and self.lost is None:
            self.lost = event
        self._end(reason)
        self.events.put_nowait(event)

    def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "event":
            event = message["event"]
            if event.get("type") == "node_lost":
                self.lost = self.lost or event
                if event.get("again") is not True:
                    self.gone.add(int(event["node_rank"]))
            self.events.put_nowait(event)
        elif message["type"] == "ping":
            with contextlib.suppress(RendezvousError):
                self._send({"type": "beat"})
        elif message["type"] == "fence":
            waiting = self._fences.get(message["name"])
            if waiting is None or waiting.done():
                return
            if "failed" in message:
                kind = NodesLost if message.get("lost") else RendezvousError
                waiting.set_exception(
                    kind(
                        f"Waiting for the other nodes at {message['name']!r} failed: "
                        f"{message['failed']}"
                    )
                )
            else:
                waiting.set_result(message["values"])

    def _end(self, reason: str) -> None:
        self._closed_because = reason
        for waiting in self._fences.values():
            if not waiting.done():
                waiting.set_exception(self._error(f"Waiting for the other nodes failed: {reason}."))
