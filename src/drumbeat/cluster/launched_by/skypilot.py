"""SkyPilot: SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS, one address a line, the head first.

Source: SkyPilot's documentation of distributed jobs; skypilot 0.14 (skylet/constants.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from drumbeat.cluster.launched_by.found import Found, host_in, rank_of, whole
from drumbeat.errors import ConfigError

RANK, IPS, COUNT = "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES"


def find(env: Mapping[str, str]) -> Found | None:
    """The node among those of the task's `run` section.

    Raises:
        ConfigError: The variables contradict each other.
    """
    if RANK not in env:
        return None
    hosts = env.get(IPS, "").split()
    if not hosts:
        raise ConfigError(f"{RANK} is set, but {IPS} is empty; expected one address a line.")
    if COUNT in env and whole(env, COUNT, least=1) != len(hosts):
        raise ConfigError(
            f"{COUNT} is {env[COUNT].strip()}, but {IPS} has {len(hosts)} addresses; "
            "expected as many."
        )
    return Found(
        platform="SkyPilot",
        nodes=len(hosts),
        node_rank=rank_of(env, RANK, len(hosts), IPS),
        host=host_in(hosts[0], IPS) if len(hosts) > 1 else "",
        source=f"{RANK}, {IPS}",
    )
