"""Which strategy fits the cluster this process is in."""

from __future__ import annotations

import functools
import logging
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from drumbeat.cluster import ClusterSpec, Identity, strategy_names
from drumbeat.cluster.averaging import Averaging
from drumbeat.cluster.compression import Compress
from drumbeat.cluster.identity import AUTO_SHARES, EXACT_SHARDS, MAX_SHARE, check_jit
from drumbeat.cluster.strategy_names import Facts
from drumbeat.collectives.choose import communicator
from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.choice import Choice
from drumbeat.collectives.compression.compression import Compression
from drumbeat.collectives.compression.machines import Machines
from drumbeat.data.shares import Shares
from drumbeat.errors import ConfigError
from drumbeat.state.waiting import WaitingNote
from drumbeat.strategies import local_devices, parameter_server
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.strategies.determinism import same_bytes_everywhere
from drumbeat.strategies.local_sgd import LocalSgd
from drumbeat.strategies.placement import Placement, first_devices

logger = logging.getLogger("drumbeat")

_made: dict[str, DataParallelStrategy] = {}
_others: dict[str, tf.distribute.Strategy] = {}
_implied: dict[str, DataParallelStrategy] = {}


def strategy(
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    *,
    exact: int | None = None,
    shares: Sequence[int] | str | None = None,
    compress: str | None = None,
    averaging: Averaging | None = None,
    jit: str | None = None,
    min_shard_bytes: int | None = None,
) -> tf.distribute.Strategy:
    """The strategy for this process's cluster.

    Which one, `strategy_names.decide` says. Later calls in a process return the same.

    Args:
        name: One of `strategy_names.CHOICES`, or None for what `drumbeat run` was told; what
            that was told wins, but for "auto".
        env: Environment to read; `os.environ` when None.
        exact: Number of virtual shards; None for what `drumbeat run` was told.
        shares: How much each worker takes, "auto", or None for what `drumbeat run` was
            told.
        compress: How gradients are made smaller, or None for what `drumbeat run` was told.
        averaging: How often workers average their weights instead of summing gradients, or None
            for what `drumbeat run` was told.
        jit: Whether XLA compiles the parts of a step, or None for what `drumbeat run` was told.
        min_shard_bytes: With parameter servers: cut variables over the ps tasks, into parts of at
            least so many bytes. Of no account under other strategies.

    Raises:
        ConfigError: TF_CONFIG is wrong, this task takes no part in the training (ps,
            evaluator), the cluster can't have the strategy, or `exact`, `shares`,
            `compress` or `jit` can't be used.
        CollectiveError: The other workers can't be reached.
    """
    env = os.environ if env is None else env
    if shares is not None and shares != AUTO_SHARES:
        _shares(shares)
    asked = None if compress is None else Compress.parse(compress)
    if jit is not None:
        check_jit(jit, exact)
    if name is not None:
        strategy_names.check(name, "strategy")
    cluster = ClusterSpec.from_env(env)
    identity = Identity.from_env(env)
    options = _of_multi_worker(identity, exact, shares, asked, averaging)
    if _is_evaluator(cluster):
        return tf.distribute.get_strategy()
    chosen = _chosen(name, cluster, identity, options)
    if chosen == strategy_names.ONE_DEVICE and (options or _made):
        chosen = strategy_names.MULTI_WORKER
    if chosen != strategy_names.MULTI_WORKER:
        if chosen == strategy_names.PARAMETER_SERVER:
            return _other(chosen, cluster, min_shard_bytes=min_shard_bytes)
        return _other(chosen, cluster)
    made = _the_one(cluster, identity, exact, shares, asked, averaging)
    if jit is not None:
        made.extended.jit = jit
    return made


def existing() -> DataParallelStrategy | None:
    """The data-parallel strategy of this process, if it has been made.

    Of all workers, or else of its own devices.
    """
    return _made.get("strategy") or local_devices.existing()


def implied() -> DataParallelStrategy | None:
    """The strategy for what a script trains without naming any: all workers, or devices, train it.

    None where the script has made a strategy itself, where nobody asked for several workers or
    devices or for what only data-parallel training has, and with parameter servers, which have to
    hold the variables from the start.

    Raises:
        ConfigError: As `strategy`.
        CollectiveError: The other workers can't be reached.
    """
    if "strategy" not in _implied:
        if existing() is not None or _others or tf.distribute.has_strategy():
            return None
        if not is_asked_for():
            return None
        made = strategy()
        if not isinstance(made, DataParallelStrategy):
            return None
        made.extended.adopts = True
        _implied["strategy"] = made
    return _implied["strategy"]


@functools.cache
def is_asked_for() -> bool:
    """Whether this process was started to train in step with others, or as with others."""
    identity, cluster = Identity.from_env(os.environ), ClusterSpec.from_env(os.environ)
    if identity is None:
        return False
    is_one = identity.world_size * identity.devices_per_worker == 1
    if is_one and not _of_multi_worker(identity, None, None, None, None):
        return False
    return not _is_evaluator(cluster) and (cluster is None or "ps" not in cluster.jobs)


def named(
    name: str, env: Mapping[str, str] | None = None, **arguments: Any
) -> tf.distribute.Strategy:
    """What the stand-in for a class of TensorFlow yields: its own kind, or what was asked for.

    Args:
        name: The strategy that the script names.
        env: Environment to read; `os.environ` when None.
        arguments: What the script gives it; of no account where `drumbeat run --strategy`
            names another.

    Raises:
        ConfigError: This task takes no part in the training, or the cluster can't have it.
        CollectiveError: The other workers can't be reached.
    """
    env = os.environ if env is None else env
    identity, cluster = Identity.from_env(env), ClusterSpec.from_env(env)
    if identity is not None and identity.strategy not in (strategy_names.AUTO, name):
        return strategy(identity.strategy, env)
    if name == strategy_names.MULTI_WORKER and not _is_evaluator(cluster):
        if identity is not None and cluster is not None and "ps" in cluster.jobs:
            _refuse_in_step(identity)
        # Also where it is the only worker.
        return _the_one(cluster, identity, None, None)
    return _other(name, cluster, **arguments)


def _refuse_in_step(identity: Identity) -> None:
    """Says why a script can't train in step with servers.

    Raises:
        ConfigError: The others are servers.
    """
    if identity.strategy == strategy_names.AUTO:
        raise ConfigError(
            "The script makes MultiWorkerMirroredStrategy, but the job has ps tasks, so its "
            "workers are servers of the chief. Leave out --ps, or ps in TF_CONFIG; or give "
            f"--strategy {strategy_names.MULTI_WORKER} to every task to train without them."
        )


def _chosen(
    name: str | None,
    cluster: ClusterSpec | None,
    identity: Identity | None,
    options: tuple[str, ...],
) -> str:
    """The name of the strategy that is to be made."""
    told = strategy_names.AUTO if identity is None else identity.strategy
    asked = name or strategy_names.AUTO
    if told not in (strategy_names.AUTO, asked):
        if name is not None:
            logger.warning("--strategy %s wins over strategy(%r) in the script.", told, name)
        asked = told
    ps = 0 if cluster is None else len(cluster.jobs.get("ps", ()))
    facts = Facts(
        workers=1 if cluster is None else len(cluster.tasks) - ps - ("evaluator" in cluster.jobs),
        ps=ps,
        devices=local_devices.count(),
        options=options,
        started=identity is not None and cluster is not None,
    )
    decision = strategy_names.decide(asked, facts)
    if identity is None or identity.is_chief:
        logger.info(str(decision))
    return decision.name


def _is_evaluator(cluster: ClusterSpec | None) -> bool:
    """Whether this process trains nothing, whatever the others do."""
    return cluster is not None and cluster.task is not None and cluster.task.type == "evaluator"


def _of_multi_worker(
    identity: Identity | None,
    exact: int | None,
    shares: Sequence[int] | str | None,
    compress: Compress | None,
    averaging: Averaging | None,
) -> tuple[str, ...]:
    """What was asked for, here or by `drumbeat run`, that only multi-worker training has."""
    if identity is not None:
        exact = identity.exact if exact is None else exact
        shares = identity.shares if shares is None else shares
        compress = identity.compress if compress is None else compress
        averaging = identity.averaging if averaging is None else averaging
    options = {
        f"exact={exact}": exact is not None,
        f"shares={shares}": shares is not None,
        f"compress={compress}": compress is not None and compress.is_on,
        f"sync_every={averaging}": averaging is not None and averaging.is_on,
    }
    return tuple(option for option, is_given in options.items() if is_given)


def _other(name: str, cluster: ClusterSpec | None, **arguments: Any) -> tf.distribute.Strategy:
    """One of TensorFlow's own strategies; made once where a script gives it no arguments."""
    if name == strategy_names.ONE_DEVICE or _is_evaluator(cluster):
        return tf.distribute.get_strategy()  # the default one, which costs nothing
    if name == strategy_names.MIRRORED:
        return local_devices.mirrored(**arguments)
    if name == strategy_names.CENTRAL_STORAGE:
        return local_devices.central_storage(**arguments)
    given = {key: value for key, value in arguments.items() if value is not None}
    if given or name not in _others:
        _others[name] = parameter_server.make(cluster, **given)
    return _others[name]


def _the_one(
    cluster: ClusterSpec | None,
    identity: Identity | None,
    exact: int | None,
    shares: Sequence[int] | str | None,
    compress: Compress | None = None,
    averaging: Averaging | None = None,
) -> DataParallelStrategy:
    """The strategy of this process, made at the first call."""
    if "strategy" not in _made:
        if identity is not None:
            compress = identity.compress if compress is None else compress
            exact = identity.exact if exact is None else exact
            shares = identity.shares if shares is None else shares
            averaging = identity.averaging if averaging is None else averaging
        compress = compress or Compress()
        compress.check(exact=exact)
        averaging = averaging or Averaging()
        averaging.check(
            exact=exact, compresses=compress.is_on, measures_shares=shares == AUTO_SHARES
        )
        _made["strategy"] = _data_parallel(cluster, identity, exact, shares)
        _compress(_made["strategy"], compress, identity)
        _made["strategy"].extended.averaging = averaging
        use_local_sgd(_made["strategy"], averaging)
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
    if averaging not in (None, made.averaging):
        raise ConfigError(
            f"sync_every={averaging} was asked for, but the strategy of this process was made with "
            f"sync_every={str(made.averaging) or None} before. Ask for it in the first call, or "
            "with drumbeat run --sync-every."
        )
    return _made["strategy"]


def use_local_sgd(made: DataParallelStrategy, asked: Averaging) -> None:
    """Has the workers of `made` make steps of their own, if that was `asked` for."""
    if asked.is_on and made.extended.replicas.count > 1:
        raise ConfigError(
            f"sync_every={asked} was asked for, but each worker has "
            f"{made.extended.replicas.count} devices, which make one step together. Leave out "
            "--processes-per-node, so that each has a process of its own."
        )
    if asked.is_on:
        made.extended.local_sgd = LocalSgd(made.communicator, asked)


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
        placement=None if identity is None else _placement(identity),
    )


def _placement(identity: Identity) -> Placement:
    """Where a worker with several devices computes."""
    return Placement.over(first_devices(identity.devices_per_worker))


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
        identity = Identity.by_tf_config(cluster)
    return communicator(identity, cluster, note)


def _resolver(cluster: ClusterSpec | None) -> tf.distribute.cluster_resolver.ClusterResolver:
    if cluster is None or cluster.task is None:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    jobs = {job: dict(addresses) for job, addresses in cluster.jobs.items()}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type=cluster.task.type, task_id=cluster.task.index
    )
