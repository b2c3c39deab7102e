"""This node among the others: the rendezvous, its ports, and goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drumbeat import __version__
from drumbeat.cluster.identity import shares_text
from drumbeat.control.restart import Kind
from drumbeat.errors import RendezvousError
from drumbeat.launch.failures import Failure
from drumbeat.launch.ports import PortReservation, network_interface, reserve_ports
from drumbeat.launch.rendezvous import LATE_S, Client, Node, NodesLost, Server
from drumbeat.launch.settings import RunSettings

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DELIVERY_S = 0.2
_PAUSE_POLL_S = 0.1
WAITING_EVERY_S = 5.0


class Meeting:
    """The agent's place in the job. With one node it needs no network.

    Attributes:
        client: The connection to the other agents, once `start` has returned.
        attempt: Number of the job's attempt, which what is told belongs to.
        joining: Ranks of absent nodes that wait for the others to meet anew.
        leaving: Ranks of nodes that won't come then.
        succeeded: The job has, so that the next goodbye is the last.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        on_waiting: Callable[[str], None],
        ready: asyncio.Event | None = None,
        wanted: frozenset[int] | None = None,
        sure: frozenset[int] | None = None,
    ) -> None:
        """Args: what to run; what to tell of a wait; see `Client.join` for the others."""
        self.attempt = 1
        self.joining: set[int] = set()
        self.leaving: set[int] = set()
        self.succeeded = False
        self._ready = ready
        self._wanted = wanted
        self._sure = sure
        self._settings = settings
        self._on_waiting = on_waiting
        self._server: Server | None = None
        self._client: Client | None = None
        self._ports: PortReservation | None = None
        self._told = False
        self._stopped = asyncio.Event()
        self._host = self._platform_host() or ("127.0.0.1" if settings.nodes == 1 else "")

    def another(self) -> Meeting:
        """The next meeting of the same node."""
        wanted, sure = self._wanted, self._sure
        if self._client is not None:
            wanted = (frozenset(self.present) | self.joining) - self.leaving
            sure = frozenset(self.present) - self._client.gone - self.leaving
        meeting = Meeting(
            self._settings,
            on_waiting=self._on_waiting,
            ready=self._ready,
            wanted=wanted,
            sure=sure,
        )
        # The name of a lost node 0 may be unknown until its replacement is there.
        meeting._host = self._host
        return meeting

    @property
    def client(self) -> Client:
        """The connection to the other agents."""
        assert self._client is not None, "start comes first"  # noqa: S101
        return self._client

    @property
    def present(self) -> tuple[int, ...]:
        """Ranks of the nodes that take part."""
        return tuple(node.node_rank for node in self.client.roster if not node.is_absent)

    @property
    def is_broken(self) -> bool:
        """Whether a node is lost, so that all have to meet anew."""
        return self._client is not None and self._client.lost is not None

    async def start(
        self, *, ports: int, timeout_s: float, waiting_every_s: float = WAITING_EVERY_S
    ) -> None:
        """Meets the agents of all nodes.

        Args:
            ports: How many ports this node's tasks need.
            timeout_s: Deadline for all of them to be here, seconds.
            waiting_every_s: Says so often who is missing.

        Raises:
            RendezvousError: They did not come in time, or do not fit.
        """
        settings = self._settings
        try:
            self._ports = reserve_ports(ports)
        except OSError as error:
            raise RendezvousError(f"No free port on this machine: {error}.") from None
        if settings.nodes == 1:
            self._client = Client.alone(self._node(self._host), secrets.token_hex(8))
            return
        assert settings.rendezvous is not None, "plan_run sees to it"  # noqa: S101
        if settings.node_rank == 0:
            self._server = await Server.start(
                settings.rendezvous,
                settings.token,
                settings.nodes,
                min_nodes=settings.min_nodes,
                timeout_s=timeout_s,
            )
        address = self._server.address if self._server else settings.rendezvous
        self._host = self._host or address_towards(settings.rendezvous)
        if settings.min_nodes < settings.nodes:
            timeout_s += LATE_S  # whoever hosts it decides, and may begin later
        self._client = await Client.join(
            address,
            settings.token,
            self._node(self._host),
            settings.nodes,
            timeout_s=timeout_s,
            on_waiting=self._on_waiting,
            waiting_every_s=waiting_every_s,
            expected=self._expected(),
            stopped=self._stopped,
            ready=self._ready,
            wanted=self._wanted,
            sure=self._sure,
        )

    def release_ports(self) -> None:
        """Gives the reserved ports to the tasks that are about to start.

        On Linux a server with SO_REUSEADDR can listen on a port that is still
        reserved (see `PortReservation`), so there it is kept until the end, and
        no other job can get it in between.
        """
        if self._ports is not None and sys.platform != "linux":
            self._ports.close()

    async def call_off(self) -> None:
        """Where nodes still wait for each other: tells them that this one's user has stopped it."""
        if self._client is None and self._settings.nodes > 1:
            self._stopped.set()
            await asyncio.sleep(_DELIVERY_S)

    async def pause(self, seconds: float) -> None:
        """Waits, but no longer than nothing new is heard of the other nodes."""
        events = self.client.events
        deadline = asyncio.get_running_loop().time() + seconds
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            heard = [events.get_nowait() for _ in range(events.qsize())]
            news = [event for event in heard if not self.is_old(event)]
            for event in news:
                events.put_nowait(event)
            if news:
                return
            await asyncio.sleep(min(_PAUSE_POLL_S, left_s))

    async def tell(self, event: dict[str, Any]) -> None:
        """Tells the other agents, if there are any and they can be reached."""
        if self._client is not None and self._settings.nodes > 1:
            with contextlib.suppress(RendezvousError):
                await self._client.tell({**event, "attempt": self.attempt})
                self._told = True

    def told_failure(self) -> Failure | None:
        """The first failure another node has told of that nobody has heard yet."""
        while self._client is not None and not self._client.events.empty():
            event = self._client.events.get_nowait()
            if event.get("type") == "failed":
                return Failure.from_event(event)
        return None

    def is_old(self, event: Mapping[str, Any]) -> bool:
        """Whether `event` is a worker's failure in an attempt before this one."""
        number = event.get("attempt")
        ended = event.get("kind") not in (Kind.STOPPED, Kind.MISTAKE, Kind.PREEMPTED)
        return isinstance(number, int) and number < self.attempt and ended

    def loss(self, event: Mapping[str, Any]) -> Failure | None:
        """The failure that an event of the rendezvous means; None for other events."""
        reason = str(event.get("reason", ""))
        host = self.client.roster[0]
        gone = {"node_rank": host.node_rank, "host": host.host}
        match event.get("type"):
            case "node_lost":
                text = f"Lost contact with it: {reason}."
                again = event.get("again") is True
                return self._dropped_out(event, text, Kind.NODE_LOST, consequence=again)
            case "node_left":
                return self._dropped_out(event, "It left the job.", Kind.STOPPED)
            case "rendezvous_closed" if event.get("again") is not True:
                text = f"Lost contact with it, and so with all others: {reason}."
                return self._dropped_out(gone, text, Kind.STOPPED)
            case "rendezvous_closed":
                # The cause is known by who has closed it, and told when all meet.
                text = f"It has closed the rendezvous: {reason}."
                return self._dropped_out(gone, text, Kind.NODE_LOST, consequence=True)
            case "rendezvous_lost":
                # Whoever hosts the rendezvous is gone, or the way to it.
                text = f"Lost contact with it, and so with all others: {reason}."
                return self._dropped_out(gone, text, Kind.NODE_LOST)
        return None

    def lost_failure(self, error: RendezvousError | None = None) -> Failure:
        """What is known of the loss after which all have to meet anew."""
        event = None if self._client is None else self._client.lost
        found = None if event is None else self.loss(event)
        return found or self.broken(error or NodesLost("A node was lost."))

    def broken(self, error: RendezvousError) -> Failure:
        """The failure that a fence's error means, until more is known."""
        kind = Kind.NODE_LOST if isinstance(error, NodesLost) else Kind.STOPPED
        return self._dropped_out({}, str(error), kind, consequence=True)

    def _dropped_out(
        self, event: Mapping[str, Any], text: str, kind: Kind, *, consequence: bool = False
    ) -> Failure:
        return Failure(
            name=f"node {event.get('node_rank', self._settings.node_rank)}",
            host=str(event.get("host", socket.gethostname())),
            code=1,
            text=text,
            consequence=consequence or kind is Kind.STOPPED,
            how="dropped out of the job",
            kind=kind,
        )

    async def close(self, *, again: bool = False) -> None:
        """Says goodbye and gives everything back.

        Args:
            again: The nodes are about to meet anew.
        """
        if self._told:
            # What was told last must be on its way to the others before the goodbye is.
            await asyncio.sleep(_DELIVERY_S)
        if again and self._server is not None:
            await self._server.close("all meet anew", again=True)
        if self._client is not None:
            await self._client.leave(again=again)
        if self._server is not None:
            await self._server.close(succeeded=self.succeeded)
        if self._ports is not None:
            self._ports.close()

    def _node(self, host: str) -> Node:
        settings = self._settings
        assert self._ports is not None  # noqa: S101
        return Node(
            node_rank=settings.node_rank,
            host=host,
            num_workers=len(self._ports.ports) - (settings.ps if settings.node_rank == 0 else 0),
            ports=self._platform_ports() or self._ports.ports,
            boot_id=_boot_id(),
            settings={
                "drumbeat": __version__,
                "backend": settings.backend,
                "collectives": settings.collectives,
                "ps": str(settings.ps),
                "strategy": settings.chosen_strategy,
                "devices_per_worker": str(settings.devices_per_worker),
                "keep_tf_strategies": str(settings.keep_tf_strategies),
                "strict_names": str(settings.strict_names),
                "exact": str(settings.exact),
                "shares": shares_text(settings.shares),
                "compress": str(settings.compress),
                "sync_every": str(settings.averaging),
                "seed": str(settings.seed),
                "max_restarts": str(settings.max_restarts),
                **self._size(),
                "snapshot_every": str(settings.snapshot_every),
            },
            interface=_interface(host),
        )

    def _size(self) -> dict[str, str]:
        settings = self._settings
        if settings.min_nodes == settings.nodes:
            return {}
        return {"workers": f"{settings.workers} a node, on {settings.min_nodes} nodes at least"}

    def _platform_ports(self) -> tuple[int, ...]:
        """The port that the platform gave to this task, if it can be used."""
        settings = self._settings
        cluster = settings.platform
        if cluster is None or cluster.task is None or settings.workers > 1 or settings.ps:
            return ()
        if settings.lone_task:
            return ()
        port = _split(cluster.address(cluster.task))[1]
        if settings.node_rank == 0 and settings.rendezvous and settings.rendezvous[1] == port:
            return ()  # the agents meet there
        return (port,)

    def _platform_host(self) -> str:
        """How the platform calls this machine; "" if it does not say."""
        cluster = self._settings.platform
        if cluster is None or cluster.task is None or self._settings.lone_task:
            return ""
        return _split(cluster.address(cluster.task))[0]

    def _expected(self) -> tuple[str, ...]:
        cluster = self._settings.platform
        if cluster is None:
            return ()
        return tuple(f"{task} ({cluster.address(task)})" for task in self._settings.platform_tasks)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def address_towards(address: tuple[str, int]) -> str:
    """The address of this machine on the way to another; nothing is sent.

    Raises:
        RendezvousError: The other's name is unknown, or there is no way to it.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return probe.getsockname()[0]
    except OSError as error:
        raise RendezvousError(
            f"There is no way from this machine to the rendezvous at {address[0]}:{address[1]}: "
            f"{error}. Expected an address of node 0 that every node can reach."
        ) from None


def _interface(host: str) -> str:
    try:
        return network_interface(host)
    except OSError:
        return ""


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()
