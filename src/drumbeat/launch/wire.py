"""Authenticated messages between the agents of a job, over an asyncio stream.

A frame is four bytes of length, most significant first, and that many bytes of
body. The first frames are a handshake: each side sends a fresh nonce and proves
with HMAC-SHA256 that it knows the shared token, the client first, so that a
port scanner learns nothing it could test guesses of the token on. The role is
part of every code, so a proof or a frame sent back to its author is refused.
After that each body is a code (RFC 2104) over the role, a counter and the
message, keyed for this connection: nothing can be injected, replayed, dropped
or reordered unnoticed. Messages are JSON objects. They are not encrypted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any

from drumbeat.errors import RendezvousError

PROTOCOL = 1
HANDSHAKE_BYTES = 4096
FRAME_BYTES = 4 * 1024 * 1024
UNSENT_BYTES = 16 * 1024 * 1024

_CODE_BYTES = hashlib.sha256().digest_size
_NONCE_BYTES = 32
_PEER_ROLE = {"client": "server", "server": "client"}


class WireError(RendezvousError):
    """The other end of a connection does not follow the protocol."""


class TokenMismatch(WireError):
    """The other end does not know the token of this job."""


class VersionMismatch(WireError):
    """The other end speaks another version of the protocol."""


class Channel:
    """One authenticated connection. Made by `connect` and `accept`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        key: bytes,
        role: str,
    ) -> None:
        self.peer = peer_name(writer)
        self._reader = reader
        self._writer = writer
        self._key = key
        self._role = role
        self._sent = 0
        self._received = 0

    def send(self, message: Mapping[str, object]) -> None:
        """Queues `message`; it is written as the event loop turns.

        Raises:
            WireError: The message is larger than `FRAME_BYTES`.
            ConnectionError: The connection is closed, or the other end reads so
                slowly that more than `UNSENT_BYTES` wait for it.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        if len(text) + _CODE_BYTES > FRAME_BYTES:
            raise WireError(
                f"A message of {len(text)} bytes for {self.peer} is larger than the "
                f"{FRAME_BYTES} bytes that agents accept."
            )
        if self._writer.is_closing():
            raise ConnectionError("the connection is closed")
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES:
            self.abort()
            raise ConnectionError(f"more than {UNSENT_BYTES} bytes were waiting to be sent")
        code = _frame_code(self._key, self._role, self._sent, text)
        self._sent += 1
        _write_frame(self._writer, code + text)

    async def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next message.

        Raises:
            WireError: The frame is too large, forged, or no JSON object.
            ConnectionError: The connection ended.
            asyncio.TimeoutError: Nothing complete came within `timeout_s`
                seconds. The channel can't be read any more.
        """
        body = await asyncio.wait_for(_read_frame(self._reader, FRAME_BYTES), timeout_s)
        code, text = body[:_CODE_BYTES], body[_CODE_BYTES:]
        expected = _frame_code(self._key, _PEER_ROLE[self._role], self._received, text)
        if not hmac.compare_digest(code, expected):
            raise WireError(f"{self.peer} sent a frame whose authentication code is wrong.")
        self._received += 1
        return _parse(text, self.peer)

    def abort(self) -> None:
        """Drops the connection and whatever was not sent yet."""
        self._writer.transport.abort()

    async def close(self, timeout_s: float = 1.0) -> None:
        """Sends what is queued, for at most `timeout_s` seconds, and closes."""
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), timeout_s)
        except (OSError, asyncio.TimeoutError):
            self.abort()


async def connect(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, *, timeout_s: float
) -> Channel:
    """The client's side of the handshake.

    Raises:
        TokenMismatch: The two ends were given different tokens.
        VersionMismatch: The other end speaks another version.
        WireError: The other end is no drumbeat server.
        ConnectionError: It closed the connection.
        asyncio.TimeoutError: It did not answer within `timeout_s` seconds.
    """
    return await asyncio.wait_for(_connect(reader, writer, token), timeout_s)


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, *, timeout_s: float
) -> Channel:
    """The server's side of the handshake. Raises as `connect` does."""
    return await asyncio.wait_for(_accept(reader, writer, token), timeout_s)


def peer_name(writer: asyncio.StreamWriter) -> str:
    """Address of the other end, for messages: "10.0.0.7:40312"."""
    peer = writer.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else "a socket"


async def _connect(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
) -> Channel:
    peer = peer_name(writer)
    mine = secrets.token_hex(_NONCE_BYTES)
    _write_message(writer, {"drumbeat": PROTOCOL, "nonce": mine})
    challenge = await _read_message(reader, peer)
    _check_version(challenge, peer)
    nonces = _nonces(client=mine, server=_nonce(challenge, peer))
    _write_message(writer, {"proof": _code(token.encode(), b"client", nonces).hex()})
    answer = await _read_message(reader, peer)
    proof = _code(token.encode(), b"server", nonces).hex()
    if not _same(answer.get("proof"), proof):
        raise TokenMismatch(
            f"The rendezvous at {peer} and this agent were given different tokens. Set "
            "DRUMBEAT_TOKEN to the same value on every machine of the job and start again."
        )
    return Channel(reader, writer, key=_session_key(token, nonces), role="client")


async def _accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
) -> Channel:
    peer = peer_name(writer)
    hello = await _read_message(reader, peer)
    mine = secrets.token_hex(_NONCE_BYTES)
    # Sent even to another version, which then can say so to its user.
    _write_message(writer, {"drumbeat": PROTOCOL, "nonce": mine})
    _check_version(hello, peer)
    nonces = _nonces(client=_nonce(hello, peer), server=mine)
    answer = await _read_message(reader, peer)
    if not _same(answer.get("proof"), _code(token.encode(), b"client", nonces).hex()):
        _write_message(writer, {"refused": "token"})
        raise TokenMismatch(f"{peer} does not have the token of this job (DRUMBEAT_TOKEN).")
    _write_message(writer, {"proof": _code(token.encode(), b"server", nonces).hex()})
    return Channel(reader, writer, key=_session_key(token, nonces), role="server")


def _check_version(message: dict[str, Any], peer: str) -> None:
    if "drumbeat" not in message:
        raise WireError(f"{peer} sent JSON that is not a drumbeat greeting.")
    if message["drumbeat"] != PROTOCOL:
        raise VersionMismatch(
            f"{peer} speaks version {message['drumbeat']!r:.20} of drumbeat's protocol, this agent "
            f"version {PROTOCOL}. Install the same version of drumbeat on every machine."
        )


def _nonce(message: dict[str, Any], peer: str) -> str:
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or len(nonce) != 2 * _NONCE_BYTES:
        raise WireError(f"{peer} sent a greeting without a nonce of {_NONCE_BYTES} bytes.")
    return nonce


def _nonces(*, client: str, server: str) -> bytes:
    # Both have a fixed length, so the concatenation is unambiguous.
    return client.encode() + server.encode()


def _session_key(token: str, nonces: bytes) -> bytes:
    return _code(token.encode(), b"session", nonces)


def _frame_code(key: bytes, role: str, counter: int, text: bytes) -> bytes:
    return _code(key, role.encode(), counter.to_bytes(8, "big") + text)


def _code(key: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.new(key, purpose + b"\0" + data, hashlib.sha256).digest()


def _same(received: object, expected: str) -> bool:
    return isinstance(received, str) and hmac.compare_digest(received.encode(), expected.encode())


def _write_message(writer: asyncio.StreamWriter, message: Mapping[str, object]) -> None:
    _write_frame(writer, json.dumps(message).encode())


def _write_frame(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(len(body).to_bytes(4, "big") + body)


async def _read_message(reader: asyncio.StreamReader, peer: str) -> dict[str, Any]:
    return _parse(await _read_frame(reader, HANDSHAKE_BYTES), peer)


async def _read_frame(reader: asyncio.StreamReader, limit_bytes: int) -> bytes:
    try:
        header = await reader.readexactly(4)
        size_bytes = int.from_bytes(header, "big")
        if size_bytes > limit_bytes:
            raise WireError(
                f"A frame starts with {header!r}, a length of {size_bytes} bytes; at most "
                f"{limit_bytes} are accepted. The other end probably is not drumbeat"
            )
        return await reader.readexactly(size_bytes)
    except asyncio.IncompleteReadError:
        raise ConnectionError("the other end closed the connection") from None


def _parse(text: bytes, peer: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError(f"{peer} sent a frame that is not JSON: {text[:40]!r}.") from None
    if not isinstance(message, dict):
        raise WireError(f"{peer} sent {type(message).__name__}, expected a JSON object.")
    return message
