"""`drumbeat doctor --together`: the nodes meet as a job's agents do, and try to reach each other.

They meet through the job's own rendezvous, with its token. What a node says of itself, and
whom it reaches, passes through fences; all nodes know everything in the end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drumbeat.control.doctor.machine import Machine
from drumbeat.control.doctor.places import OPEN, Reach
from drumbeat.control.doctor.together import Reached
from drumbeat.launch.doctor.facts import Marker
from drumbeat.launch.doctor.reach import Beacon, probe
from drumbeat.launch.meeting import address_towards
from drumbeat.launch.place import Place
from drumbeat.launch.rendezvous import LATE_S, Client, Node, Server

FENCE_TIMEOUT_S = 120.0
MAX_NAMING_NODES = 64
"""With more, the names of all their files would be too much for one message."""
_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Together:
    """What all nodes know after they met.

    Attributes:
        hosts: Where each node is, by its rank.
        machines: What each said of itself.
        reached: How the tries of each to reach the others ended.
        absent: Ranks of nodes that did not come.
    """

    hosts: Mapping[int, str]
    machines: Mapping[int, Machine]
    reached: Reached
    absent: tuple[int, ...] = ()


async def meet(
    place: Place,
    token: str,
    machine: Machine,
    *,
    output: str | None,
    folder: Path,
    timeout_s: float,
    say: Callable[[str], None],
) -> Together:
    """Meets the other nodes, exchanges what is known, and tries to reach each of them.

    Args:
        place: This node among them.
        token: Their secret.
        machine: What this one says of itself.
        output: Where the job's output goes.
        folder: The working folder.
        timeout_s: How long to wait for nodes to come; then it goes on without them.
        say: Told who is missing.

    Raises:
        RendezvousError: Nobody came, or this node could not reach the rendezvous.
    """
    assert place.rendezvous is not None, "find_place sees to it"  # noqa: S101
    mark = secrets.token_hex(8)
    beacon, server, client = Beacon(mark), None, None
    try:
        await beacon.start(_own_ports(place))
        if place.node_rank == 0:
            server = await Server.start(
                place.rendezvous, token, place.nodes, min_nodes=1, timeout_s=timeout_s
            )
        client = await Client.join(
            server.address if server else place.rendezvous,
            token,
            _node(place, beacon),
            place.nodes,
            # Node 0 may have begun to wait later; it decides when to go on.
            timeout_s=timeout_s + min(LATE_S, timeout_s),
            on_waiting=say,
            expected=tuple(f"{task}" for task in place.tasks),
        )
        return await _exchange(client, place.node_rank, machine, mark, output, folder)
    finally:
        if client is not None:
            await client.leave()
        if server is not None:
            await server.close("the doctor has seen enough")
        beacon.close()


def _own_ports(place: Place) -> tuple[int, ...]:
    """The port that TF_CONFIG gives to this task, but for the one where all meet."""
    cluster = place.platform
    if cluster is None or cluster.task is None or cluster.task not in cluster.tasks:
        return ()
    port = int(cluster.address(cluster.task).rpartition(":")[2])
    is_meeting = place.node_rank == 0 and place.rendezvous and place.rendezvous[1] == port
    return () if is_meeting else (port,)


def _node(place: Place, beacon: Beacon) -> Node:
    cluster = place.platform
    if cluster is not None and cluster.task in cluster.tasks:
        host = cluster.address(cluster.task).rpartition(":")[0].strip("[]")  # type: ignore[arg-type]
    else:
        assert place.rendezvous is not None  # noqa: S101
        host = address_towards(place.rendezvous)
    return Node(
        node_rank=place.node_rank,
        host=host,
        num_workers=1,
        ports=beacon.ports,
        boot_id="",
        # Agents of a job are told that this is none.
        settings={"command": "drumbeat doctor"},
    )


async def _exchange(
    client: Client, rank: int, machine: Machine, mark: str, output: str | None, folder: Path
) -> Together:
    present = [node.node_rank for node in client.roster if not node.is_absent]
    absent = tuple(node.node_rank for node in client.roster if node.is_absent)

    async def fence(name: str, value: Any) -> dict[int, Any]:
        brought = {f"{name}.{rank}": json.dumps(value)}
        merged = await client.fence(name, brought, FENCE_TIMEOUT_S, among=present)
        return {int(key.rpartition(".")[2]): json.loads(text) for key, text in merged.items()}

    marks = await fence("mark", mark)
    hosts = {node.node_rank: node.host for node in client.roster if not node.is_absent}
    ports = {node.node_rank: node.ports for node in client.roster if not node.is_absent}
    tries = await _try_all(
        {whom: [(hosts[whom], port) for port in ports[whom]] for whom in present if whom != rank},
        marks,
    )
    told = await fence("reach", {str(whom): asdict(reach) for whom, reach in tries.items()})
    reached = {
        (who, int(whom)): Reach(**{**reach, "ips": tuple(reach["ips"])})
        for who, row in told.items()
        for whom, reach in row.items()
    }
    machine = await _with_shared_output(client.job_id, fence, rank, machine, output, folder)
    if len(present) > MAX_NAMING_NODES:
        machine = dataclasses.replace(machine, files={})
    machines = await fence("machine", machine.to_json())
    return Together(
        hosts=hosts,
        machines={who: Machine.from_json(each) for who, each in sorted(machines.items())},
        reached=reached,
        absent=absent,
    )


async def _try_all(
    places: Mapping[int, list[tuple[str, int]]], marks: Mapping[int, str]
) -> dict[int, Reach]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(whom: int) -> Reach:
        async with gate:
            tries = [await probe(address, mark=marks[whom]) for address in places[whom]]
        return _worst(tries, [port for _, port in places[whom]])

    found = await asyncio.gather(*(one(whom) for whom in places))
    return dict(zip(places, found, strict=True))


def _worst(tries: list[Reach], ports: list[int]) -> Reach:
    """Of the tries at a node's ports the first that failed, with what else is to be said."""
    states = {port: reach.state for port, reach in zip(ports, tries, strict=True)}
    failed = next((reach for reach in tries if reach.state != OPEN), None)
    if failed is None:
        return tries[0]
    if len(set(states.values())) > 1:
        said = ", ".join(f"port {port}: {state}" for port, state in states.items())
        return dataclasses.replace(failed, detail=said)
    return failed


async def _with_shared_output(
    job_id: str,
    fence: Callable[[str, Any], Any],
    rank: int,
    machine: Machine,
    output: str | None,
    folder: Path,
) -> Machine:
    """`machine`, with what it says of a file that node 0 has written into the output."""
    wanted = await fence("output", output)
    if not all(wanted.values()) or machine.output is None:
        return machine
    assert output is not None  # noqa: S101
    marker = Marker(output, folder, job_id)
    why = await asyncio.to_thread(marker.write) if rank == 0 else ""
    written = (await fence("written", why)).get(0, "")
    if written:
        await fence("seen", "")
        return machine
    missing = await asyncio.to_thread(marker.read) if rank else ""
    await fence("seen", missing)
    if rank == 0:
        await asyncio.to_thread(marker.remove)
    if missing and machine.output.seen:
        text = (
            f"a file that node 0 has written to {output} is not seen here ({missing}). Expected a "
            "folder that all nodes share, or a URL: models and backups would be where nobody "
            "looks for them."
        )
        return dataclasses.replace(
            machine, output=dataclasses.replace(machine.output, seen=False, problem=text)
        )
    return machine
