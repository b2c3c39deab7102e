"""What `drumbeat rehearse` asks of the agents, and the form in which they answer. Pure.

The command puts a `Rehearsing` into the environment of each process; an agent that finds it ends
its job after a few steps, and writes a `Report`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

VARIABLE = "DRUMBEAT_REHEARSAL"


@dataclass(frozen=True, kw_only=True)
class Rehearsing:
    """The order to end the job after a few steps.

    Attributes:
        steps: How many optimizer steps each worker makes at least; 1 or more.
        report: The file for the agent's report, `<process>.json` in the rehearsal's folder.
    """

    steps: int
    report: Path

    @property
    def outputs(self) -> Path:
        """In place of DRUMBEAT_OUTPUT, the same for all processes."""
        return self.report.parent / "outputs"

    @property
    def backup_dir(self) -> Path:
        """In place of --backup-dir, the same for all."""
        return self.outputs / "backups"

    @property
    def run_dir(self) -> Path:
        """In place of --run-dir."""
        return self.report.with_suffix("")

    def to_env(self) -> dict[str, str]:
        """The environment variable that carries this to the agent and its workers."""
        return {VARIABLE: f"{self.steps}:{self.report}"}

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Rehearsing | None:
        """What a rehearsal has put into `env`, or None outside of one.

        Raises:
            ConfigError: The variable is malformed.
        """
        if VARIABLE not in env:
            return None
        steps, _, report = env[VARIABLE].partition(":")
        if not (steps.isascii() and steps.isdigit() and int(steps)) or not report:
            raise ConfigError(
                f"{VARIABLE} is {shown(env[VARIABLE])}; expected STEPS:FILE, as `drumbeat "
                "rehearse` writes it. Unset it."
            )
        return cls(steps=int(steps), report=Path(report))


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an agent says at its end.

    Attributes:
        node_rank: Its node among `nodes`.
        nodes: How many it was to meet, itself among them.
        workers: How many workers of all nodes trained together; 0 where it came to no training.
        steps: That the workers of this node have finished; 0 where they are not counted.
        apart: A worker of this node trained a model that the others know nothing of.
        task: The task of a platform's cluster that the others don't wait for, or "".
        code: Its exit code.
    """

    node_rank: int
    nodes: int
    workers: int
    steps: int
    apart: bool
    task: str
    code: int

    def to_bytes(self) -> bytes:
        """The report as a file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, path: Path) -> Report | None:
        """The report in a file; None where no agent has written one."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
