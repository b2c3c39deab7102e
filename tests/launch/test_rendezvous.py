from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from drumbeat.errors import RendezvousError
from drumbeat.launch.ports import network_interface, reserve_ports
from drumbeat.launch.rendezvous import Client, Node, NodesLost, Server

pytestmark = pytest.mark.timeout(30)

TOKEN = "a shared secret"
FAST = {"heartbeat_s": 0.2, "lost_after_s": 2.0}


def node(rank: int, **changes: Any) -> Node:
    known: dict[str, Any] = {
        "node_rank": rank,
        "host": f"10.0.0.{rank + 1}",
        "num_workers": 1,
        "ports": (2222 + rank,),
        "boot_id": f"boot-{rank}",
        "tasks": (f"worker {rank}",),
        "settings": {"collectives": "mpi"},
    }
    return Node(**(known | changes))


async def join(
    address: tuple[str, int],
    who: Node,
    num_nodes: int,
    *,
    token: str = TOKEN,
    timeout_s: float = 5.0,
    said: list[str] | None = None,
    **options: Any,
) -> Client:
    on_waiting = (lambda text: None) if said is None else said.append
    options = {"waiting_every_s": 0.1} | FAST | options
    return await Client.join(
        address, token, who, num_nodes, timeout_s=timeout_s, on_waiting=on_waiting, **options
    )


@contextlib.asynccontextmanager
async def server(num_nodes: int, **options: Any) -> AsyncIterator[Server]:
    running = await Server.start(("127.0.0.1", 0), TOKEN, num_nodes, **(FAST | options))
    try:
        yield running
    finally:
        await running.close()


@contextlib.asynccontextmanager
async def joined(num_nodes: int) -> AsyncIterator[list[Client]]:
    async with server(num_nodes) as running:
        joining = [join(running.address, node(rank), num_nodes) for rank in range(num_nodes)]
        clients = list(await asyncio.gather(*joining))
        try:
            yield clients
        finally:
            await asyncio.gather(*(client.leave() for client in clients))


async def error_of(work: Awaitable[object]) -> str:
    with pytest.raises(RendezvousError) as caught:
        await work
    return str(caught.value)


async def event(client: Client, kind: str) -> dict[str, Any]:
    """The next event of this type, passing over others."""

    async def search() -> dict[str, Any]:
        while (found := await client.events.get())["type"] != kind:
            pass
        return found

    return await asyncio.wait_for(search(), 6)


@contextlib.contextmanager
def listening(answer: bytes | None) -> Any:
    """A port that accepts, and answers nothing or something else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if answer is not None:
                writer.write(answer)
            await asyncio.sleep(5)

        yield listener, serve


def test_all_nodes_get_the_same_roster():
    async def run() -> None:
        async with server(3) as running:
            joining = []
            for rank in (2, 0, 1):
                joining.append(asyncio.create_task(join(running.address, node(rank), 3)))
                await asyncio.sleep(0.05)
            clients = await asyncio.gather(*joining)
            for client in clients:
                assert client.roster == (node(0), node(1), node(2))
            assert len({client.job_id for client in clients}) == 1
            await asyncio.gather(*(client.leave() for client in clients))

    asyncio.run(run())


def test_server_that_starts_late_is_waited_for():
    async def run() -> None:
        with reserve_ports(1) as reserved:
            address = ("127.0.0.1", reserved.ports[0])
            said: list[str] = []
            early = asyncio.create_task(join(address, node(1), 2, said=said))
            await asyncio.sleep(0.8)
            running = await Server.start(address, TOKEN, 2, **FAST)
            first = await join(address, node(0), 2)
            second = await early
            await asyncio.gather(first.leave(), second.leave())
            await running.close()
        where = f"waiting for the rendezvous at 127.0.0.1:{address[1]} (connection refused)"
        assert any(text.startswith(where) for text in said), said

    asyncio.run(run())


def test_waiting_says_who_is_missing_and_how_long_it_goes_on():
    async def run() -> tuple[list[str], str]:
        said: list[str] = []
        expected = [f"worker {rank} (10.0.0.{rank + 5}:2222)" for rank in range(4)]
        async with server(4) as running:
            others = [
                asyncio.create_task(join(running.address, node(rank), 4, timeout_s=9))
                for rank in (1, 3)
            ]
            error = await error_of(
                join(running.address, node(0), 4, timeout_s=2, said=said, expected=expected)
            )
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        return said, error

    said, error = asyncio.run(run())
    assert "waiting for worker 2 (10.0.0.7:2222), 3 of 4 are here, 1 s left" in said
    assert "After 2 s worker 2 (10.0.0.7:2222) had not joined the rendezvous at 127.0.0.1" in error
    assert "3 of 4 were there" in error
    assert "firewall" in error


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (("127.0.0.1", 1), "connection refused"),
        (("no-such-machine.invalid", 2222), "the name 'no-such-machine.invalid' can't be resolved"),
    ],
)
def test_unreachable_server_is_named_at_the_deadline(address: tuple[str, int], reason: str):
    error = asyncio.run(error_of(join(address, node(1), 2, timeout_s=0.7)))
    assert f"could not join the rendezvous at {address[0]}:{address[1]} within 0.7 s" in error
    assert reason in error
    assert "Check that it has been started" in error


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "it accepts, but does not answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "what listens there is not drumbeat"),
    ],
)
def test_something_else_listens_at_the_address(answer: bytes | None, reason: str):
    async def run() -> str:
        with listening(answer) as (listener, serve):
            other = await asyncio.start_server(serve, sock=listener)
            address = listener.getsockname()
            error = await error_of(join(address, node(1), 2, timeout_s=1, lost_after_s=0.3))
            other.close()
            return error

    assert reason in asyncio.run(run())


REFUSALS: list[tuple[str, Callable[[tuple[str, int]], Awaitable[Client]], list[str]]] = [
    (
        "wrong token",
        lambda address: join(address, node(1), 2, token="another"),
        ["different tokens", "Set DRUMBEAT_TOKEN to the same value on every machine"],
    ),
    (
        "node rank taken",
        lambda address: join(address, node(0, host="10.9.9.9"), 2),
        ["Node rank 0 of 10.9.9.9 is taken already, by 10.0.0.1", "its own --node-rank"],
    ),
    (
        "node rank too high",
        lambda address: join(address, node(2), 2),
        ["node 2 (10.0.0.3)", "out of range", "expected 0 to 1"],
    ),
    ("negative node rank", lambda address: join(address, node(-1), 2), ["out of range"]),
    (
        "other number of nodes",
        lambda address: join(address, node(1), 3),
        ["was started for 3 nodes, but the rendezvous was started for 2", "--nodes"],
    ),
    (
        "other setting",
        lambda address: join(address, node(1, settings={"collectives": "tensorflow"}), 2),
        [
            "The setting 'collectives' is 'tensorflow' on node 1 (10.0.0.2) and 'mpi' on node 0 "
            "(10.0.0.1)."
        ],
    ),
    (
        "setting missing",
        lambda address: join(address, node(1, settings={}), 2),
        ["'collectives' is not set on node 1 (10.0.0.2) and 'mpi' on node 0"],
    ),
]


@pytest.mark.parametrize(
    ("offend", "texts"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_offender_is_refused_at_once_and_the_others_go_on(
    offend: Callable[[tuple[str, int]], Awaitable[Client]],
    texts: list[str],
    caplog: pytest.LogCaptureFixture,
):
    async def run() -> str:
        async with server(2) as running:
            said: list[str] = []
            first = asyncio.create_task(join(running.address, node(0), 2, said=said))
            await asyncio.sleep(0.1)
            error = await asyncio.wait_for(error_of(offend(running.address)), 2)
            await asyncio.sleep(0.25)
            assert any("(refused: " in text for text in said), said
            good = await join(running.address, node(1), 2)
            assert (await first).roster == good.roster == (node(0), node(1))
            await asyncio.gather(good.leave(), first.result().leave())
        return error

    with caplog.at_level(logging.WARNING):
        error = asyncio.run(run())
    for text in texts:
        assert text in error
    assert "refused an agent at 127.0.0.1:" in caplog.text


def test_token_must_not_be_empty():
    assert "openssl rand" in asyncio.run(error_of(join(("127.0.0.1", 1), node(1), 2, token="")))
    assert "empty" in asyncio.run(error_of(Server.start(("127.0.0.1", 0), "", 2)))


def test_server_survives_whatever_connects(caplog: pytest.LogCaptureFixture):
    junk = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 100_000,
        os.urandom(3000),
        b"\x00\x00\x00\x05{}",
        b"\x00\x00\x00\x02{}",
    ]

    async def run() -> None:
        async with server(1) as running:
            open_connections = []
            for data in junk * 15:
                reader, writer = await asyncio.open_connection(*running.address)
                writer.write(data)
                open_connections.append((reader, writer))
            # The half-open ones are dropped at the handshake's deadline, at the latest.
            for reader, writer in open_connections:
                with contextlib.suppress(ConnectionError):
                    await asyncio.wait_for(reader.read(), 6)
                writer.close()
            client = await join(running.address, node(0), 1)
            assert client.roster == (node(0),)
            await client.leave()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "probably is not drumbeat" in caplog.text
    assert "Traceback" not in caplog.text


def test_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = asyncio.run(error_of(Server.start(("127.0.0.1", port), TOKEN, 2)))
    assert f"Port {port}" in error
    assert "--rendezvous" in error


@pytest.mark.parametrize(
    "host", ["", "localhost", "127.0.0.3", "0.0.0.0", "some-name", "192.0.2.7"]
)
def test_server_listens_whatever_its_own_address_is_called(host: str):
    async def run() -> None:
        running = await Server.start((host, 0), TOKEN, 1, **FAST)
        address = running.address
        client = await join(address, node(0), 1)
        await client.leave()
        await running.close()
        # The port is free again.
        (await asyncio.start_server(lambda reader, writer: None, *address)).close()

    asyncio.run(run())


def test_node_that_drops_out_before_the_start_can_come_back():
    async def run() -> None:
        async with server(2) as running:
            first = asyncio.create_task(join(running.address, node(1), 2))
            await asyncio.sleep(0.1)
            first.cancel()
            await asyncio.sleep(0.1)
            clients = await asyncio.gather(
                join(running.address, node(1, host="10.0.0.9"), 2),
                join(running.address, node(0), 2),
            )
            assert clients[0].roster[1].host == "10.0.0.9"
            error = await error_of(join(running.address, node(1), 2))
            assert "taken already" in error
            await asyncio.gather(*(client.leave() for client in clients))

    asyncio.run(run())


def test_fence_merges_what_all_bring():
    async def run() -> None:
        async with joined(3) as clients:
            for turn in range(3):
                waiting = [
                    asyncio.create_task(
                        client.fence(f"f{turn}", {f"k{rank}": f"{turn}", "same": "x"}, 5)
                    )
                    for rank, client in enumerate(clients[:2])
                ]
                await asyncio.sleep(0.05)
                assert not any(task.done() for task in waiting)
                last = await clients[2].fence(f"f{turn}", {}, None)
                assert last == {"k0": f"{turn}", "k1": f"{turn}", "same": "x"}
                assert await asyncio.gather(*waiting) == [last, last]

    asyncio.run(run())


def test_large_fence():
    async def run() -> None:
        async with joined(2) as clients:
            values = [{f"{rank}-{key}": "v" * 1000 for key in range(1000)} for rank in range(2)]
            merged = await asyncio.gather(
                *(client.fence("f", v, 5) for client, v in zip(clients, values, strict=True))
            )
            assert merged[0] == merged[1] == values[0] | values[1]
            errors = await asyncio.gather(
                *(
                    error_of(client.fence("too large", {f"{rank}": "v" * 3_000_000}, 5))
                    for rank, client in enumerate(clients)
                )
            )
            assert all("larger than" in error for error in errors)
            assert await asyncio.gather(*(c.fence("next", {}, 5) for c in clients)) == [{}, {}]

    asyncio.run(run())


def test_fence_with_conflicting_values_fails_everywhere():
    async def run() -> list[str]:
        async with joined(2) as clients:
            return list(
                await asyncio.gather(
                    *(error_of(c.fence("f", {"key": f"of {r}"}, 5)) for r, c in enumerate(clients))
                )
            )

    for error in asyncio.run(run()):
        assert "'key' is 'of 0' on node 0 (10.0.0.1) and 'of 1' on node 1 (10.0.0.2)" in error


def test_fence_deadline_names_who_did_not_come_and_holds_for_late_comers():
    async def run() -> tuple[list[str], str]:
        async with joined(3) as clients:
            errors = await asyncio.gather(*(error_of(c.fence("f", {}, 0.3)) for c in clients[:2]))
            return list(errors), await error_of(clients[2].fence("f", {}, 5))

    errors, late = asyncio.run(run())
    for error in (*errors, late):
        assert "'f' failed: after 0.3 s node 2 (10.0.0.3) had not arrived" in error


def test_fence_among_some():
    async def run() -> None:
        async with joined(3) as clients:
            merged = await asyncio.gather(
                *(clients[r].fence("f", {f"k{r}": "v"}, 5, among=[2, 0]) for r in (0, 2))
            )
            assert merged == [{"k0": "v", "k2": "v"}] * 2
            await clients[1].leave()
            assert await asyncio.gather(
                *(clients[r].fence("g", {}, 5, among=[0, 2]) for r in (0, 2))
            ) == [{}, {}]

    asyncio.run(run())


def test_events_reach_all_others_in_order():
    async def run() -> None:
        async with joined(3) as clients:
            for number in range(20):
                await clients[1].tell({"type": "stop", "number": number})
            for client in (clients[0], clients[2]):
                got = [await asyncio.wait_for(client.events.get(), 2) for _ in range(20)]
                assert got == [{"type": "stop", "number": n, "from": 1} for n in range(20)]
            assert clients[1].events.empty()

    asyncio.run(run())


def test_leaving_is_no_loss_but_ends_fences():
    async def run() -> None:
        async with joined(3) as clients:
            waiting = asyncio.create_task(error_of(clients[0].fence("f", {}, None)))
            await asyncio.sleep(0.05)
            await clients[2].leave()
            await clients[2].leave()
            left = await event(clients[1], "node_left")
            assert (left["node_rank"], left["host"]) == (2, "10.0.0.3")
            assert "node 2 (10.0.0.3) has left the job" in await waiting
            assert "this node has left" in await error_of(clients[2].fence("g", {}, 1))
            assert "this node has left" in await error_of(clients[2].tell({}))

    asyncio.run(run())


def test_server_that_closes_says_why():
    async def run() -> None:
        async with server(3) as running:
            clients = await asyncio.gather(
                *(join(running.address, node(rank), 3) for rank in range(3))
            )
            waiting = asyncio.create_task(error_of(clients[1].fence("f", {}, None)))
            await asyncio.sleep(0.05)
            await running.close("worker 0 failed")
            assert "worker 0 failed" in await waiting
            for client in clients:
                assert (await event(client, "rendezvous_closed"))["reason"] == "worker 0 failed"
                assert client.events.empty()
                await client.leave()

    asyncio.run(run())


def test_server_that_closes_while_nodes_wait_for_others():
    async def run() -> str:
        async with server(2) as running:
            waiting = asyncio.create_task(error_of(join(running.address, node(0), 2)))
            await asyncio.sleep(0.1)
            await running.close("interrupted")
            return await waiting

    assert "The rendezvous was closed: interrupted" in asyncio.run(run())


def test_alone_needs_no_server():
    async def run() -> None:
        client = Client.alone(node(0), "job")
        assert client.roster == (node(0),)
        assert client.job_id == "job"
        assert await client.fence("f", {"a": "b"}, 1) == {"a": "b"}
        await client.tell({"type": "stop"})
        await client.leave()
        assert client.events.empty()

    asyncio.run(run())


AGENT = """
import asyncio, sys
from drumbeat.launch.rendezvous import Client, Node

async def main():
    node = Node(node_rank=1, host="10.0.0.2", num_workers=1, ports=(1,), boot_id="b",
                settings={"collectives": "mpi"})
    client = await Client.join(("127.0.0.1", int(sys.argv[1])), "a shared secret", node, 2,
        timeout_s=10, on_waiting=print, heartbeat_s=0.2, lost_after_s=2.0)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("signal_number", "reason", "within_s"),
    [
        (signal.SIGKILL, "closed the connection|reset by peer", 1.5),
        (signal.SIGSTOP, "nothing was heard of it for 2 s", 4),
    ],
)
def test_lost_node_is_noticed(signal_number: int, reason: str, within_s: float):
    async def run() -> None:
        async with server(2) as running:
            agent = subprocess.Popen([sys.executable, "-c", AGENT, str(running.address[1])])
            try:
                client = await join(running.address, node(0), 2, timeout_s=15)
                waiting = asyncio.create_task(error_of(client.fence("f", {}, None)))
                await asyncio.sleep(2.5)  # longer than lost_after_s: the heartbeats keep it alive
                assert client.events.empty()
                agent.send_signal(signal_number)
                start = asyncio.get_running_loop().time()
                lost = await event(client, "node_lost")
                assert asyncio.get_running_loop().time() - start < within_s
                assert (lost["node_rank"], lost["host"]) == (1, "10.0.0.2")
                assert re.search(reason, lost["reason"])
                assert "node 1 (10.0.0.2) was lost" in await waiting
                assert "node 1 (10.0.0.2) was lost" in await error_of(client.fence("g", {}, 5))
                await client.leave()
            finally:
                agent.kill()
                agent.wait()

    asyncio.run(run())


SERVER = """
import asyncio, sys
from drumbeat.launch.rendezvous import Server

async def main():
    await Server.start(("127.0.0.1", int(sys.argv[1])), "a shared secret", 1, heartbeat_s=0.2,
                       lost_after_s=2.0)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("signal_number", "reason"),
    [(signal.SIGKILL, "was lost: "), (signal.SIGSTOP, "nothing was heard of the rendezvous")],
)
def test_lost_server_is_noticed(signal_number: int, reason: str):
    async def run() -> None:
        with reserve_ports(1) as reserved:
            port = reserved.ports[0]
            process = subprocess.Popen([sys.executable, "-c", SERVER, str(port)])
            try:
                client = await join(("127.0.0.1", port), node(0), 1, timeout_s=15)
                process.send_signal(signal_number)
                assert reason in (await event(client, "rendezvous_lost"))["reason"]
                assert reason in await error_of(client.fence("f", {}, None))
                await client.leave()
            finally:
                process.kill()
                process.wait()

    asyncio.run(run())


def test_reserved_ports_are_distinct_and_usable_while_held():
    first, second = reserve_ports(50), reserve_ports(50)
    with first, second:
        assert len({*first.ports, *second.ports}) == 100
        # As gRPC and asyncio do; a server without SO_REUSEADDR must wait for close().
        with socket.create_server(("", first.ports[0])) as server_socket:
            assert server_socket.getsockname()[1] == first.ports[0]
    with socket.socket() as plain:
        plain.bind(("", second.ports[0]))


def test_interface_of_an_address():
    assert network_interface("127.0.0.1") == "lo"
    assert network_interface("192.0.2.77") == ""


def test_a_dead_node_makes_way_for_its_replacement_and_a_living_one_does_not():
    async def run() -> None:
        async with joined(2) as clients:
            address = clients[0]._channel.peer  # type: ignore[union-attr]
            where = (address.rpartition(":")[0], int(address.rpartition(":")[2]))
            error = await error_of(join(where, node(1, host="10.9.9.9"), 2))
            assert "taken already, by 10.0.0.2" in error
            assert clients[0].events.empty()
            for task in clients[1]._tasks:
                task.cancel()  # a machine that is gone does not even close its connections
            late = asyncio.create_task(error_of(join(where, node(1), 2, timeout_s=1.0)))
            lost = await event(clients[0], "node_lost")
            assert lost["reason"] == "it did not answer when it was started again"
            assert clients[0].lost == lost
            with pytest.raises(NodesLost):
                await clients[0].fence("f", {}, 5)
            assert "has not noticed yet that it lost a node" in await late

    asyncio.run(run())


def test_nodes_meet_anew_at_the_same_address():
    async def run() -> None:
        running = await Server.start(("127.0.0.1", 0), TOKEN, 2, **FAST)
        address = running.address
        clients = await asyncio.gather(*(join(address, node(rank), 2) for rank in range(2)))
        await running.close("a node was lost", again=True)
        assert (await event(clients[1], "rendezvous_closed"))["again"] is True
        with pytest.raises(NodesLost):
            await clients[1].fence("f", {}, 5)
        await asyncio.gather(*(client.leave(again=True) for client in clients))
        second = asyncio.create_task(join(address, node(1), 2))
        await asyncio.sleep(0.1)
        again = await Server.start(address, TOKEN, 2, **FAST)
        first = await join(again.address, node(0), 2)
        assert (await second).job_id == first.job_id != clients[0].job_id
        await asyncio.gather(first.leave(), second.result().leave())
        await again.close()

    asyncio.run(run())


def test_a_node_whose_user_stops_it_ends_the_wait_of_all():
    async def run() -> None:
        async with server(3) as running:
            stopped = asyncio.Event()
            mine = asyncio.create_task(join(running.address, node(1), 3, stopped=stopped))
            other = asyncio.create_task(error_of(join(running.address, node(0), 3)))
            await asyncio.sleep(0.1)
            stopped.set()
            assert "node 1 (10.0.0.2) was stopped by its user" in await asyncio.wait_for(other, 2)
            mine.cancel()
            await asyncio.gather(mine, return_exceptions=True)

    asyncio.run(run())
