"""How many workers a node runs and, where nodes may come and go, how few the job. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumbeat.cluster.identity import shares_text
from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

if TYPE_CHECKING:
    from drumbeat.launch.place import Place
    from drumbeat.launch.settings import RunArguments


@dataclass(frozen=True)
class Range:
    """How many workers the whole job may have.

    Attributes:
        least: With fewer it ends.
        most: With these it starts, if all nodes come.
    """

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}"


def parse_workers(text: str | None) -> int | Range | None:
    """What was given as `--workers`: "4", or "2:4".

    Raises:
        ConfigError: Neither.
    """
    if text is None:
        return None
    least, colon, most = text.partition(":")
    try:
        return Range(int(least), int(most)) if colon else int(least)
    except ValueError:
        raise ConfigError(
            f"-n is {shown(text)}; expected a number of workers such as 4, or on several machines "
            "the least and the most of the whole job, such as 2:4."
        ) from None


def plan_sizes(arguments: RunArguments, place: Place) -> tuple[int, int]:
    """How many workers this node runs, and with how few nodes the job goes on.

    Raises:
        ConfigError: They can't be had as given.
    """
    if not isinstance(arguments.workers, Range):
        return 1 if arguments.workers is None else arguments.workers, place.nodes
    given, nodes = arguments.workers, place.nodes
    if not 1 <= given.least <= given.most:
        raise ConfigError(f"-n is {given}; expected the least number of workers, from 1, first.")
    if nodes == 1:
        raise ConfigError(
            f"-n is {given}, but there is one node: a job gets smaller when it loses a machine, "
            f"and a worker that dies is started again on the same one. Give -n {given.most}, or "
            "--nodes."
        )
    if given.most % nodes:
        raise ConfigError(
            f"-n is {given}: {given.most} workers can't be shared evenly by {nodes} nodes. Each "
            "node runs as many; expected a most that the number of nodes divides, such as "
            f"{given.least}:{nodes * max(1, given.most // nodes)}."
        )
    own = given.most // nodes
    fewest = -(-given.least // own)
    _check_range(given, arguments, place)
    for count in range(fewest, nodes + 1):
        if arguments.exact and arguments.exact % (own * count):
            raise ConfigError(
                f"-n is {given}, and with {count} nodes there are {own * count} workers, which "
                f"can't share {arguments.exact} virtual shards evenly. Give --exact-shards a "
                "number that every possible number of workers divides."
            )
    return own, fewest


def _check_range(given: Range, arguments: RunArguments, place: Place) -> None:
    """What does not go together with a job whose size changes."""
    on_platform = place.platform is not None and "ps" in place.platform.jobs
    if arguments.ps or on_platform:
        raise ConfigError(
            f"-n is {given} in a job with parameter servers, which hold state that no snapshot "
            f"has. Give the workers of each node, such as -n {given.most // place.nodes}."
        )
    if arguments.shares and arguments.shares != "auto":
        raise ConfigError(
            f"--shares is {arguments.shares}, which is for one number of workers, but -n is "
            f"{given}. Leave it out, or give --shares auto."
        )
    for option, value in (
        ("--max-restarts", arguments.max_restarts),
        ("--snapshot-every", arguments.snapshot_every),
    ):
        if value == 0:
            raise ConfigError(
                f"{option} is 0, but -n is {given}: a job that gets smaller or larger is started "
                f"again from its last snapshot. Leave out {option} 0, or give "
                f"-n {given.most // place.nodes}."
            )


def check_shares(workers: int, shares: tuple[int, ...] | str | None, exact: int | None) -> None:
    """What the strategy would say later, in every worker; on several nodes only it can.

    Raises:
        ConfigError: They don't fit the number of workers.
    """
    if isinstance(shares, tuple) and len(shares) != workers:
        raise ConfigError(
            f"--shares is {shares_text(shares)}, but there are {workers} workers; expected a "
            "number for each."
        )
    if exact and shares is not None:
        raise ConfigError("--exact gives every worker equal parts; leave out --shares.")
    if exact and exact % workers:
        raise ConfigError(
            f"{workers} workers can't share {exact} virtual shards evenly. Give -n a divisor of "
            f"{exact}, or --exact-shards a multiple of {workers}, such as "
            f"{workers * -(-exact // workers)}."
        )
