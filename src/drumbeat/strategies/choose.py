"""Which strategy fits the cluster this process is in."""

from __future__ import annotations

import logging
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from drumbeat.cluster import ClusterSpec, Identity
from drumbeat.cluster.compression import Compress
from drumbeat.cluster.identity import AUTO_SHARES, EXACT_SHARDS, MAX_SHARE, check_jit
from drumbeat.collectives.choose import communicator
from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.choice import Choice
from drumbeat.collectives.compression.compression import Compression
from drumbeat.collectives.compression.machines import Machines
from drumbeat.data.shares import Shares
from drumbeat.errors import ConfigError
from drumbeat.state.waiting import WaitingNote
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.strategies.determinism import same_bytes_everywhere

logger = logging.getLogger("drumbeat")

DEFAULT_TIMEOUT_S = 600.0  # Deadline of a collective outside `drumbeat run`.

_made: dict[str, DataParallelStrategy] = {}


def strategy(
    env: Mapping[str, str] | None = None,
    *,
    exact: int | None = None,
    shares: Sequence[int] | str | None = None,
    compress: str | None = None,
    jit: str | None = None,
) -> tf.distribute.Strategy:
    """The strategy for this process's cluster.

    Under `drumbeat run` and wherever TF_CONFIG names more than one worker: a
    `DataParallelStrategy`. Alone: TensorFlow's default strategy, which costs
    nothing, but in exact mode. A process has one data-parallel strategy; later calls
    return the same.

    Args:
        env: Environment to read; `os.environ` when None.
        exact: Number of virtual shards; None for what `drumbeat run` was told.
        shares: How much each worker takes, "auto", or None for what `drumbeat run` was
            told.
        compress: How gradients are made smaller, or None for what `drumbeat run` was told.
        jit: Whether XLA compiles the parts of a step, or None for what `drumbeat run` was told.

    Raises:
        ConfigError: TF_CONFIG is wrong, this task takes no part in synchronous
            training (ps, evaluator), or `exact`, `shares`, `compress` or
            `jit` can't be used.
        CollectiveError: The other workers can't be reached.
    """
    env = os.environ if env is None else env
    if shares is not None and shares != AUTO_SHARES:
        _shares(shares)
    asked = None if compress is None else Compress.parse(compress)
    if jit is not None:
        check_jit(jit, exact)
    cluster = ClusterSpec.from_env(env)
    identity = Identity.from_env(env)
    alone = cluster is None or (identity is None and cluster.world_size == 1)
    wants_exact = exact is not None or (identity is not None and identity.exact is not None)
    if alone and not wants_exact and "strategy" not in _made:
        return tf.distribute.get_strategy()
    made = _the_one(cluster, identity, exact, shares, asked)
    if jit is not None:
        made.extended.jit = jit
    return made


def existing() -> DataParallelStrategy | None:
    """The data-parallel strategy of this process, if it has been made."""
    return _made.get("strategy")


def multi_worker(env: Mapping[str, str] | None = None) -> DataParallelStrategy:
    """The data-parallel strategy of this process, also when it is the only worker.

    What `tf.distribute.MultiWorkerMirroredStrategy()` returns under `drumbeat run`.
    """
    env = os.environ if env is None else env
    return _the_one(ClusterSpec.from_env(env), Identity.from_env(env), None, None)


def _the_one(
    cluster: ClusterSpec | None,
    identity: Identity | None,
    exact: int | None,
    shares: Sequence[int] | str | None,
    compress: Compress | None = None,
) -> DataParallelStrategy:
    """The strategy of this process, made at the first call."""
    if "strategy" not in _made:
        if identity is not None:
            compress = identity.compress if compress is None else compress
            exact = identity.exact if exact is None else exact
            shares = identity.shares if shares is None else shares
        compress = compress or Compress()
        compress.check(exact=exact)
        _made["strategy"] = _data_parallel(cluster, identity, exact, shares)
        _compress(_made["strategy"], compress, identity)
        if identity is not None:
            _made["strategy"].extended.jit = identity.jit
    made = _made["strategy"].extended
    if exact not in (None, made.exact):
        raise ConfigError(
            f"exact={exact} was asked for, but the strategy of this process was made with "
            f"exact={made.exact} before. Ask for it in the first call, or with drumbeat run "
            "--exact-shards."
        )
    compression = made.gradient_sync.compression
    in_use = Compress() if compression is None else compression.asked
    if compress not in (None, in_use):
        raise ConfigError(
            f"compress={compress} was asked for, but the strategy of this process was made with "
            f"compress={in_use} before. Ask for it in the first call, or with drumbeat run "
            "--compress."
        )
    return _made["strategy"]


def _compress(made: DataParallelStrategy, asked: Compress, identity: Identity | None) -> None:
    """Has `made` compress gradients, if that was `asked` for."""
    if not asked.is_on:
        return
    path = Path(identity.run_dir) / "compression.json" if identity and identity.run_dir else None
    workers = made.communicator
    machines = Machines.found(workers, 0 if identity is None else identity.local_rank)
    choice = Choice(workers, machines, path, 1 if identity is None else identity.attempt)
    made.extended.gradient_sync.compression = Compression(workers, asked, choice, machines)


def _data_parallel(
    cluster: ClusterSpec | None,
    identity: Identity | None,
    exact: int | None,
    shares: Sequence[int] | str | None,
) -> DataParallelStrategy:
    if cluster is not None:
        task = cluster.task
        if task is not None and cluster.rank_of(task) < 0:
            raise ConfigError(
                f"This process is {task}, which takes no part in synchronous training; expected "
                "a chief or worker. Use tf.distribute.get_strategy() in its part of the script."
            )
        cluster, note = cluster.without_ps()
        if note:
            logger.warning(note)
    if exact is not None:
        _check_exact(exact)
        same_bytes_everywhere()
    joined = _communicator(cluster, identity)
    return DataParallelStrategy(
        joined,
        _resolver(cluster),
        shares=None if shares is None or shares == AUTO_SHARES else _shares(shares),
        measure_shares=shares == AUTO_SHARES,
        exact=exact,
    )


def _check_exact(given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigError(
            f"exact is {given!r}; expected the number of virtual shards, a whole number above 0 "
            f"such as {EXACT_SHARDS}."
        )


def _shares(given: Sequence[int] | str) -> Shares:
    if isinstance(given, str) or not given or not all(map(_is_share, given)):
        raise ConfigError(
            f"shares are {given!r}; expected a whole number from 1 to {MAX_SHARE} for each worker, "
            f"such as [2, 1], or {AUTO_SHARES!r}."
        )
    return Shares.of([int(n) for n in given])


def _is_share(number: object) -> bool:
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        return False
    return 1 <= int(number) <= MAX_SHARE


def _communicator(cluster: ClusterSpec | None, identity: Identity | None) -> Communicator:
    if cluster is None or cluster.task is None:
        return communicator(identity)
    # So that the agent can tell who waits from who hangs.
    note = WaitingNote.from_env(os.environ)
    if identity is None:
        # Started by other means than `drumbeat run`: only TensorFlow's servers can
        # find each other by TF_CONFIG alone.
        identity = Identity(
            rank=cluster.rank_of(cluster.task),
            world_size=cluster.world_size,
            local_rank=0,
            local_world_size=1,
            collectives="tensorflow",
            run_dir="",
            name=str(cluster.task),
            timeout_s=DEFAULT_TIMEOUT_S,
        )
    return communicator(identity, cluster, note)


def _resolver(cluster: ClusterSpec | None) -> tf.distribute.cluster_resolver.ClusterResolver:
    if cluster is None or cluster.task is None:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    jobs = {job: dict(addresses) for job, addresses in cluster.jobs.items()}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type=cluster.task.type, task_id=cluster.task.index
    )
