"""Which strategy fits the cluster this process is in."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping

import tensorflow as tf

from drumbeat.cluster import ClusterSpec, Identity
from drumbeat.collectives.choose import communicator
from drumbeat.collectives.communicator import Communicator
from drumbeat.errors import ConfigError
from drumbeat.strategies.data_parallel import DataParallelStrategy

logger = logging.getLogger("drumbeat")

DEFAULT_TIMEOUT_S = 600.0  # Deadline of a collective outside `drumbeat run`.


def strategy(env: Mapping[str, str] | None = None) -> tf.distribute.Strategy:
    """The strategy for this process's cluster.

    Under `drumbeat run` and wherever TF_CONFIG names more than one worker: a
    `DataParallelStrategy`. Alone: TensorFlow's default strategy, which costs
    nothing. A process has one data-parallel strategy; later calls return the same.

    Args:
        env: Environment to read; `os.environ` when None.

    Raises:
        ConfigError: TF_CONFIG is wrong, or this task takes no part in synchronous
            training (ps, evaluator).
        CollectiveError: The other workers can't be reached.
    """
    env = os.environ if env is None else env
    cluster = ClusterSpec.from_env(env)
    identity = Identity.from_env(env)
    if cluster is None or (identity is None and cluster.world_size == 1):
        return tf.distribute.get_strategy()
    return _data_parallel(cluster, identity)


def multi_worker(env: Mapping[str, str] | None = None) -> DataParallelStrategy:
    """The data-parallel strategy of this process, also when it is the only worker.

    What `tf.distribute.MultiWorkerMirroredStrategy()` returns under `drumbeat run`.
    """
    env = os.environ if env is None else env
    return _data_parallel(ClusterSpec.from_env(env), Identity.from_env(env))


@functools.cache
def _data_parallel(cluster: ClusterSpec | None, identity: Identity | None) -> DataParallelStrategy:
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
    return DataParallelStrategy(_communicator(cluster, identity), _resolver(cluster))


def _communicator(cluster: ClusterSpec | None, identity: Identity | None) -> Communicator:
    if cluster is None or cluster.task is None:
        return communicator(identity)
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
    return communicator(identity, cluster)


def _resolver(cluster: ClusterSpec | None) -> tf.distribute.cluster_resolver.ClusterResolver:
    if cluster is None or cluster.task is None:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    jobs = {job: dict(addresses) for job, addresses in cluster.jobs.items()}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type=cluster.task.type, task_id=cluster.task.index
    )
