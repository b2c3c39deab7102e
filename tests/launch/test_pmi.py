from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from drumbeat.errors import RendezvousError
from drumbeat.launch.pmi import (
    FOREIGN_VARIABLES,
    PmiServer,
    mpi_environment,
    parse_line,
    process_mapping,
    shared_memory_path,
)
from drumbeat.launch.rendezvous import Client, Node, Server

pytestmark = pytest.mark.timeout(60)

ALLREDUCE = """
import sys, time, os
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
mine = np.full(100_000, comm.rank + 1.0)
total = np.empty_like(mine)
comm.Allreduce(mine, total)
assert (total == comm.size * (comm.size + 1) / 2).all(), total
tcp = sum(int(line.split()[9]) for line in open("/proc/net/dev") if "db" in line)
print(comm.rank, comm.size, comm.Split_type(MPI.COMM_TYPE_SHARED).size, tcp, flush=True)
"""


INTERFACE = """
import sys
from drumbeat.launch.ports import network_interface
print(network_interface(sys.argv[1]))
"""


class Aborts(list[tuple[int, int, str]]):
    def __call__(self, rank: int, code: int, text: str) -> None:
        self.append((rank, code, text))


async def no_others(name: str, values: dict[str, str]) -> dict[str, str]:
    return values


def not_broken(reason: str) -> None:
    raise AssertionError(reason)


def nobody_missing(waiting: tuple[int, ...], missing: tuple[int, ...], ended: bool) -> None:
    raise AssertionError(f"{missing} missed, ended: {ended}")


def start(
    pmi: PmiServer,
    rank: int,
    world_size: int,
    code: str,
    *,
    prefix: Sequence[str] = (),
    **environment: str,
) -> subprocess.Popen[str]:
    """A rank that runs `code`."""
    theirs = pmi.open(rank)
    env = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
    env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env |= PmiServer.env(rank, world_size, theirs.fileno()) | environment
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", code],
        env=env,
        pass_fds=[theirs.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    return process


async def finish(process: subprocess.Popen[str], timeout_s: float = 20) -> tuple[int, str, str]:
    """Exit code, output and errors; kills the process at the deadline."""
    try:
        out, err = await asyncio.to_thread(process.communicate, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nkilled after {timeout_s} s"
    return process.returncode, out, err


def one_node(size: int, aborts: Aborts | None = None, **options: Any) -> PmiServer:
    settings: dict[str, Any] = {
        "name": f"test-{uuid.uuid4().hex}",
        "ranks": range(size),
        "world_size": size,
        "node_sizes": [size],
        "fence": no_others,
        "on_abort": Aborts() if aborts is None else aborts,
        "on_broken": not_broken,
        "init_timeout_s": 60,
        "on_missing": nobody_missing,
    }
    return PmiServer(**(settings | options))


async def all_finish(
    processes: Sequence[subprocess.Popen[str]], timeout_s: float = 20
) -> list[str]:
    """The outputs of ranks that all have to succeed."""
    results = await asyncio.gather(*(finish(process, timeout_s) for process in processes))
    assert [code for code, _, _ in results] == [0] * len(results), results
    return [out for _, out, _ in results]


def shared_memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("mpich", "ucx"))}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_of_one_node(size: int):
    async def run() -> list[str]:
        pmi = one_node(size)
        outputs = await all_finish([start(pmi, rank, size, ALLREDUCE) for rank in range(size)])
        await pmi.close()
        return outputs

    assert [out.split()[:3] for out in asyncio.run(run())] == [
        [str(rank), str(size), str(size)] for rank in range(size)
    ]


def test_another_launchers_variables_do_not_matter():
    async def run() -> None:
        pmi = one_node(2)
        foreign = {"SLURM_PROCID": "7", "SLURM_NTASKS": "9", "OMPI_COMM_WORLD_SIZE": "5"}
        await all_finish([start(pmi, rank, 2, ALLREDUCE, **foreign) for rank in range(2)])
        await pmi.close()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def nodes_joined(nodes: Sequence[Node]) -> AsyncIterator[list[Client]]:
    server = await Server.start(("127.0.0.1", 0), "secret", len(nodes))
    clients = await asyncio.gather(
        *(
            Client.join(
                server.address,
                "secret",
                node,
                len(nodes),
                timeout_s=5,
                on_waiting=lambda text: None,
            )
            for node in nodes
        )
    )
    yield list(clients)
    await asyncio.gather(*(client.leave() for client in clients))
    await server.close()


def pmi_of(client: Client, node_rank: int, aborts: Aborts) -> PmiServer:
    sizes = [node.num_workers for node in client.roster]
    first = sum(sizes[:node_rank])
    among = [rank for rank, size in enumerate(sizes) if size]
    return PmiServer(
        name=client.job_id,
        ranks=range(first, first + sizes[node_rank]),
        world_size=sum(sizes),
        node_sizes=sizes,
        fence=lambda name, values: client.fence(name, values, 20, among=among),
        on_abort=aborts,
        on_broken=not_broken,
        init_timeout_s=60,
        on_missing=nobody_missing,
    )


async def run_on_nodes(
    nodes: Sequence[Node], prefixes: Sequence[Sequence[str]], code: str = ALLREDUCE
) -> list[str]:
    """Outputs of all ranks, started by one PMI server for each node."""
    world_size = sum(node.num_workers for node in nodes)
    async with nodes_joined(nodes) as clients:
        servers = [
            pmi_of(client, rank, Aborts()) if nodes[rank].num_workers else None
            for rank, client in enumerate(clients)
        ]
        processes = []
        for node_rank, pmi in enumerate(servers):
            environment = mpi_environment(clients[0].roster, node_rank)
            for _ in range(nodes[node_rank].num_workers):
                rank = len(processes)
                prefix = prefixes[node_rank]
                processes.append(start(pmi, rank, world_size, code, prefix=prefix, **environment))
        outputs = await all_finish(processes)
        for pmi in filter(None, servers):
            await pmi.close()
    return outputs


def node(rank: int, num_workers: int = 1, **changes: Any) -> Node:
    known: dict[str, Any] = {
        "node_rank": rank,
        "host": f"10.0.0.{rank + 2}",
        "num_workers": num_workers,
        "ports": (),
        "boot_id": "this machine",
        "interface": "eth0",
    }
    return Node(**(known | changes))


def test_a_rank_that_waits_alone_in_mpi_init_keeps_its_deadline():
    code = """
from drumbeat.collectives import mpi_library
from drumbeat.errors import CollectiveTimeout
mpi_library._BACKSTOP_S = 0
try:
    mpi_library.started_mpi(0.5)
except CollectiveTimeout as error:
    print(error, flush=True)
import os
os._exit(0)
"""

    async def scenario() -> str:
        pmi = one_node(2)
        (out,) = await all_finish([start(pmi, 0, 2, code)])
        await pmi.close()
        return out

    assert "MPI did not start within 0.5 s" in asyncio.run(scenario())


def test_two_nodes_on_one_machine():
    idle = node(1, 0, host="127.0.0.4")
    nodes = [node(0, 2, host="127.0.0.2"), idle, node(2, 1, host="127.0.0.3")]
    before = shared_memory_files()
    outputs = asyncio.run(run_on_nodes(nodes, [(), (), ()]))
    assert [out.split()[:3] for out in outputs] == [
        ["0", "3", "2"],
        ["1", "3", "2"],
        ["2", "3", "1"],
    ]
    assert shared_memory_files() <= before


@contextlib.contextmanager
def two_namespaces(names: Sequence[str], *, decoy: bool) -> Iterator[None]:
    """Two network namespaces with one link, 10.213.7.1 to 10.213.7.2, "dbA" to "dbB".

    With `decoy` each also has an interface like docker0, whose address is the
    same on both sides and leads nowhere.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")

    def ip(arguments: str) -> None:
        subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)

    try:
        try:
            for name in names:
                ip(f"netns add {name}")
            ip(f"link add dbA netns {names[0]} type veth peer name dbB netns {names[1]}")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        for index, (name, link) in enumerate(zip(names, ("dbA", "dbB"), strict=True)):
            ip(f"-n {name} link set lo up")
            ip(f"-n {name} addr add 10.213.7.{index + 1}/24 dev {link}")
            ip(f"-n {name} link set {link} up")
            if decoy:
                ip(f"-n {name} link add docker0 type veth peer name decoy")
                ip(f"-n {name} addr add 172.17.0.1/16 dev docker0")
                ip(f"-n {name} link set docker0 up")
                ip(f"-n {name} link set decoy up")
        for name, link in zip(names, ("dbA", "dbB"), strict=True):
            wait_until_up(name, link)
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def wait_until_up(namespace: str, link: str) -> None:
    """UCX looks at the interfaces once, as MPI_Init starts; they come up with a delay."""
    deadline = time.monotonic() + 10
    state = ["ip", "netns", "exec", namespace, "cat", f"/sys/class/net/{link}/operstate"]
    while subprocess.run(state, capture_output=True, text=True, check=True).stdout.strip() != "up":
        assert time.monotonic() < deadline, f"{link} did not come up"
        time.sleep(0.05)


@pytest.mark.netns
@pytest.mark.parametrize("decoy", [False, True])
def test_two_nodes_in_network_namespaces(decoy: bool):
    names = [f"dbtest{os.getpid()}{side}" for side in "ab"]
    nodes = [
        node(0, 2, host="10.213.7.1", interface="dbA"),
        node(1, 1, host="10.213.7.2", interface="dbB"),
    ]
    with two_namespaces(names, decoy=decoy):
        prefixes = [("ip", "netns", "exec", name) for name in names]
        for known, prefix in zip(nodes, prefixes, strict=True):
            command = [*prefix, sys.executable, "-c", INTERFACE, known.host]
            found = subprocess.run(command, capture_output=True, text=True, check=True)
            assert found.stdout.strip() == known.interface
        outputs = asyncio.run(run_on_nodes(nodes, prefixes))
    assert [out.split()[:3] for out in outputs] == [
        ["0", "3", "2"],
        ["1", "3", "2"],
        ["2", "3", "1"],
    ]
    sent_bytes = int(outputs[0].split()[3])
    assert sent_bytes > 400_000, "the sum of 800 kB must have gone over the link"


def test_rank_that_ends_without_finalize_does_not_disturb_the_others():
    code = ALLREDUCE + "os._exit(0) if comm.rank == 1 else time.sleep(0.5)\n"

    async def run() -> None:
        pmi = one_node(3)
        await all_finish([start(pmi, rank, 3, code) for rank in range(3)], timeout_s=8)
        await pmi.close()

    asyncio.run(run())


@pytest.mark.parametrize("sizes", [(2,), (1, 2)])
def test_killed_ranks_leave_no_shared_memory(sizes: tuple[int, ...]):
    before = shared_memory_files()
    name = f"test-{uuid.uuid4().hex}"
    meeting = Meeting(len(sizes))

    async def run() -> None:
        servers, processes = [], []
        for index, size in enumerate(sizes):
            ranks = range(sum(sizes[:index]), sum(sizes[:index]) + size)
            options = {"ranks": ranks, "world_size": sum(sizes), "node_sizes": sizes}
            pmi = one_node(size, name=name, fence=meeting.fence, **options)
            servers.append(pmi)
            processes += [
                start(pmi, rank, sum(sizes), ALLREDUCE + "time.sleep(60)\n") for rank in ranks
            ]
        for process in processes:
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
        for process in processes:
            process.kill()
            process.communicate()
        left = {shared_memory_path(name, index).name for index in range(len(sizes))}
        assert shared_memory_files() - before >= left
        for pmi in servers:
            await pmi.close()
        assert not shared_memory_files() & left

    asyncio.run(run())


class Meeting:
    """A fence between PMI servers in one process."""

    def __init__(self, parties: int) -> None:
        self._parties = parties
        self._fences: dict[str, list[tuple[dict[str, str], asyncio.Event]]] = {}

    async def fence(self, name: str, values: dict[str, str]) -> dict[str, str]:
        here = self._fences.setdefault(name, [])
        arrived = asyncio.Event()
        here.append((values, arrived))
        if len(here) == self._parties:
            for _, other in here:
                other.set()
        await asyncio.wait_for(arrived.wait(), 10)
        return {key: value for values, _ in here for key, value in values.items()}


def test_abort_is_reported():
    code = ALLREDUCE + "comm.Abort(7) if comm.rank == 1 else time.sleep(0.5)\n"

    async def run() -> Aborts:
        aborts = Aborts()
        pmi = one_node(2, aborts)
        processes = [start(pmi, rank, 2, code) for rank in range(2)]
        results = await asyncio.gather(*(finish(process, 8) for process in processes))
        await pmi.close()
        assert results[1][0] != 0
        assert "MPI_Abort" in results[1][2]
        return aborts

    assert [(rank, code) for rank, code, _ in asyncio.run(run())] == [(1, 7)]


def test_a_failed_fence_is_told():
    async def fence(name: str, values: dict[str, str]) -> dict[str, str]:
        told.set_result(name)
        raise RendezvousError("node 1 (10.0.0.7) was lost")

    async def run() -> None:
        nonlocal told
        told = asyncio.get_running_loop().create_future()
        reasons: list[str] = []
        options = {"world_size": 2, "node_sizes": [1, 1], "fence": fence}
        pmi = one_node(1, on_broken=reasons.append, **options)
        rank = start(pmi, 0, 2, ALLREDUCE)
        try:
            assert "pmi:" in await asyncio.wait_for(told, 8)
            await asyncio.sleep(0.1)
            assert reasons == ["node 1 (10.0.0.7) was lost"]
            assert rank.poll() is None
        finally:
            rank.kill()
            rank.communicate()
            await pmi.close()

    told: asyncio.Future[str]
    asyncio.run(run())


def test_fork_of_a_process_with_a_used_interpreter():
    code = """
import os, sys, mpi4py, numpy
pids = []
pid = os.fork()
if pid == 0:
    from mpi4py import MPI
    assert MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank) == 1
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

    async def run() -> None:
        pmi = one_node(2)
        await all_finish([start(pmi, rank, 2, code) for rank in range(2)])
        await pmi.close()

    asyncio.run(run())


class Talk:
    """A rank that speaks PMI by hand."""

    def __init__(self, theirs: socket.socket) -> None:
        self._socket = theirs
        self._file = theirs.makefile("rw", encoding="utf-8", newline="\n")

    def ask(self, line: str) -> str:
        self._file.write(line + "\n")
        self._file.flush()
        return self._file.readline().rstrip("\n")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def test_conversation():
    async def run() -> None:
        names: list[str] = []

        async def fence(name: str, values: dict[str, str]) -> dict[str, str]:
            names.append(name)
            return values | {"far": "away"}

        pmi = one_node(2, name="job", world_size=3, node_sizes=[2, 1], fence=fence)
        first, second = (Talk(pmi.open(rank)) for rank in range(2))
        ask = asyncio.to_thread
        for line, answer in [
            ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init rc=0 pmi_version=1"),
            ("cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=256"),
            ("cmd=get_appnum", "cmd=appnum rc=0 appnum=0"),
            ("cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=job"),
            ("cmd=get_universe_size", "cmd=universe_size rc=0 size=3"),
            ("cmd=put kvsname=job key=k value=a b=c", "cmd=put_result rc=0"),
            ("cmd=get kvsname=job key=k", "cmd=get_result rc=-1"),
            (
                "cmd=get kvsname=job key=PMI_process_mapping",
                "cmd=get_result rc=0 msg=success value=(vector,(0,1,2),(1,1,1))",
            ),
            ("cmd=nonsense", "cmd=nonsense rc=-1"),
            ("", "cmd=error rc=-1"),
        ]:
            assert (await ask(first.ask, line)).startswith(answer)
        barrier = asyncio.create_task(ask(first.ask, "cmd=barrier_in"))
        await asyncio.sleep(0.1)
        assert not barrier.done()
        assert pmi.in_barrier == (0,)
        assert await ask(second.ask, "cmd=barrier_in") == "cmd=barrier_out rc=0"
        assert await barrier == "cmd=barrier_out rc=0"
        assert names == ["pmi:job:0"]
        for talk in (first, second):
            assert (await ask(talk.ask, "cmd=get kvsname=job key=k")).endswith(" value=a b=c")
            assert (await ask(talk.ask, "cmd=get kvsname=job key=far")).endswith(" value=away")
        assert await ask(second.ask, "cmd=finalize") == "cmd=finalize_ack rc=0"
        second.close()
        # A line that never ends closes this connection only.
        assert await ask(first.ask, "x" * 200_000) == ""
        first.close()
        await pmi.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sizes", "mapping"),
    [
        ([1], "(vector,(0,1,1))"),
        ([4], "(vector,(0,1,4))"),
        ([2, 2, 2], "(vector,(0,3,2))"),
        ([2, 2, 1], "(vector,(0,2,2),(2,1,1))"),
        ([1, 2, 2, 1], "(vector,(0,1,1),(1,2,2),(3,1,1))"),
        ([0, 3, 0, 3, 1], "(vector,(0,2,3),(2,1,1))"),
    ],
)
def test_process_mapping(sizes: list[int], mapping: str):
    assert process_mapping(sizes) == mapping


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("cmd=init pmi_version=1\n", {"cmd": "init", "pmi_version": "1"}),
        ("cmd=put key=a value=b c=d\n", {"cmd": "put", "key": "a", "value": "b c=d"}),
        (
            "cmd=abort exitcode=3 message=a value=b\n",
            {"cmd": "abort", "exitcode": "3", "message": "a value=b"},
        ),
        ("", {}),
        ("nothing here", {}),
    ],
)
def test_parse_line(line: str, fields: dict[str, str]):
    assert parse_line(line) == fields


@pytest.mark.parametrize(
    ("nodes", "environment"),
    [
        ([node(0, 4)], {}),
        ([node(0, 4), node(1, 0)], {}),
        ([node(0), node(1)], {"UCX_NET_DEVICES": "eth0", "UCX_TLS": "tcp,self"}),
        ([node(0, boot_id="a"), node(1, boot_id="b")], {"UCX_NET_DEVICES": "eth0"}),
        ([node(0, boot_id="a", interface=""), node(1, boot_id="b")], {}),
        (
            [node(0, interface="ib0", boot_id="a"), node(1, boot_id="b"), node(2, boot_id="b")],
            {"UCX_NET_DEVICES": "ib0", "UCX_TLS": "tcp,self"},
        ),
        ([node(0, host="127.0.0.2"), node(1, host="127.0.0.3")], {}),
        ([node(0, host="localhost"), node(1, host="localhost")], {}),
        (
            [node(0, boot_id="a"), node(1, 0, boot_id="a"), node(2, boot_id="b")],
            {"UCX_NET_DEVICES": "eth0"},
        ),
    ],
)
def test_mpi_environment(nodes: list[Node], environment: dict[str, str]):
    assert mpi_environment(nodes, 0) == environment


def test_shared_memory_path_follows_the_name():
    # The reference value of FNV-1a, 32 bits, for "a".
    assert shared_memory_path("a", 3).name == "mpich_shm_e40c292c_3"
