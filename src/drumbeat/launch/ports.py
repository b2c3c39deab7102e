"""Local addresses: ports to reserve or listen at, the interface that carries an address."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from types import TracebackType

from drumbeat.errors import RendezvousError

_SIOCGIFADDR = 0x8915
_RDMA_DEVICES = Path("/sys/class/infiniband")


class PortReservation:
    """TCP ports that no other reservation and no outgoing connection gets.

    Each port is bound, without listening, on all addresses, since TensorFlow's
    servers listen on all of them. On Linux a server that sets SO_REUSEADDR, as
    gRPC and Python's `asyncio` do, can bind and listen while the reservation is
    still held, so there need not be any moment at which the port is free.
    """

    def __init__(self, sockets: tuple[socket.socket, ...]) -> None:
        self._sockets = sockets
        self.ports: tuple[int, ...] = tuple(s.getsockname()[1] for s in sockets)

    def close(self) -> None:
        """Gives the ports back. Can be called again."""
        for held in self._sockets:
            held.close()

    def __enter__(self) -> PortReservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def reserve_ports(count: int) -> PortReservation:
    """Reserves `count` free TCP ports until the result is closed.

    Raises:
        OSError: The machine has no port left.
    """
    with contextlib.ExitStack() as stack:
        sockets = tuple(stack.enter_context(_bound_socket()) for _ in range(count))
        stack.pop_all()
    return PortReservation(sockets)


def network_interface(host: str) -> str:
    """Name of the interface of this machine that has the address `host`, or "".

    Returns "" when `host` is not an IPv4 address of an interface of this machine
    (the name of a service, an address behind NAT), on other systems than Linux,
    and on machines with RDMA devices: there the choice is better left to UCX.

    Raises:
        OSError: `host` is a name that can't be resolved.
    """
    if _RDMA_DEVICES.is_dir() and any(_RDMA_DEVICES.iterdir()):
        return ""
    wanted = {info[4][0] for info in socket.getaddrinfo(host, None, socket.AF_INET)}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if _interface_address(probe, name) in wanted:
                return name
    return ""


def _interface_address(probe: socket.socket, name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    try:
        return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
    except OSError:
        return None


def _bound_socket() -> socket.socket:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind(("", 0))
    except OSError:
        held.close()
        raise
    return held


def listen_at(address: tuple[str, int]) -> socket.socket:
    """A socket that listens at `address`, for the rendezvous.

    A name, or an address that is not this machine's own (NAT), means all of its
    addresses.

    Raises:
        RendezvousError: The port is in use or not permitted.
    """
    host, port = address
    try:
        return _bind(host if _is_literal(host) else "", port)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise _cannot_listen(error, address) from None
    try:
        return _bind("", port)
    except OSError as error:
        raise _cannot_listen(error, address) from None


def _bind(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _cannot_listen(error: OSError, address: tuple[str, int]) -> RendezvousError:
    host, port = address
    if error.errno == errno.EADDRINUSE:
        return RendezvousError(
            f"Port {port}, at which node 0 should host the rendezvous ({host}:{port}), is in use "
            "by another process. End that process (perhaps an earlier run), or give every machine "
            "another port with --rendezvous HOST:PORT."
        )
    return RendezvousError(
        f"Node 0 can't host the rendezvous at {host}:{port}: {error.strerror or error}. Give every "
        "machine another address with --rendezvous HOST:PORT."
    )
