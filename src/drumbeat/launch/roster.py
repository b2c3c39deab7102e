"""Who is in the rendezvous: nodes, whether one may join, and who is still missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from drumbeat.errors import RendezvousError


class NodesLost(RendezvousError):
    """A node that is waited for is gone without goodbye, or this one has lost touch.

    Those that are left can meet anew.
    """


class JobOver(RendezvousError):
    """The job has succeeded before this node could join it."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """What one agent says of itself to the others.

    Attributes:
        node_rank: 0 to the number of nodes - 1; 0 hosts the rendezvous.
        host: Address at which the others can reach this node.
        num_workers: Workers that this node runs; 0 is possible, and all an absent node has.
        ports: Reserved ports, one for each of its tasks, in the order of `tasks`.
        boot_id: Identity of the machine; equal for two nodes on one machine.
        tasks: Names for messages, such as "worker 0".
        settings: What must be the same on all nodes, such as the version of
            drumbeat and the collectives.
        interface: Network interface that has `host`, "" if unknown.
    """

    node_rank: int
    host: str
    num_workers: int
    ports: tuple[int, ...]
    boot_id: str
    tasks: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    interface: str = ""

    @property
    def is_absent(self) -> bool:
        """Whether the job goes on without it."""
        return not self.host

    def __str__(self) -> str:
        return f"node {self.node_rank} ({self.host})"


_NODE = TypeAdapter(Node)
_NODES = TypeAdapter(tuple[Node, ...])


def parse_node(data: object) -> Node:
    """A `Node` from a message.

    Raises:
        RendezvousError: A field is missing or of the wrong type.
    """
    try:
        return _NODE.validate_python(data)
    except ValidationError as error:
        raise RendezvousError(_malformed(error)) from None


def parse_roster(data: object) -> tuple[Node, ...]:
    """All nodes from a message, in the order of their node ranks. Raises as `parse_node`."""
    try:
        return tuple(sorted(_NODES.validate_python(data), key=lambda node: node.node_rank))
    except ValidationError as error:
        raise RendezvousError(_malformed(error)) from None


def with_absent(roster: Sequence[Node], num_nodes: int) -> tuple[Node, ...]:
    """`roster` with a place for each node, so that a node's rank is its place."""
    here = {node.node_rank: node for node in roster}
    return tuple(
        here.get(rank) or Node(node_rank=rank, host="", num_workers=0, ports=(), boot_id="")
        for rank in range(num_nodes)
    )


def refusal(
    node: Node, claimed_nodes: object, here: Mapping[int, Node], num_nodes: int
) -> str | None:
    """Why `node` can't join, as a sentence for its user; None if it can.

    Args:
        node: The node that asks.
        claimed_nodes: How many nodes it believes there are.
        here: The nodes that have joined, by node rank.
        num_nodes: How many nodes the host of the rendezvous expects.
    """
    if claimed_nodes != num_nodes:
        return (
            f"{node} was started for {claimed_nodes} nodes, but the rendezvous was started for "
            f"{num_nodes}. Give every machine the same number of nodes (--nodes, TF_CONFIG)."
        )
    if not 0 <= node.node_rank < num_nodes:
        return (
            f"{node} has a node rank that is out of range: with {num_nodes} nodes, expected "
            f"0 to {num_nodes - 1}. Give each machine its own --node-rank."
        )
    if node.node_rank in here:
        return (
            f"Node rank {node.node_rank} of {node.host} is taken already, by "
            f"{here[node.node_rank].host}. Give each machine its own --node-rank, from 0 to "
            f"{num_nodes - 1}."
        )
    return next((text for other in here.values() if (text := _difference(node, other))), None)


def _difference(node: Node, other: Node) -> str | None:
    for key in sorted(node.settings.keys() | other.settings.keys()):
        mine, theirs = node.settings.get(key), other.settings.get(key)
        if mine != theirs:
            return (
                f"The setting {key!r} is {_shown(mine)} on {node} and {_shown(theirs)} on {other}. "
                "It must be the same on every node: start all of them with the same version and "
                "options."
            )
    return None


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def missing_nodes(missing: Sequence[int], expected: Sequence[str]) -> str:
    """Names for messages: "node 2 (10.0.0.7:2222)", at most five of them.

    Args:
        missing: Node ranks.
        expected: A name for each node rank, such as "node 2 (10.0.0.7:2222)"; may be
            shorter, or empty when nobody knows.
    """
    names = [expected[rank] if rank < len(expected) else f"node {rank}" for rank in missing]
    if len(names) > 5:
        names = [*names[:4], f"{len(names) - 4} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def check_token(token: str) -> None:
    """Refuses an empty token.

    Raises:
        RendezvousError: It is empty.
    """
    if not token:
        raise RendezvousError(
            "The token of the rendezvous is empty. Set DRUMBEAT_TOKEN to the same secret on every "
            "machine of the job, such as the output of `openssl rand -hex 32`."
        )


def _malformed(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return (
        f"An agent described itself wrongly: {place}: {first['msg']}. Install the same version "
        "of drumbeat on every machine."
    )
