"""Tries to reach addresses, and a small server that can be reached and tells its time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterable

from drumbeat.control.doctor.places import NO_NAME, NO_WAY, OPEN, OTHER, REFUSED, TIMEOUT, Reach
from drumbeat.errors import RendezvousError
from drumbeat.launch.ports import listen_at

PROBE_TIMEOUT_S = 5.0
_AT_ONCE = 64
_LINE_BYTES = 1024
_HELLO = b"drumbeat doctor\n"


async def probe(
    address: tuple[str, int], *, timeout_s: float = PROBE_TIMEOUT_S, mark: str | None = None
) -> Reach:
    """Connects to `address` and says how it ended.

    Args:
        address: Host and port.
        timeout_s: Deadline of all of it.
        mark: What the node's `Beacon` says; None where anything may listen there.
    """
    began_s = time.monotonic()

    def ended(state: str, detail: str = "", **more: object) -> Reach:
        wait_ms = 1000 * (time.monotonic() - began_s)
        if state == TIMEOUT:
            wait_ms = 1000 * timeout_s
        return Reach(state=state, ips=ips, wait_ms=wait_ms, detail=detail, **more)  # type: ignore[arg-type]

    ips: tuple[str, ...] = ()
    deadline_s = began_s + timeout_s
    try:
        ips = await asyncio.wait_for(_resolve(address), timeout_s)
    except (OSError, UnicodeError):  # a name that IDNA refuses is unknown, too
        return ended(NO_NAME)
    except asyncio.TimeoutError:
        return ended(NO_NAME, f"its resolver did not answer within {timeout_s:g} s")
    try:
        opening = asyncio.open_connection(ips[0], address[1])
        reader, writer = await asyncio.wait_for(opening, max(0.1, deadline_s - time.monotonic()))
    except asyncio.TimeoutError:
        return ended(TIMEOUT)
    except ConnectionRefusedError:
        return ended(REFUSED)
    except OSError as error:
        what = os.strerror(error.errno).lower() if error.errno else str(error)
        return ended(TIMEOUT if error.errno == errno.ETIMEDOUT else NO_WAY, what)
    connected = ended(OPEN)
    try:
        if mark is None:
            return connected
        left_s = max(0.1, deadline_s - time.monotonic())
        said, ahead_s = await asyncio.wait_for(_ask(reader, writer), left_s)
        if said != mark:
            return ended(OTHER)
        return ended(OPEN, ahead_s=ahead_s)
    except (OSError, ValueError, asyncio.TimeoutError):
        return ended(OTHER)
    finally:
        writer.transport.abort()


async def probe_all(addresses: Iterable[str], *, timeout_s: float) -> dict[str, Reach]:
    """As `probe`, for addresses as "host:port", some at a time."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(address: str) -> Reach:
        host, _, port = address.rpartition(":")
        async with gate:
            return await probe((host.strip("[]"), int(port)), timeout_s=timeout_s)

    wanted = list(dict.fromkeys(addresses))
    found = await asyncio.gather(*(one(address) for address in wanted))
    return dict(zip(wanted, found, strict=True))


async def _resolve(address: tuple[str, int]) -> tuple[str, ...]:
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
    # IPv4 first, as most services listen there alone.
    infos = sorted(infos, key=lambda info: info[0] == socket.AF_INET6)
    return tuple(dict.fromkeys(str(info[4][0]) for info in infos))


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, float]:
    """What the beacon says, and by how much its clock is ahead of this one.

    The way back is taken to be as long as the way there, as NTP does (RFC 5905).
    """
    sent_s = time.time()
    writer.write(_HELLO)
    line = await reader.readline()
    got_s = time.time()
    said = json.loads(line[:_LINE_BYTES])
    if not isinstance(said, dict):
        raise ValueError("no beacon")
    return str(said.get("mark")), float(said.get("time", 0)) - (sent_s + got_s) / 2


class Beacon:
    """Listens on a port of all addresses, and tells everyone its mark and its time."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._servers: list[asyncio.Server] = []
        self.ports: tuple[int, ...] = ()

    async def start(self, ports: Iterable[int] = ()) -> None:
        """Listens at one port that the system chooses, and at those of `ports` that are free.

        Raises:
            RendezvousError: The system has no port left.
        """
        for port in (0, *ports):
            try:
                listening = listen_at(("", port))
            except RendezvousError:
                if port == 0:
                    raise
                continue
            server = await asyncio.start_server(self._answer, sock=listening, limit=_LINE_BYTES)
            self._servers.append(server)
            self.ports += (server.sockets[0].getsockname()[1],)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
            if await asyncio.wait_for(reader.readline(), PROBE_TIMEOUT_S) == _HELLO:
                said = {"mark": self._mark, "time": time.time()}
                writer.write(json.dumps(said).encode() + b"\n")
                await writer.drain()
        writer.close()

    def close(self) -> None:
        """Stops listening."""
        for server in self._servers:
            server.close()


def addresses_of(host: str) -> tuple[str, ...]:
    """What a name stands for; nothing where it is unknown."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(info[4][0]) for info in infos))


def is_here(host: str) -> bool | None:
    """Whether `host` is an address of this machine; None where its name is unknown."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, place in infos:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as own:
            own.bind((place[0], 0, *place[2:]))
            return True
    return False


def why_busy(port: int) -> str:
    """Why nothing can listen at a port of this machine; "" where it can."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} is in use by another process of this machine"
        return f"port {port}: {(error.strerror or str(error)).lower()}"
    return ""
