"""An emulated network: two nodes, namespaces of this machine, and a cable of a given rate."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STREAM = Path(__file__).resolve().parents[1] / "workers" / "stream.py"
COMMAND_TIMEOUT_S = 20
# tbf sends in bursts: smaller than what passes between two ticks of the kernel's timer
# (4 ms at most), and it would never reach the rate.
BURST_S = 0.004


class NetworkMissing(RuntimeError):
    """Namespaces can't be made here; says why."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A cable between two nodes.

    Attributes:
        rate_gbit: Gbit/s, in each direction.
        names: The namespaces.
        addresses: Of the two nodes.
    """

    rate_gbit: float
    names: tuple[str, str]
    addresses: tuple[str, str]

    def prefix(self, node: int) -> list[str]:
        """What to put before a command that is to run on a node."""
        return ["ip", "netns", "exec", self.names[node]]


def _run(command: str) -> str:
    try:
        done = subprocess.run(
            command.split(), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise NetworkMissing("iproute2 is not installed") from error
    if done.returncode != 0:
        raise NetworkMissing(f"{command}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def link(rate_gbit: float) -> Iterator[Link]:
    """Two nodes and a cable, for the time of the context.

    Raises:
        NetworkMissing: This needs root, iproute2 and a kernel with veth and tbf.
    """
    if os.geteuid() != 0:
        raise NetworkMissing("network namespaces need root")
    mark = f"bench{os.getpid() % 100000}"
    names, addresses = (f"{mark}a", f"{mark}b"), ("10.204.0.1", "10.204.0.2")
    burst_bytes = int(rate_gbit * 1e9 / 8 * BURST_S)
    try:
        for name in names:
            _run(f"ip netns add {name}")
        _run(f"ip link add v0 netns {names[0]} type veth peer name v0 netns {names[1]}")
        for name, address in zip(names, addresses, strict=True):
            _run(f"ip -n {name} addr add {address}/24 dev v0")
            _run(f"ip -n {name} link set v0 up")
            _run(f"ip -n {name} link set lo up")
            _run(
                f"tc -n {name} qdisc add dev v0 root tbf rate {rate_gbit}gbit "
                f"burst {burst_bytes} latency 50ms"
            )
        _wait_until_up(names)
        yield Link(rate_gbit=rate_gbit, names=names, addresses=addresses)
    finally:
        for name in names:
            with contextlib.suppress(FileNotFoundError, subprocess.TimeoutExpired):
                subprocess.run(
                    ["ip", "netns", "del", name], capture_output=True, timeout=COMMAND_TIMEOUT_S
                )


def _wait_until_up(names: tuple[str, str]) -> None:
    """Waits until the cable carries: UCX takes an interface for absent before."""
    deadline = time.monotonic() + 10
    for name in names:
        while "state UP" not in _run(f"ip -n {name} -o link show v0"):
            if time.monotonic() > deadline:
                raise NetworkMissing(f"the cable of {name} never came up")
            time.sleep(0.05)


def exchange_ms(cable: Link, size_bytes: int) -> float:
    """The floor of an all-reduce of two nodes: each sends so many bytes to the other, at once.

    Each needs all of the other's part, or half of it and half of the sum: as many bytes.
    """
    command = [sys.executable, str(STREAM), cable.addresses[0], str(size_bytes)]
    started = [
        subprocess.Popen([*cable.prefix(node), *command, str(node)], stdout=subprocess.PIPE)
        for node in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    return statistics.median(float(text) for text in said)
