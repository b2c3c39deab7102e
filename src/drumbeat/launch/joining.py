"""The way of one agent into the rendezvous: retries, reports who is missing, gives up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

from drumbeat.errors import RendezvousError
from drumbeat.launch import wire
from drumbeat.launch.roster import JobOver, Node, missing_nodes

_RETRY_S = 0.5
_SLACK_S = 20.0  # Of the server, for nodes that live but are late.
_ENDED = "The job has failed or was stopped while this node waited to be let in."


class Joining:
    """The way into a rendezvous, up to the roster."""

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        node: Node,
        num_nodes: int,
        expected: tuple[str, ...],
        timeout_s: float,
        ready: asyncio.Event | None,
        wanted: Collection[int] | None,
        sure: Collection[int] | None,
    ) -> None:
        self._address = address
        self._where = f"{address[0]}:{address[1]}"
        self._token = token
        self._node = node
        self._num_nodes = num_nodes
        self._expected = expected
        self._timeout_s = timeout_s
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._problem = "it has not answered yet"
        self._missing: list[int] | None = None
        self._refused: list[str] = []
        self._channel: wire.Channel | None = None
        self._ready = ready
        self._known = {"wanted": wanted, "sure": sure}
        self._later = False

    async def report(self, on_waiting: Callable[[str], None], every_s: float) -> None:
        """Calls `on_waiting` with the state of things until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            on_waiting(f"waiting for {self._state()}, {max(0.0, self._left_s()):.0f} s left")

    async def call_off(self, stopped: asyncio.Event) -> None:
        """Has all that wait here give up, once its user has stopped this node."""
        await stopped.wait()
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send({"type": "call off"})

    async def run(
        self, heartbeat_s: float, lost_after_s: float
    ) -> tuple[wire.Channel, dict[str, Any]]:
        """The channel and the server's message with the roster. Raises as `Client.join`."""
        while self._left_s() > 0:
            channel = await self._try_to_connect(lost_after_s)
            if channel is not None:
                welcome = None
                try:
                    welcome = await self._wait_for_all(channel, heartbeat_s, lost_after_s)
                finally:
                    if welcome is None:
                        channel.abort()
                if welcome is not None:
                    return channel, welcome
                if self._left_s() <= 0:
                    break
            self._missing, self._later = None, False
            await asyncio.sleep(min(_RETRY_S, max(0.0, self._left_s())))
        raise RendezvousError(self._failure())

    async def _try_to_connect(self, lost_after_s: float) -> wire.Channel | None:
        patience_s = max(0.01, min(lost_after_s, self._left_s()))
        writer = None
        try:
            opening = asyncio.open_connection(*self._address)
            reader, writer = await asyncio.wait_for(opening, patience_s)
            return await wire.connect(reader, writer, self._token, timeout_s=patience_s)
        except (wire.TokenMismatch, wire.VersionMismatch):
            raise
        except wire.WireError as error:
            self._problem = f"what listens there is not drumbeat: {error}"
        except asyncio.TimeoutError:
            self._problem = "no answer" if writer is None else "it accepts, but does not answer"
        except socket.gaierror:
            self._problem = f"the name {self._address[0]!r} can't be resolved"
        except OSError as error:
            self._problem = os.strerror(error.errno).lower() if error.errno else str(error)
        if writer is not None:
            writer.transport.abort()
        return None

    async def _wait_for_all(
        self, channel: wire.Channel, heartbeat_s: float, lost_after_s: float
    ) -> dict[str, Any] | None:
        request = {"type": "join", "node": asdict(self._node), "num_nodes": self._num_nodes}
        request |= {key: sorted(ranks) for key, ranks in self._known.items() if ranks is not None}
        beating = asyncio.create_task(beat(channel, heartbeat_s))
        knocking: asyncio.Task[None] | None = None
        try:
            channel.send(request)
            self._channel = channel
            while (left_s := self._left_s()) > 0:
                message = await channel.receive(min(lost_after_s, left_s))
                if self._later:
                    self._extend(self._timeout_s)  # its heartbeats vouch for the job
                match message["type"]:
                    case "roster":
                        return message
                    case "waiting":
                        self._missing, self._refused = message["missing"], message["refused"]
                        if "left_s" in message:
                            # Its wait decides, and begins when it does.
                            self._extend(message["left_s"] + _SLACK_S)
                    case "later":
                        self._later = True
                        knocking = knocking or asyncio.create_task(self._knock(channel))
                    case "ping":
                        channel.send({"type": "beat"})
                    case "refused" | "closing" as kind:
                        reason = _turned_away(kind, str(message["reason"]))
                        if message.get("succeeded") is True:
                            raise JobOver(reason)
                        if message.get("again") is not True:
                            reason = _ENDED if self._later else reason
                            raise RendezvousError(reason)
                        self._problem = reason
                        break
        except asyncio.TimeoutError:
            self._problem = "it fell silent"
        except OSError as error:
            self._problem = f"the connection was lost: {error}"
        finally:
            self._channel = None
            beating.cancel()
            if knocking is not None:
                knocking.cancel()
        return None

    async def _knock(self, channel: wire.Channel) -> None:
        """Asks to be let in as soon as this node can start workers."""
        if self._ready is not None:
            await self._ready.wait()
        with contextlib.suppress(OSError):
            channel.send({"type": "ready"})

    def _extend(self, seconds: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self._deadline = max(self._deadline, now_s + seconds)

    def _left_s(self) -> float:
        return self._deadline - asyncio.get_running_loop().time()

    def _state(self) -> str:
        if self._later:
            return "the job, which has begun without this node, to let it in"
        if self._missing is None:
            return f"the rendezvous at {self._where} ({self._problem})"
        here = self._num_nodes - len(self._missing)
        refused = f" (refused: {self._refused[-1]})" if self._refused else ""
        names = missing_nodes(self._missing, self._expected)
        return f"{names}, {here} of {self._num_nodes} are here{refused}"

    def _failure(self) -> str:
        if self._missing is None:
            return (
                f"{self._node} could not join the rendezvous at {self._where} within "
                f"{self._timeout_s:g} s: {self._problem}. Expected the agent of node 0 to listen "
                "there. Check that it has been started, that every machine was given this "
                "address, that it can be reached from here (firewall, network policy, DNS), and "
                "that the deadline covers the slowest machine's start."
            )
        here = self._num_nodes - len(self._missing)
        refused = "".join(f" Refused meanwhile: {reason}" for reason in self._refused)
        names = missing_nodes(self._missing, self._expected)
        return (
            f"After {self._timeout_s:g} s {names} had not joined the rendezvous at {self._where}; "
            f"{here} of {self._num_nodes} were there. Check that `drumbeat run` was started on "
            "each machine with its own node rank, that it can reach this address (firewall, "
            "network policy, DNS), and that the deadline covers the slowest machine's "
            f"start.{refused}"
        )


def _turned_away(kind: str, reason: str) -> str:
    return reason if kind == "refused" else f"The rendezvous was closed: {reason}."


async def beat(channel: wire.Channel, every_s: float) -> None:
    """Sends a sign of life every `every_s` seconds until the connection closes."""
    # A closed connection is noticed where it is read.
    with contextlib.suppress(OSError):
        while True:
            await asyncio.sleep(every_s)
            channel.send({"type": "beat"})
