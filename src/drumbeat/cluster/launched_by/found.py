"""What a platform's environment says of a process, and how its variables are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumbeat.cluster.address import parse_address
from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

DEFAULT_PORT = 2222
"""Where the agents meet, on node 0: what TensorFlow's platforms use, in a network of the job's."""
MAX_NODES = 100_000
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A process among those that a platform has started.

    Attributes:
        platform: Its name.
        nodes: How many agents the job has: one in each process that the platform starts.
        node_rank: Which of them this is.
        host: Of node 0; "" with one node.
        port: Where the agents meet there.
        source: The variables that say so.
        note: What the user should know of it, if anything.
    """

    platform: str
    nodes: int
    node_rank: int
    host: str
    source: str
    port: int = DEFAULT_PORT
    note: str = ""

    def __str__(self) -> str:
        where = f", meeting at {self.host}:{self.port}" if self.nodes > 1 else ""
        what = f"node {self.node_rank} of {self.nodes}"
        note = f" {self.note}" if self.note else ""
        return f"{self.platform}: this is {what}{where}, by {self.source}.{note}"


def whole(env: Mapping[str, str], name: str, least: int = 0, most: int = MAX_NODES) -> int:
    """The number in a variable.

    Raises:
        ConfigError: It is not set, or no whole number from `least` to `most`.
    """
    text = env.get(name)
    if text is None:
        raise ConfigError(f"{name} is not set; expected a whole number from {least}.")
    if not re.fullmatch(r"\d{1,10}", text.strip(), re.ASCII) or not least <= int(text) <= most:
        raise ConfigError(
            f"{name} is {shown(text)}; expected a whole number from {least} to {most}."
        )
    return int(text)


def rank_of(env: Mapping[str, str], name: str, nodes: int, size: str) -> int:
    """The rank in a variable, below `nodes`, which `size` says.

    Raises:
        ConfigError: There is no such rank.
    """
    rank = whole(env, name)
    if rank >= nodes:
        raise ConfigError(f"{name} is {rank}, but {size} says {nodes}; expected 0 to {nodes - 1}.")
    return rank


def host_in(text: str, source: str) -> str:
    """`text`, if it can be a host's name or address.

    Raises:
        ConfigError: It can't.
    """
    host = text.strip()
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise ConfigError(f"{source} names the host {shown(text)}; expected a name or an address.")
    return host


def place_in(text: str, source: str) -> tuple[str, int]:
    """Host, as given, and port.

    Raises:
        ConfigError: It is no HOST:PORT.
    """
    address = parse_address(text, source)
    return text.rpartition(":")[0].strip("[]"), address.port


def json_in(env: Mapping[str, str], name: str) -> Any:
    """The JSON in a variable.

    Raises:
        ConfigError: It is something else.
    """
    try:
        return json.loads(env[name])
    except (ValueError, RecursionError):
        raise ConfigError(f"{name} is {shown(env[name])}; expected JSON.") from None
