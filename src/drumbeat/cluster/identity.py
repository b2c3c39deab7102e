"""Who a process is in its job: what an agent tells each worker it starts.

The agent writes an `Identity` into the worker's environment, the worker reads
it back. Nothing else passes between them through the environment.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drumbeat.cluster import strategy_names
from drumbeat.cluster.averaging import Averaging
from drumbeat.cluster.compression import Compress
from drumbeat.errors import ConfigError

if TYPE_CHECKING:
    from drumbeat.cluster.spec import ClusterSpec

TENSORFLOW, JAX = "tensorflow", "jax"
BACKENDS = (TENSORFLOW, JAX)
"""Of Keras."""
COLLECTIVES = ("mpi", "tensorflow", "jax")
AUTO_SHARES = "auto"
JIT_CHOICES = ("auto", "on", "off")
"""Whether XLA compiles the parts of a training step."""
MAX_SHARE = 1_000_000
"""Rows times shares stay within 64 bits."""
PID_VARIABLE = "DRUMBEAT_PID"
"""The process that the other variables are meant for, which sets it itself."""
DEFAULT_TIMEOUT_S = 600.0
"""Of a collective where nobody says."""
DEFAULT_BACKUP_EVERY_S = 300.0
"""Only the loss of all nodes at once costs so much training: what one node loses, others hold."""
EXACT_SHARDS = 8
"""Virtual shards of exact mode where nobody says how many."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A process's place among the workers that train synchronously.

    Attributes:
        rank: 0 to `world_size - 1`; 0 is the chief. -1 for a task that does not
            take part in the synchronous training (ps, evaluator).
        world_size: How many workers train together.
        local_rank: Position among the workers of the same node, from 0.
        local_world_size: Workers on this node.
        collectives: "mpi" or "tensorflow"; "jax" where that is Keras's backend, and does all
            by itself.
        run_dir: Folder of this run; each worker owns `<run_dir>/<name>/` in it.
        name: How logs call the process, such as "worker 1" or "ps 0".
        timeout_s: Deadline of one collective, seconds.
        seed: What Python, NumPy and TensorFlow are seeded with before the script
            starts, alike on all workers; None leaves them alone.
        keep_tf_strategies: Leave `tf.distribute.MultiWorkerMirroredStrategy` and its
            like as TensorFlow made them.
        strict_names: Leave it to Keras 3 to refuse names that it has no more.
        strategy: What was asked for, one of `strategy_names.CHOICES`; but for "auto" it
            wins over what a script names.
        devices_per_worker: Devices that this process trains on.
        exact: Number of virtual shards in exact mode; None outside of it.
        shares: How much of each global batch each worker takes: a number for each, or
            "auto" to measure it; None for equal parts.
        jit: Whether XLA compiles the parts of a step, one of `JIT_CHOICES`.
        compress: How gradients are made smaller before they travel.
        averaging: How often workers average their weights, instead of summing gradients.
        backup_dir: Path or URL of the folder for backups; None for none.
        backup_every_s: Seconds from one backup to the next.
        snapshot_every: Steps from one snapshot to the next, 0 for none; None for as often
            as they cost little.
        has_evaluator: An evaluator looks at the weights that the chief leaves it.
        attempt: Number of the job's attempt, from 1; more after a restart.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    collectives: str
    run_dir: str
    name: str
    timeout_s: float
    seed: int | None = None
    keep_tf_strategies: bool = False
    strict_names: bool = False
    strategy: str = strategy_names.AUTO
    devices_per_worker: int = 1
    exact: int | None = None
    shares: tuple[int, ...] | str | None = None
    compress: Compress = Compress()
    averaging: Averaging = Averaging()
    jit: str = "auto"
    backup_dir: str | None = None
    backup_every_s: float = DEFAULT_BACKUP_EVERY_S
    snapshot_every: int | None = None
    has_evaluator: bool = False
    attempt: int = 1

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0, the one that writes models and logs."""
        return self.rank == 0

    def to_env(self) -> dict[str, str]:
        """The environment variables that carry this identity to a child process."""
        return {
            "DRUMBEAT_RANK": str(self.rank),
            "DRUMBEAT_ATTEMPT": str(self.attempt),
            "DRUMBEAT_WORLD_SIZE": str(self.world_size),
            "DRUMBEAT_LOCAL_RANK": str(self.local_rank),
            "DRUMBEAT_LOCAL_WORLD_SIZE": str(self.local_world_size),
            "DRUMBEAT_COLLECTIVES": self.collectives,
            "DRUMBEAT_RUN_DIR": self.run_dir,
            "DRUMBEAT_NAME": self.name,
            "DRUMBEAT_COLLECTIVE_TIMEOUT_S": repr(self.timeout_s),
            "DRUMBEAT_SEED": "" if self.seed is None else str(self.seed),
            "DRUMBEAT_KEEP_TF_STRATEGIES": str(int(self.keep_tf_strategies)),
            "DRUMBEAT_HAS_EVALUATOR": str(int(self.has_evaluator)),
            "DRUMBEAT_STRICT_NAMES": str(int(self.strict_names)),
            "DRUMBEAT_STRATEGY": self.strategy,
            "DRUMBEAT_DEVICES_PER_WORKER": str(self.devices_per_worker),
            "DRUMBEAT_EXACT": "" if self.exact is None else str(self.exact),
            "DRUMBEAT_SHARES": shares_text(self.shares),
            "DRUMBEAT_COMPRESS": str(self.compress),
            "DRUMBEAT_SYNC_EVERY": str(self.averaging),
            "DRUMBEAT_JIT": self.jit,
            "DRUMBEAT_BACKUP_DIR": self.backup_dir or "",
            "DRUMBEAT_BACKUP_EVERY_S": repr(self.backup_every_s),
            "DRUMBEAT_SNAPSHOT_EVERY": (
                "" if self.snapshot_every is None else str(self.snapshot_every)
            ),
        }

    @classmethod
    def outside(cls, rank: int = 0, world_size: int = 1, **more: Any) -> Identity:
        """The identity of a process that other means than `drumbeat run` have started.

        Only TensorFlow's servers can find each other without an agent, so they carry the
        collectives.
        """
        usual = {"run_dir": "", "name": "worker 0", "timeout_s": DEFAULT_TIMEOUT_S}
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=0,
            local_world_size=1,
            collectives="tensorflow",
            **{**usual, **more},
        )

    @classmethod
    def by_tf_config(cls, cluster: ClusterSpec | None) -> Identity:
        """The identity of such a process, by TF_CONFIG.

        The seed is the same wherever the cluster is the same.
        """
        if cluster is None or cluster.task is None:
            return cls.outside()
        described = json.dumps({job: dict(tasks) for job, tasks in cluster.jobs.items()})
        return cls.outside(
            cluster.rank_of(cluster.task),
            cluster.world_size,
            name=str(cluster.task),
            seed=zlib.crc32(described.encode()),
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Identity | None:
        """The identity an agent put into `env`, or None outside `drumbeat run`.

        Processes that a worker's script starts inherit its environment, but are other workers,
        or none: `PID_VARIABLE` tells.

        Raises:
            ConfigError: A variable of the set is missing or malformed.
        """
        own_pid = str(os.getpid())
        if "DRUMBEAT_RANK" not in env or env.get(PID_VARIABLE, own_pid) != own_pid:
            return None
        try:
            identity = cls(
                rank=int(env["DRUMBEAT_RANK"]),
                attempt=int(env["DRUMBEAT_ATTEMPT"]),
                world_size=int(env["DRUMBEAT_WORLD_SIZE"]),
                local_rank=int(env["DRUMBEAT_LOCAL_RANK"]),
                local_world_size=int(env["DRUMBEAT_LOCAL_WORLD_SIZE"]),
                collectives=env["DRUMBEAT_COLLECTIVES"],
                run_dir=env["DRUMBEAT_RUN_DIR"],
                name=env["DRUMBEAT_NAME"],
                timeout_s=float(env["DRUMBEAT_COLLECTIVE_TIMEOUT_S"]),
                seed=int(env["DRUMBEAT_SEED"]) if env["DRUMBEAT_SEED"] else None,
                keep_tf_strategies=bool(int(env["DRUMBEAT_KEEP_TF_STRATEGIES"])),
                has_evaluator=bool(int(env["DRUMBEAT_HAS_EVALUATOR"])),
                strict_names=bool(int(env["DRUMBEAT_STRICT_NAMES"])),
                strategy=env["DRUMBEAT_STRATEGY"],
                devices_per_worker=int(env["DRUMBEAT_DEVICES_PER_WORKER"]),
                exact=int(env["DRUMBEAT_EXACT"]) if env["DRUMBEAT_EXACT"] else None,
                shares=parse_shares(env["DRUMBEAT_SHARES"]),
                compress=Compress.parse(env["DRUMBEAT_COMPRESS"]),
                averaging=Averaging.parse(env["DRUMBEAT_SYNC_EVERY"]),
                jit=env["DRUMBEAT_JIT"],
                backup_dir=env["DRUMBEAT_BACKUP_DIR"] or None,
                backup_every_s=float(env["DRUMBEAT_BACKUP_EVERY_S"]),
                snapshot_every=(
                    int(env["DRUMBEAT_SNAPSHOT_EVERY"]) if env["DRUMBEAT_SNAPSHOT_EVERY"] else None
                ),
            )
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"The DRUMBEAT_* variables an agent sets are incomplete or malformed: {error}. "
                "Expected all of them, as `drumbeat run` writes them. Unset DRUMBEAT_RANK to run "
                "the script alone."
            ) from None
        if identity.collectives not in COLLECTIVES:
            raise ConfigError(
                f"DRUMBEAT_COLLECTIVES is {identity.collectives!r}; expected one of {COLLECTIVES}."
            )
        strategy_names.check(identity.strategy, "DRUMBEAT_STRATEGY")
        return identity


def check_jit(given: object, exact: int | None) -> None:
    """Whether `given` says if XLA compiles steps.

    Raises:
        ConfigError: It doesn't, or exact mode can't have it.
    """
    if given not in JIT_CHOICES:
        raise ConfigError(f"jit is {given!r}; expected one of {', '.join(JIT_CHOICES)}.")
    if given == "on" and exact is not None:
        raise ConfigError(
            f"jit=on and exact={exact} exclude each other: XLA does not compute the same bytes for "
            "any number of workers. Leave one of them out."
        )


def parse_shares(text: str) -> tuple[int, ...] | str | None:
    """Inverse of `shares_text`: "2,1", "auto" or "".

    Raises:
        ConfigError: Something else, or a share below 1 or above `MAX_SHARE`.
    """
    if text in ("", AUTO_SHARES):
        return text or None
    try:
        shares = tuple(int(part) for part in text.split(","))
    except ValueError:
        shares = (0,)
    if min(shares) < 1 or max(shares) > MAX_SHARE:
        raise ConfigError(
            f"shares are {text!r}; expected a whole number from 1 to {MAX_SHARE} for each worker, "
            "such as 2,1 where the first takes twice as many rows as the second, or auto."
        )
    return shares


def shares_text(shares: tuple[int, ...] | str | None) -> str:
    """As `--shares` and the environment have them."""
    if shares is None or isinstance(shares, str):
        return shares or ""
    return ",".join(map(str, shares))
