"""Variables of drumbeat's own, for platforms that tell a process nothing else.

`DRUMBEAT_NODES`, `DRUMBEAT_NODE_RANK` and `DRUMBEAT_RENDEZVOUS` stand for the options of these
names.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumbeat.cluster.launched_by.found import Found, place_in, rank_of, whole
from drumbeat.errors import ConfigError

NODES, NODE_RANK, RENDEZVOUS = "DRUMBEAT_NODES", "DRUMBEAT_NODE_RANK", "DRUMBEAT_RENDEZVOUS"


def find(env: Mapping[str, str]) -> Found | None:
    """What they say; `kubernetes` has the rank where only the others are set.

    Raises:
        ConfigError: One is missing, or can't be used.
    """
    if NODES not in env or (NODE_RANK not in env and "JOB_COMPLETION_INDEX" in env):
        if NODE_RANK in env and NODES not in env:
            raise ConfigError(f"{NODE_RANK} is set, but {NODES} is not; expected both.")
        return None
    nodes = whole(env, NODES, least=1)
    rank = rank_of(env, NODE_RANK, nodes, NODES)
    if nodes == 1:
        return Found(platform="drumbeat", nodes=1, node_rank=0, host="", source=NODES)
    if RENDEZVOUS not in env:
        raise ConfigError(
            f"{NODES} is {nodes}, but {RENDEZVOUS} is not set; expected HOST:PORT, an address of "
            "node 0 with a port that is free there, the same on every node."
        )
    host, port = place_in(env[RENDEZVOUS], RENDEZVOUS)
    return Found(
        platform="drumbeat",
        nodes=nodes,
        node_rank=rank,
        host=host,
        port=port,
        source=f"{NODES}, {NODE_RANK}, {RENDEZVOUS}",
    )
