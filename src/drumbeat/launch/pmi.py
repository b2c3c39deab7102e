"""Starts MPI ranks without mpiexec: a server of MPICH's PMI-1 wire protocol.

The agent of a node makes a socket pair for each of its workers. The worker
inherits one end under the number in PMI_FD, so no port is opened and nobody
else can connect. Lines of `cmd=NAME key=value ...` go to and fro ("PMI: A
Scalable Parallel Process-Management Interface for Extreme-Scale Systems",
Balaji et al., EuroMPI 2010; the wire format is that of MPICH's simple PMI
client). Key-values that ranks put become visible everywhere at the next
barrier, for which the agents of a job meet in a fence.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from drumbeat.errors import DrumbeatError
from drumbeat.launch.roster import Node

Fence = Callable[[str, dict[str, str]], Awaitable[dict[str, str]]]
OnMissing = Callable[[tuple[int, ...], tuple[int, ...], bool], None]

# Another launcher's variables (Slurm, mpiexec) that would make MPICH look for
# that launcher instead of ours. To be removed from a worker's environment.
FOREIGN_VARIABLES = (
    "PMI_PORT",
    "PMI_ID",
    "PMI_SPAWNED",
    "PMI_CONTROL_PORT",
    "PMI_HOSTNAME",
    "PMI_LOCAL_RANK",
    "PMI_LOCAL_SIZE",
    "PMI_VERSION",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMIX_SERVER_URI2",
    "HYDI_CONTROL_FD",
)

_LINE_BYTES = 64 * 1024
_SHARED_MEMORY = Path("/dev/shm")
_log = logging.getLogger(__name__)


class PmiServer:
    """Serves the ranks of one node through one attempt.

    Args:
        name: Names the MPI job. The same on all nodes, and different from that
            of every other job and attempt on the same machine: MPICH derives the
            name of its shared memory from it.
        ranks: The ranks that run on this node.
        world_size: How many ranks there are on all nodes.
        node_sizes: Ranks on each node, in the order of their ranks; nodes
            without any may be listed as 0.
        fence: Awaited once for each PMI barrier, when all local ranks have
            entered it, with a name (the same on all nodes) and what they put
            since the last one. Returns the puts of all nodes. Nodes without ranks
            have no `PmiServer` and take no part. It owns the deadline. In MPI_Init
            of several nodes there are puts; MPI_Finalize passes an empty dict and
            may rightly wait for as long as another rank still trains.
        on_abort: Called with the rank, the exit code and a text when a rank
            calls MPI_Abort; the rank has lost its connection by then.
        on_broken: Called with the reason when a fence fails. The local ranks wait
            for it in vain and must be ended: if they lost their connection, MPI
            would crash.
        init_timeout_s: How long the first local rank in MPI_Init waits for the
            other local ones.
        on_missing: Called once, with the local ranks that wait in MPI_Init, those
            that have not come to it, and whether these have ended already: then
            at once, else when `init_timeout_s` has passed. MPI itself would wait
            for ever.
    """

    def __init__(
        self,
        *,
        name: str,
        ranks: Sequence[int],
        world_size: int,
        node_sizes: Sequence[int],
        fence: Fence,
        on_abort: Callable[[int, int, str], None],
        on_broken: Callable[[str], None],
        init_timeout_s: float,
        on_missing: OnMissing,
    ) -> None:
        assert sum(node_sizes) == world_size, "node_sizes must add up to world_size"  # noqa: S101
        self._name = name
        self._ranks = tuple(ranks)
        self._world_size = world_size
        self._fence = fence
        self._on_abort = on_abort
        self._on_broken = on_broken
        self._init_timeout_s = init_timeout_s
        self._on_missing = on_missing
        self._in_init: set[int] = set()
        self._told_missing = False
        self._patience: asyncio.TimerHandle | None = None
        self._values = {"PMI_process_mapping": process_mapping(node_sizes)}
        self._shared_memory = shared_memory_path(name, _node_index(node_sizes, self._ranks))
        self._puts: dict[str, str] = {}
        self._entered: dict[int, asyncio.StreamWriter] = {}
        self._gone: set[int] = set()
        self._barriers = 0
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def env(rank: int, world_size: int, fd: int) -> dict[str, str]:
        """What the worker needs in its environment; remove FOREIGN_VARIABLES from it too."""
        return {"PMI_RANK": str(rank), "PMI_SIZE": str(world_size), "PMI_FD": str(fd)}

    @property
    def in_barrier(self) -> tuple[int, ...]:
        """The local ranks that wait in MPI_Init or MPI_Finalize for the other local ones."""
        return tuple(sorted(self._entered))

    def open(self, rank: int) -> socket.socket:
        """Starts serving `rank` and returns the end that its process must inherit.

        The caller closes it once the process has it. It must stay open in the
        worker until the interpreter is gone, as MPI_Finalize runs at exit: in a
        forked child, `detach()` it, or Python closes it too early.
        """
        assert rank in self._ranks, f"rank {rank} is not of this node"  # noqa: S101
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        self._start(self._serve(rank, ours))
        return theirs

    async def close(self) -> None:
        """Ends all connections and removes shared memory that killed ranks left.

        To be called when the processes have ended.
        """
        if self._patience is not None:
            self._patience.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers.values():
            writer.transport.abort()
        self._writers.clear()
        self._shared_memory.unlink(missing_ok=True)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, rank: int, ours: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES)
        self._writers[rank] = writer
        try:
            # ValueError: a line without end. The worker is broken, not we.
            with contextlib.suppress(OSError, ValueError, UnicodeDecodeError):
                while line := await reader.readline():
                    if not self._answer(rank, writer, line.decode()):
                        break
        finally:
            self._entered.pop(rank, None)
            self._writers.pop(rank, None)
            writer.close()
            self._gone.add(rank)
            self._finish_barrier()
            self._look_for_missing(self._gone)

    def _answer(self, rank: int, writer: asyncio.StreamWriter, line: str) -> bool:
        """Handles one request; False ends the connection."""
        request = parse_line(line)
        command = request.get("cmd", "")
        if command == "abort":
            code = request.get("exitcode", "")
            text = request.get("message", "")
            # Closed, not answered: MPI_Finalize at the process's exit then fails
            # at once instead of waiting for the other ranks.
            self._on_abort(rank, int(code) if code.isdigit() else 1, text)
            return False
        if command == "barrier_in":
            self._enter_barrier(rank, writer)
            return True
        if command == "init":
            self._begin(rank)
        answer = self._reply(command, request)
        if answer is None:
            _log.warning("rank %d sent an unknown PMI request: %.200r", rank, line)
            answer = f"cmd={command or 'error'} rc=-1 msg=unknown_command"
        writer.write(f"{answer}\n".encode())
        return True

    def _reply(self, command: str, request: dict[str, str]) -> str | None:
        key = request.get("key", "")
        match command:
            case "init":
                return "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"
            case "get_maxes":
                return "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024"
            case "get_appnum":
                return "cmd=appnum rc=0 appnum=0"
            case "get_my_kvsname":
                return f"cmd=my_kvsname rc=0 kvsname={self._name}"
            case "get_universe_size":
                return f"cmd=universe_size rc=0 size={self._world_size}"
            case "put":
                self._puts[key] = request.get("value", "")
                return "cmd=put_result rc=0 msg=success"
            case "get" if key in self._values:
                return f"cmd=get_result rc=0 msg=success value={self._values[key]}"
            case "get":
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            case "finalize":
                return "cmd=finalize_ack rc=0"
        return None

    def _begin(self, rank: int) -> None:
        self._in_init.add(rank)
        if self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(
                self._init_timeout_s, self._look_for_missing, self._ranks
            )
        self._look_for_missing(self._gone)

    def _look_for_missing(self, among: Collection[int]) -> None:
        missing = tuple(sorted(set(among) - self._in_init))
        if self._in_init and missing and not self._told_missing:
            self._told_missing = True
            self._on_missing(tuple(sorted(self._in_init)), missing, self._gone.issuperset(missing))

    def _enter_barrier(self, rank: int, writer: asyncio.StreamWriter) -> None:
        self._entered[rank] = writer
        self._finish_barrier()

    def _finish_barrier(self) -> None:
        """Completes the barrier if all ranks that it needs have entered it.

        A rank that ended without MPI_Finalize must not hold up the others in
        theirs. In MPI_Init, where there are puts, its own would be missed.
        """
        present = len(self._entered) + (0 if self._puts else len(self._gone))
        if self._entered and present == len(self._ranks):
            entered, self._entered = self._entered, {}
            puts, self._puts = self._puts, {}
            name = f"pmi:{self._name}:{self._barriers}"
            self._barriers += 1
            self._start(self._complete_barrier(name, puts, tuple(entered.values())))

    async def _complete_barrier(
        self, name: str, puts: dict[str, str], writers: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        try:
            self._values.update(await self._fence(name, puts))
        except (DrumbeatError, OSError) as error:
            self._on_broken(str(error))
            return
        for writer in writers:
            if not writer.is_closing():
                writer.write(b"cmd=barrier_out rc=0\n")


def parse_line(line: str) -> dict[str, str]:
    """A request or answer of PMI-1 as a dict.

    `value` or `message` comes last and may contain spaces and equals signs.
    """
    line = line.rstrip("\n")
    fields: dict[str, str] = {}
    free_text = re.search(r" (value|message)=", line)
    if free_text:
        fields[free_text[1]] = line[free_text.end() :]
        line = line[: free_text.start()]
    for part in line.split():
        name, separator, value = part.partition("=")
        if separator:
            fields[name] = value
    return fields


def process_mapping(node_sizes: Sequence[int]) -> str:
    """Which ranks share a node, in the notation of `PMI_process_mapping`.

    A block `(first node, number of nodes, ranks on each)` for each run of nodes
    with equally many ranks; nodes without ranks are left out.

    >>> process_mapping([2, 2, 1])
    '(vector,(0,2,2),(2,1,1))'
    """
    blocks: list[str] = []
    first = 0
    for size, run in groupby(size for size in node_sizes if size > 0):
        count = sum(1 for _ in run)
        blocks.append(f"({first},{count},{size})")
        first += count
    return f"(vector,{','.join(blocks)})"


def mpi_environment(nodes: Sequence[Node], node_rank: int) -> dict[str, str]:
    """Environment with which the ranks of different nodes reach each other by MPI.

    - UCX_NET_DEVICES is the interface that has the node's address, if the node
      knows it. Left alone, UCX may choose an interface such as docker0, which
      has the same address on every machine and leads nowhere.
    - UCX_TLS is "tcp,self" when two nodes are on one machine (containers, network
      namespaces, a rehearsal): UCX would find shared memory there that MPICH was
      told not to use. Within a node MPICH's own shared memory is not affected.

    Nodes that know each other by loopback addresses get nothing: UCX can't go
    over the loopback interface alone, and does find its way within one machine.

    Empty for one node. Values that the user has set should win over these.
    """
    working = [node for node in nodes if node.num_workers > 0]
    if len(working) < 2 or any(_is_loopback(node.host) for node in working):
        return {}
    environment: dict[str, str] = {}
    interface = nodes[node_rank].interface
    if interface:
        environment["UCX_NET_DEVICES"] = interface
    if len({node.boot_id for node in working}) < len(working):
        environment["UCX_TLS"] = "tcp,self"
    return environment


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def shared_memory_path(name: str, node_index: int) -> Path:
    """The file through which the ranks of one node talk.

    MPICH calls it after the 32-bit FNV-1a hash of the job's name and unlinks it
    in MPI_Finalize; ranks that are killed leave it behind.
    """
    digest = 0x811C9DC5
    for byte in name.encode():
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    return _SHARED_MEMORY / f"mpich_shm_{digest:x}_{node_index}"


def _node_index(node_sizes: Sequence[int], ranks: Sequence[int]) -> int:
    """Position of the node with these ranks among those that have any."""
    for index, first in enumerate(_first_ranks(node_sizes)):
        if ranks and first == min(ranks):
            return index
    raise AssertionError(f"no node of {list(node_sizes)} starts with the ranks {list(ranks)}")


def _first_ranks(node_sizes: Sequence[int]) -> Iterator[int]:
    first = 0
    for size in node_sizes:
        if size > 0:
            yield first
        first += size
