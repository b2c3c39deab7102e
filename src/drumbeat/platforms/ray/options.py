"""The options of `drumbeat.platforms.ray.driver`, for it and for those who write or read them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields

from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile.amounts import plain_number

MODULE = "drumbeat.platforms.ray.driver"
PLACEMENTS = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the driver needs to know.

    Attributes:
        nodes: Bundles of the placement group, with an agent in each.
        cpus: Of each.
        gpus: Of each.
        memory: Bytes of each; 0 for no wish.
        accelerator: As Ray calls the kind of GPU; "" for any.
        placement: Ray's strategy.
        start_timeout: Seconds to wait for room in the cluster.
        grace: Seconds that agents may take to save their state.
        timeout: Seconds until the job is ended; 0 for none.
        command: What each agent is.
    """

    nodes: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    accelerator: str = ""
    placement: str = PLACEMENTS[0]
    start_timeout: float = 600.0
    grace: float = 25.0
    timeout: float = 0.0
    command: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """The options that differ from the defaults, as they are typed, then the command."""
        words: list[str] = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "command" and value != each.default:
                shown = plain_number(value) if isinstance(value, float) else value
                words += ["--" + each.name.replace("_", "-"), str(shown)]
        return [*words, "--", *self.command]

    @property
    def bundle(self) -> dict[str, float]:
        """What each node needs, as Ray counts it."""
        found: dict[str, float] = {"CPU": self.cpus}
        if self.gpus:
            found["GPU"] = self.gpus
        if self.memory:
            found["memory"] = self.memory
        if self.accelerator:
            found[f"accelerator_type:{self.accelerator}"] = 0.001
        return found


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise ConfigError(f"python -m {MODULE}: {message}.")


def parse(words: Sequence[str]) -> Options:
    """The options that were typed.

    Raises:
        ConfigError: They can't be used.
    """
    parser = _Parser(prog=f"python -m {MODULE}", description="Runs a command on nodes of Ray.")
    for each in fields(Options):
        if each.name == "command":
            continue
        name = "--" + each.name.replace("_", "-")
        choices = PLACEMENTS if each.name == "placement" else None
        parser.add_argument(name, type=type(each.default), default=each.default, choices=choices)
    parser.add_argument("command", nargs="+")
    given = vars(parser.parse_args(list(words)))
    options = Options(**{**given, "command": tuple(given["command"])})
    for name in ("nodes", "cpus", "start_timeout"):
        if not getattr(options, name) > 0:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(options, name)}.")
    return options
