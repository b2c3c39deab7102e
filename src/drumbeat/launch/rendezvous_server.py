"""The meeting point of a job's agents, hosted by the agent of node 0."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from typing import Any

from drumbeat.errors import RendezvousError
from drumbeat.launch import wire
from drumbeat.launch.fences import Fences
from drumbeat.launch.ports import listen_at
from drumbeat.launch.roster import Node, check_token, missing_nodes, parse_node, refusal

_log = logging.getLogger(__name__)
_HALF_OPEN = 64
LATE_S = 15.0
"""So much later than lost nodes those may come that are known to live."""
_PING_BEATS = 2
_PING_POLL_S = 0.02


class Server:
    """Collects the nodes of a job, merges fences, passes events on, misses the lost.

    It survives whatever connects to it: only ends that know the token get past
    a handshake of small frames and a deadline.
    """

    def __init__(
        self, token: str, num_nodes: int, *, heartbeat_s: float, lost_after_s: float
    ) -> None:
        self._token = token
        self._num_nodes = num_nodes
        self._heartbeat_s = heartbeat_s
        self._lost_after_s = lost_after_s
        self._job_id = secrets.token_hex(8)
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._half_open = 0
        self._least = num_nodes
        self._due_s: float | None = None
        self._wanted: set[int] | None = None
        self._sure: set[int] | None = None
        self._nodes: dict[int, Node] = {}
        self._later: dict[int, Node] = {}
        self._channels: dict[int, wire.Channel] = {}
        self._started = False
        self._gone: dict[int, str] = {}
        self._left: set[int] = set()
        self._heard: Counter[int] = Counter()
        self._fences = Fences(num_nodes, self._nodes, self._gone, self._left, self._send)
        self._refused: list[str] = []

    @classmethod
    async def start(
        cls,
        address: tuple[str, int],
        token: str,
        num_nodes: int,
        *,
        min_nodes: int | None = None,
        timeout_s: float | None = None,
        heartbeat_s: float = 2.0,
        lost_after_s: float = 10.0,
    ) -> Server:
        """Listens at `address`; port 0 means any free one.

        Args:
            address: Where.
            token: The shared secret.
            num_nodes: How many nodes the job may have.
            min_nodes: How many it must have; all if None. With fewer than `num_nodes`
                the job starts when all are here whom a node that joins expects, and at
                the latest after `timeout_s`. Others may join later: the event
                "node_joins" tells of them, and they wait until all meet anew.
            timeout_s: See there.
            heartbeat_s: A sign of life is sent this often.
            lost_after_s: A node is lost when none has come for so long.

        A name, or an address that is not this machine's own (NAT), means all of
        its addresses: many systems resolve their own name to a loopback address,
        where nobody else could reach it.

        Raises:
            RendezvousError: The port is in use or not permitted, or `token` is empty.
        """
        server = cls(token, num_nodes, heartbeat_s=heartbeat_s, lost_after_s=lost_after_s)
        check_token(token)
        listening = listen_at(address)
        if min_nodes is not None and timeout_s is not None and min_nodes < num_nodes:
            server._least = min_nodes
            server._due_s = asyncio.get_running_loop().time() + timeout_s
            server._spawn(server._end_wait(timeout_s))
        server._listener = await asyncio.start_server(server._accept, sock=listening)
        server._spawn(server._beat())
        return server

    @property
    def address(self) -> tuple[str, int]:
        """Where an agent on the same machine reaches this server."""
        assert self._listener is not None  # noqa: S101
        host, port = self._listener.sockets[0].getsockname()[:2]
        return ("127.0.0.1" if host in ("::", "0.0.0.0") else host), port

    async def close(
        self,
        reason: str = "node 0 has closed the rendezvous",
        *,
        again: bool = False,
        succeeded: bool = False,
    ) -> None:
        """Tells all nodes that are still here `reason`, and frees the port.

        Args:
            reason: A part of a sentence.
            again: The nodes are to meet anew, at the same address.
            succeeded: The job has; for nodes that wait to join it.
        """
        if self._listener is not None:
            self._listener.close()
        self._fences.close()
        farewell = {"type": "closing", "reason": reason, "again": again, "succeeded": succeeded}
        self._broadcast(farewell)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
        self._channels.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._half_open >= max(_HALF_OPEN, 2 * self._num_nodes):
            writer.transport.abort()
            return
        self._spawn(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._half_open += 1
        node = None
        try:
            try:
                greeted = await self._greet(reader, writer)
            finally:
                self._half_open -= 1
            if greeted is None:
                writer.close()
                return
            channel, request = greeted
            node = await self._admit(channel, request)
        except asyncio.CancelledError:
            # An end that has not been told why would wait for an answer.
            if node is None:
                writer.transport.abort()
            raise
        if node is not None:
            await self._converse(node, channel)
        await channel.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[wire.Channel, dict[str, Any]] | None:
        peer = wire.peer_name(writer)
        try:
            channel = await wire.accept(reader, writer, self._token, timeout_s=self._lost_after_s)
            return channel, await channel.receive(self._lost_after_s)
        except (wire.TokenMismatch, wire.VersionMismatch) as error:
            self._note_refusal(peer, str(error))
        except wire.WireError as error:
            _log.warning("refused a connection from %s: %s", peer, error)
        except asyncio.TimeoutError:
            _log.warning("refused a connection from %s: it sent no complete greeting", peer)
        except OSError as error:
            # Health checks and port scans connect and say nothing.
            _log.debug("%s came and went: %s", peer, error)
        return None

    def _note_refusal(self, peer: str, reason: str) -> None:
        _log.warning("refused an agent at %s: %s", peer, reason)
        self._refused = [*self._refused[-3:], reason]
        self._announce()

    async def _admit(self, channel: wire.Channel, request: Mapping[str, Any]) -> Node | None:
        again = False
        try:
            node = parse_node(request.get("node"))
            await self._make_way(node.node_rank)
            here = {rank: other for rank, other in self._nodes.items() if rank not in self._gone}
            here |= self._later
            reason = refusal(node, request.get("num_nodes"), here, self._num_nodes)
        except RendezvousError as error:
            node, reason = None, str(error)
        if node is not None and reason is None and self._started:
            if node.node_rank not in self._nodes:
                return self._admit_later(node, channel)
            # It replaces one that is lost; the others will meet it as soon as they know that.
            reason, again = "the job has not noticed yet that it lost a node", True
        if node is None or reason is not None:
            if not again:
                self._note_refusal(channel.peer, reason or "")
            with contextlib.suppress(OSError):
                channel.send({"type": "refused", "reason": reason, "again": again})
            return None
        self._nodes[node.node_rank] = node
        self._channels[node.node_rank] = channel
        self._note_known(request)
        self._announce()
        return node

    def _admit_later(self, node: Node, channel: wire.Channel) -> Node:
        """Lets it wait here for the others to meet anew."""
        self._later[node.node_rank] = node
        self._channels[node.node_rank] = channel
        self._send(node.node_rank, {"type": "later"})
        return node

    def _note_known(self, request: Mapping[str, Any]) -> None:
        """What a node knows of the others."""
        if isinstance(request.get("wanted"), list):
            self._wanted = set(request["wanted"]) | (self._wanted or set())
        if isinstance(request.get("sure"), list):
            sure = set(request["sure"])
            self._sure = sure if self._sure is None else self._sure & sure

    def _is_complete(self) -> bool:
        wanted = self._wanted
        if self._due_s is None or wanted is None:
            wanted = set(range(self._num_nodes))
        if self._due_s is not None:
            late_s = asyncio.get_running_loop().time() - self._due_s
            if late_s >= 0:
                wanted = (self._sure or set()) if late_s < LATE_S else set()
        return wanted <= self._nodes.keys() and len(self._nodes) >= self._least

    async def _end_wait(self, timeout_s: float) -> None:
        """Starts with those that are here, if they are enough."""
        while (left_s := self._left_s()) > 0:
            await asyncio.sleep(left_s)
        self._announce()
        if not self._started and self._sure and not self._sure <= self._nodes.keys():
            # They live, and are about to end their workers.
            await asyncio.sleep(LATE_S)
            self._announce()
        if not self._started:
            missing = [rank for rank in range(self._num_nodes) if rank not in self._nodes]
            reason = (
                f"after {timeout_s:g} s {missing_nodes(missing, ())} had not come, and with "
                f"{len(self._nodes)} of {self._num_nodes} nodes the job would have fewer workers "
                f"than the least that --workers allows (expected at least {self._least} nodes)"
            )
            self._broadcast({"type": "closing", "reason": reason, "again": False})

    def _left_s(self) -> float:
        due_s = self._due_s or 0.0
        return max(0.0, due_s - asyncio.get_running_loop().time())

    async def _make_way(self, rank: int) -> None:
        """Removes the node with this rank if it is dead and nobody has noticed.

        A machine that crashed does not close its connections; the node may be back
        before they are missed.
        """
        channel = self._channels.get(rank)
        if channel is None:
            return
        heard = self._heard[rank]
        self._send(rank, {"type": "ping"})
        deadline = asyncio.get_running_loop().time() + _PING_BEATS * self._heartbeat_s
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_PING_POLL_S)
            if self._heard[rank] != heard or self._channels.get(rank) is not channel:
                return
        channel.abort()
        node = self._later.get(rank) or self._nodes[rank]
        self._remove(node, channel, "it did not answer when it was started again")

    def _announce(self) -> None:
        """Tells the waiting nodes who is missing, or, once, that all are here."""
        if self._started:
            return
        if self._is_complete():
            self._started = True
            nodes = [asdict(node) for node in self._nodes.values()]
            self._broadcast({"type": "roster", "job_id": self._job_id, "nodes": nodes})
            return
        missing = [rank for rank in range(self._num_nodes) if rank not in self._nodes]
        message = {"type": "waiting", "missing": missing, "refused": self._refused}
        if self._due_s is not None:
            message["left_s"] = self._left_s()
        self._broadcast(message)

    async def _converse(self, node: Node, channel: wire.Channel) -> None:
        reason, again = "", False
        try:
            while True:
                message = await channel.receive(self._lost_after_s)
                self._heard[node.node_rank] += 1
                if message.get("type") == "leave":
                    again = message.get("again") is True
                    reason = "it meets the others anew" if again else ""
                    break
                self._handle(node, message)
        except asyncio.TimeoutError:
            reason = f"nothing was heard of it for {self._lost_after_s:g} s"
        except (wire.WireError, OSError) as error:
            reason = str(error)
        except (KeyError, TypeError) as error:
            reason = f"it sent a malformed message ({error!r})"
        self._remove(node, channel, reason, again=again)

    def _remove(
        self, node: Node, channel: wire.Channel, lost_because: str, *, again: bool = False
    ) -> None:
        rank = node.node_rank
        if self._channels.get(rank) is not channel:
            return  # removed already, to make way
        del self._channels[rank]
        if self._later.pop(rank, None) is not None:
            return
        if not self._started:
            # It may come back: a restarted machine is a machine that joins.
            self._nodes.pop(rank, None)
            self._announce()
            return
        self._gone[rank] = f"was lost: {lost_because}" if lost_because else "has left the job"
        event: dict[str, object] = {"node_rank": rank, "host": node.host, "reason": lost_because}
        event["again"] = again
        event["type"] = "node_lost" if lost_because else "node_left"
        if not lost_because:
            self._left.add(rank)
        elif not again:
            _log.info("%s was lost: %s", node, lost_because)
        self._broadcast({"type": "event", "event": event})
        self._fences.check()

    def _handle(self, node: Node, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if node.node_rank in self._later:
            if kind == "ready":
                event = {"type": "node_joins", "node_rank": node.node_rank, "host": node.host}
                self._broadcast({"type": "event", "event": event})
        elif kind == "fence":
            self._fences.enter(node, message)
        elif kind == "tell":
            event = {**message["event"], "from": node.node_rank}
            self._broadcast({"type": "event", "event": event}, but=node.node_rank)
        elif kind == "call off" and not self._started:
            reason = f"{node} was stopped by its user"
            self._broadcast({"type": "closing", "reason": reason, "again": False})
        elif kind != "beat":
            _log.warning("%s sent an unknown message %r", node, kind)

    def _broadcast(self, message: Mapping[str, object], *, but: int = -1) -> None:
        for rank in tuple(self._channels):
            if rank != but:
                self._send(rank, message)

    def _send(self, rank: int, message: Mapping[str, object]) -> None:
        channel = self._channels.get(rank)
        # A closed connection is noticed, and dealt with, where it is read.
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.send(message)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._broadcast({"type": "beat"})
