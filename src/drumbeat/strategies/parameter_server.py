"""Asynchronous training with parameter servers: TensorFlow's strategy, for Keras 3.

The strategy and `ClusterCoordinator` are TensorFlow's. What is added is what Keras 3 needs
of a strategy: a replica function that is called directly, so that an update may stand within
a `tf.cond`; updates and slots of sharded variables; and, within `fit`, datasets that stay as
they are until it's known who reads them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from drumbeat.cluster import ClusterSpec
from drumbeat.cluster.identity import DEFAULT_TIMEOUT_S, Identity
from drumbeat.errors import ConfigError
from drumbeat.strategies import locks, reach, shards
from drumbeat.tf_internals import (
    ParameterServerExtended,
    ReplicaContext,
    ShardedVariable,
)

_made: list[ParameterServerStrategy] = []


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
    """`tf.distribute.ParameterServerStrategy` that Keras 3's `fit` can train with.

    The variables live on the ps tasks; the workers compute gradients and apply them, each on
    its own. For the meaning of the methods see TensorFlow's class.

    Args:
        cluster_resolver: Of a cluster with ps and worker tasks, in the chief's process.
        variable_partitioner: How large variables are cut over the ps tasks, such as
            `tf.distribute.experimental.partitioners.MinSizePartitioner`; None: not at all.

    Raises:
        ValueError: There are no ps tasks or no workers.
    """

    def __init__(self, cluster_resolver: Any, variable_partitioner: Any = None) -> None:
        super().__init__(cluster_resolver, variable_partitioner)
        # TensorFlow's constructor makes its own and takes no other.
        self.extended.__class__ = _Extended

    @property
    def coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """The coordinator of the cluster; there is one."""
        return tf.distribute.coordinator.ClusterCoordinator(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParameterServerStrategy:
        # One connection per process.
        return self


class _Extended(ParameterServerExtended):
    """The part of the strategy that TensorFlow itself calls (`strategy.extended`)."""

    leaves_datasets: bool = False

    @contextlib.contextmanager
    def leaving_datasets(self) -> Iterator[None]:
        """Within this, `experimental_distribute_dataset` returns a dataset as it is."""
        before, self.leaves_datasets = self.leaves_datasets, True
        try:
            yield
        finally:
            self.leaves_datasets = before

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if self.leaves_datasets:
            return dataset
        return super()._experimental_distribute_dataset(dataset, options)

    def _use_merge_call(self) -> bool:
        return self._num_replicas_in_sync > 1

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._num_replicas_in_sync > 1:
            return super()._call_for_each_replica(fn, args, kwargs)
        with ReplicaContext(self._container_strategy(), replica_id_in_sync_group=0):
            return fn(*args, **kwargs)

    def _replica_ctx_update(
        self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool
    ) -> Any:
        if self._num_replicas_in_sync > 1:
            return super()._replica_ctx_update(var, fn, args, kwargs, group)
        return self._update(var, fn, args, kwargs, group)

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if self._num_replicas_in_sync > 1:
            return super()._replica_ctx_all_reduce(reduce_op, value, options)
        return value

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        if not shards.is_sharded(var):
            with locks.held(var, (args, kwargs)):
                return super()._update(var, fn, args, kwargs, group)
        split = [shards.split(value, var) for value in args]
        named = {name: shards.split(value, var) for name, value in (kwargs or {}).items()}
        results = []
        for number, part in enumerate(shards.parts_of(var)):
            own = tuple(values[number] for values in split)
            own_named = {name: values[number] for name, values in named.items()}
            with shards.at(number), locks.held(part, (own, own_named)):
                results.append(super()._update(part, fn, own, own_named, group))
        return results

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        beside: Any = kwargs.get("colocate_with")
        if not shards.is_sharded(beside):
            return super()._create_variable(next_creator, **kwargs)
        whole: Any = _evaluated(kwargs.pop("initial_value"), kwargs.get("dtype"))
        name = kwargs.pop("name", None) or "Variable"
        kwargs.pop("shape", None)
        if whole.shape != beside.shape:
            kwargs["colocate_with"] = shards.parts_of(beside)[0]
            return super()._create_variable(next_creator, **kwargs, initial_value=whole, name=name)
        values = shards.split(whole, beside)
        parts = []
        for number, (part, value) in enumerate(zip(shards.parts_of(beside), values, strict=True)):
            kwargs["colocate_with"] = part
            parts.append(
                super()._create_variable(
                    next_creator, **kwargs, initial_value=value, name=f"{name}/part_{number}"
                )
            )
        return ShardedVariable(parts, name=name)


def _evaluated(initial: Any, dtype: Any) -> Any:
    """An initial value as a tensor."""
    if callable(initial):
        return _evaluated(initial(), dtype)
    return tf.convert_to_tensor(initial, dtype=dtype)


def existing() -> ParameterServerStrategy | None:
    """The strategy of this process, if it has been made."""
    return _made[0] if _made else None


def make(
    cluster: ClusterSpec | None,
    *,
    resolver: Any = None,
    variable_partitioner: Any = None,
    min_shard_bytes: int | None = None,
) -> ParameterServerStrategy:
    """The strategy for the chief of a cluster with ps tasks: one in a process.

    Waits for the servers of all ps tasks and workers.

    Args:
        cluster: The job's, as its chief sees it; None where there is none.
        resolver: A cluster resolver of the script's own, which wins where there is no
            `cluster`, as for servers in the same process.
        variable_partitioner: See `ParameterServerStrategy`.
        min_shard_bytes: Cut variables into parts of at least so many bytes, one for each ps
            task at most. The same as a `MinSizePartitioner`.

    Raises:
        ConfigError: There is no cluster with ps tasks and workers, this task is not its chief,
            variables were to be cut in two ways, or in another way than before.
        CollectiveError: A server can't be reached.
    """
    found = _resolver(cluster, resolver)
    ps = len(found.cluster_spec().as_dict().get("ps", ()))
    partitioner = _partitioner(variable_partitioner, min_shard_bytes, ps)
    if not _made:
        if cluster is not None and "ps" in cluster.jobs:
            identity = Identity.from_env(os.environ)
            reach.await_servers(
                cluster, DEFAULT_TIMEOUT_S if identity is None else identity.timeout_s
            )
        _made.append(ParameterServerStrategy(found, partitioner))
        return _made[0]
    former = _made[0].extended._variable_partitioner
    if partitioner is not None and _settings(partitioner) != _settings(former):
        raise ConfigError(
            "The parameter-server strategy of this process was made before, with another "
            f"variable_partitioner ({former}). Give it in the first call; there is one strategy "
            "in a process."
        )
    return _made[0]


def _settings(partitioner: Any) -> Any:
    return type(partitioner), getattr(partitioner, "__dict__", partitioner)


def _resolver(cluster: ClusterSpec | None, given: Any) -> Any:
    if cluster is None or "ps" not in cluster.jobs:
        if given is None:
            raise ConfigError(
                "Parameter servers were asked for, but there is no cluster with ps tasks; "
                "expected drumbeat run --ps 1, or TF_CONFIG with some."
            )
        return given
    task = cluster.task
    if task is not None and task.type in ("ps", "worker"):
        raise ConfigError(
            f"This process is {task}, which serves the chief; the strategy is made in the "
            "chief alone. Expected a tf.distribute.Server here; drumbeat run starts it."
        )
    if "worker" not in cluster.jobs:
        raise ConfigError(
            f"The parameter-server strategy needs workers; the cluster has none ({cluster}). "
            "Start the job with drumbeat run -n WORKERS --ps SERVERS."
        )
    jobs = {job: dict(at) for job, at in cluster.jobs.items() if job != "evaluator"}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type="chief",
        task_id=0,
        rpc_layer=cluster.rpc_layer or "grpc",
    )


def _partitioner(given: Any, min_shard_bytes: int | None, ps: int) -> Any:
    if min_shard_bytes is None:
        return given
    if given is not None:
        raise ConfigError(
            "Both variable_partitioner and min_shard_bytes were given; expected one of them."
        )
    is_number = isinstance(min_shard_bytes, int) and not isinstance(min_shard_bytes, bool)
    if not is_number or min_shard_bytes < 1:
        raise ConfigError(
            f"min_shard_bytes is {min_shard_bytes!r}; expected a whole number of bytes, at least 1."
        )
    return tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=min_shard_bytes, max_shards=max(ps, 1)
    )
