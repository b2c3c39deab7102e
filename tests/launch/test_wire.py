from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from drumbeat.errors import RendezvousError
from drumbeat.launch import wire

pytestmark = pytest.mark.timeout(20)

TOKEN = "a shared secret"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def meet(at_server: Handler, at_client: Handler) -> tuple[object, object]:
    """Runs both ends of one TCP connection; an exception counts as a result."""

    async def run() -> tuple[object, object]:
        server_result: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server_result.set_result(await outcome(at_server, reader, writer))
            writer.close()

        server = await asyncio.start_server(served, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)
        client_result = await outcome(at_client, reader, writer)
        writer.close()
        result = await asyncio.wait_for(server_result, 5)
        server.close()
        return result, client_result

    return asyncio.run(run())


async def outcome(
    handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> object:
    try:
        return await handler(reader, writer)
    except Exception as error:
        return error


def accepting(token: str = TOKEN, timeout_s: float = 2.0) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        channel = await wire.accept(reader, writer, token, timeout_s=timeout_s)
        return await channel.receive(timeout_s)

    return handler


def connecting(message: dict[str, object], token: str = TOKEN) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        channel = await wire.connect(reader, writer, token, timeout_s=2)
        channel.send(message)
        await channel.close()
        return channel

    return handler


def sending(data: bytes, *, stay_s: float = 0.0) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        writer.write(data)
        await asyncio.sleep(stay_s)
        return None

    return handler


def test_message_arrives():
    message = {"text": "ü", "list": [1, 2.5, None], "large": "x" * 2_000_000}
    received, _ = meet(accepting(), connecting(message))
    assert received == message


def test_many_messages_both_ways():
    async def at_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        channel = await wire.accept(reader, writer, TOKEN, timeout_s=2)
        for _ in range(50):
            channel.send({"echo": await channel.receive(2)})
        await channel.close()
        return None

    async def at_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        channel = await wire.connect(reader, writer, TOKEN, timeout_s=2)
        for number in range(50):
            channel.send({"number": number})
        return [(await channel.receive(2))["echo"]["number"] for _ in range(50)]

    assert meet(at_server, at_client)[1] == list(range(50))


def test_different_tokens_are_refused_on_both_sides():
    server, client = meet(accepting("one"), connecting({}, "another"))
    assert isinstance(client, wire.TokenMismatch)
    assert isinstance(client, RendezvousError)
    assert "different tokens" in str(client)
    assert "Set DRUMBEAT_TOKEN to the same value on every machine" in str(client)
    assert isinstance(server, wire.TokenMismatch)
    assert "127.0.0.1:" in str(server)


def test_server_without_the_token_is_refused():
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        writer.write(frame(json.dumps({"drumbeat": wire.PROTOCOL, "nonce": "0" * 64}).encode()))
        proof = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        writer.write(frame(proof))  # what the client has just proved, sent back
        return None

    _, client = meet(impostor, connecting({}))
    assert isinstance(client, wire.TokenMismatch)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "probably is not drumbeat"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "probably is not drumbeat"),
        (frame(b"\x80\x04pickle"), "not JSON"),
        (frame(b"[" * 4000), "not JSON"),
        (frame(b"[1]"), "expected a JSON object"),
        (frame(b"{}"), "not a drumbeat greeting"),
        (frame(b'{"drumbeat": 1, "nonce": 3}'), "without a nonce"),
        (frame(b'{"drumbeat": 1, "nonce": "ab"}'), "without a nonce"),
        (frame(b'{"drumbeat": 99, "nonce": ""}'), "Install the same version"),
        (frame(b"x" * (wire.HANDSHAKE_BYTES + 1)), "at most 4096 are accepted"),
    ],
)
def test_junk_is_refused(data: bytes, message: str):
    server, _ = meet(accepting(), sending(data))
    assert isinstance(server, wire.WireError)
    assert message in str(server)


@pytest.mark.parametrize("data", [b"", b"\0\0", frame(b"x" * 100)[:50]])
def test_connection_that_ends_early(data: bytes):
    server, _ = meet(accepting(), sending(data))
    assert isinstance(server, ConnectionError)


@pytest.mark.parametrize("data", [b"", b"\0\0", frame(b"x" * 100)[:50]])
def test_handshake_has_a_deadline(data: bytes):
    server, _ = meet(accepting(timeout_s=0.2), sending(data, stay_s=1))
    assert isinstance(server, asyncio.TimeoutError)


def tampering(change: Callable[[list[bytes]], list[bytes]]) -> Handler:
    """A client whose frames, after the handshake, pass through `change`."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        channel = await wire.connect(reader, writer, TOKEN, timeout_s=2)
        written: list[bytes] = []
        write, writer.write = writer.write, written.append  # type: ignore[method-assign]
        for number in range(3):
            channel.send({"number": number})
        writer.write = write  # type: ignore[method-assign]
        writer.write(b"".join(change(written)))
        await channel.close()
        return None

    return handler


async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
    channel = await wire.accept(reader, writer, TOKEN, timeout_s=2)
    numbers = []
    try:
        while True:
            numbers.append((await channel.receive(2))["number"])
    except (wire.WireError, ConnectionError) as error:
        return numbers, type(error)


@pytest.mark.parametrize(
    ("change", "accepted", "error"),
    [
        (lambda frames: frames, [0, 1, 2], ConnectionError),
        (lambda frames: [frames[0], frames[0]], [0], wire.WireError),
        (lambda frames: [frames[1]], [], wire.WireError),
        (lambda frames: [frames[0], frames[2]], [0], wire.WireError),
        (lambda frames: [frames[0].replace(b":0}", b":7}")], [], wire.WireError),
        (lambda frames: [frames[0], frame(b'{"number":1}')], [0], wire.WireError),
    ],
    ids=["untouched", "replayed", "reordered", "dropped", "changed", "injected"],
)
def test_tampering_is_noticed(
    change: Callable[[list[bytes]], list[bytes]], accepted: list[int], error: type[Exception]
):
    assert meet(collect, tampering(change))[0] == (accepted, error)


def test_own_frame_sent_back_is_refused():
    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        await wire.accept(reader, writer, TOKEN, timeout_s=2)
        writer.write(await reader.read(1000))
        return None

    async def at_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        channel = await wire.connect(reader, writer, TOKEN, timeout_s=2)
        channel.send({"type": "tell"})
        return await channel.receive(2)

    client = meet(mirror, at_client)[1]
    assert isinstance(client, wire.WireError)
    assert "authentication code is wrong" in str(client)


def test_too_large_message_is_not_sent():
    client = meet(accepting(), connecting({"x": "x" * wire.FRAME_BYTES}))[1]
    assert isinstance(client, wire.WireError)
    assert str(wire.FRAME_BYTES) in str(client)


def test_reader_that_stops_does_not_fill_the_memory():
    async def sleeper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        await wire.accept(reader, writer, TOKEN, timeout_s=2)
        await asyncio.sleep(0.5)
        return None

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        channel = await wire.connect(reader, writer, TOKEN, timeout_s=2)
        for sent in range(1000):
            try:
                channel.send({"x": "x" * 1_000_000})
            except ConnectionError:
                return sent
        return 1000

    sent = meet(sleeper, flood)[1]
    assert isinstance(sent, int)
    assert wire.UNSENT_BYTES // 1_000_000 <= sent < 60
