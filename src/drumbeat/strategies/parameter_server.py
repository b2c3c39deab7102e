"""Training with parameter servers: TensorFlow's strategy and its coordinator."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from drumbeat.cluster import ClusterSpec
from drumbeat.errors import ConfigError

# What stands in for it under `drumbeat run` has the same name.
ParameterServerStrategy = tf.distribute.ParameterServerStrategy


def make(
    cluster: ClusterSpec | None,
    *,
    resolver: Any = None,
    variable_partitioner: Any = None,
) -> tf.distribute.ParameterServerStrategy:
    """The strategy for the chief of a cluster with ps tasks.

    Args:
        cluster: The job's, as its chief sees it; None where there is none.
        resolver: A cluster resolver of the script's own, which wins where there is no
            `cluster`, as for servers in the same process.
        variable_partitioner: Which variables are cut into parts, such as
            `tf.distribute.experimental.partitioners.MinSizePartitioner()`.

    Raises:
        ConfigError: There is no cluster, or this task is not its chief.
    """
    if cluster is None or "ps" not in cluster.jobs:
        if resolver is None:
            raise ConfigError(
                "Parameter servers were asked for, but there is no cluster with ps tasks; "
                "expected drumbeat run --ps 1, or TF_CONFIG with some."
            )
    else:
        task = cluster.task
        if task is not None and task.type in ("ps", "worker"):
            raise ConfigError(
                f"This process is {task}, which serves the chief; the strategy is made in the "
                "chief alone. Expected a tf.distribute.Server here; drumbeat run starts it."
            )
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({job: dict(at) for job, at in cluster.jobs.items()}),
            task_type="chief",
            task_id=0,
            rpc_layer=cluster.rpc_layer or "grpc",
        )
    return ParameterServerStrategy(resolver, variable_partitioner)
