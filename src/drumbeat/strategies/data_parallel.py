"""Synchronous data-parallel training, one process per device, on any number of workers.

Every worker holds all variables and computes the gradients of its rows of the
global batch; the gradients are summed over the workers before the update, so
all workers take the same step. DESIGN.md, decision 1: variables are plain
`tf.Variable`s, `run` calls the function directly in a replica context, and all
that crosses processes goes through one `Communicator`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat.collectives.communicator import Communicator
from drumbeat.data.distributed import DistributedDataset, Feed, count_rows, slice_batches
from drumbeat.data.policies import shard
from drumbeat.data.rows import BatchRows, num_rows
from drumbeat.tf_internals import StrategyExtendedV1, UpdateContext, shifted_seed

logger = logging.getLogger("drumbeat")


class DataParallelStrategy(tf.distribute.Strategy):
    """A `tf.distribute.Strategy` for synchronous training with one replica in each worker.

    It stands in for `tf.distribute.MultiWorkerMirroredStrategy` and keeps that
    class's meaning of every method: `num_replicas_in_sync` is the number of
    workers, a dataset given to `experimental_distribute_dataset` has global
    batches, `reduce` and `gather` return the same value on every worker.

    Guarantees: variables created in `scope()` start with the chief's values on
    every worker. Every worker sees the same number of batches. Collectives have
    deadlines (`CollectiveTimeout`), and workers that run different collectives
    get a `CollectiveMismatch` instead of waiting for each other.

    The `result()` of a Keras metric made in `scope()` is this worker's inside of
    `run`. Outside, it is that of all workers, and all of them have to ask for it.

    In a training step of one's own, gradients are summed over the workers: a loss
    from a `keras.losses` object or `compute_loss` has been weighted for that and is
    this worker's part of the mean; a mean taken by hand has to be weighted by hand,
    as `tf.nn.compute_average_loss(losses, global_batch_size=...)` does.

    Args:
        communicator: Joins this process with the other workers.
        cluster_resolver: What the property of that name returns; scripts ask it
            for `task_type` and `task_id`.
    """

    def __init__(
        self,
        communicator: Communicator,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
    ) -> None:
        super().__init__(DataParallelExtended(self, communicator, cluster_resolver))

    @property
    def communicator(self) -> Communicator:
        """The collectives of this strategy's workers."""
        return self.extended.communicator

    @property
    def is_chief(self) -> bool:
        """Whether this process is rank 0, the one that writes models and logs."""
        return self.communicator.rank == 0

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallelStrategy:
        # One strategy per process: copies would share its communicator and its order.
        return self


class DataParallelExtended(StrategyExtendedV1):
    """The part of `DataParallelStrategy` that TensorFlow itself calls (`strategy.extended`)."""

    def __init__(
        self,
        strategy: DataParallelStrategy,
        communicator: Communicator,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None,
    ) -> None:
        super().__init__(strategy)
        self.communicator = communicator
        self._cluster_resolver = cluster_resolver
        self._retrace_functions_for_each_device = False
        self.rows = BatchRows(communicator.size)
        self._sliced = Feed(self.rows)
        self._agreed = Feed(self.rows, self._sum_rows)
        self._run = threading.local()

    # Gradients and losses ---------------------------------------------------

    def reduce_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Sum of the gradients over all workers, in one collective.

        Args:
            gradients: Tensors, `tf.IndexedSlices` or None, alike on all workers.

        Returns:
            A list like `gradients`; None stays None.
        """
        present = [g for g in gradients if g is not None]
        if self.absent is not None:
            present = _unless(self.absent, present)
        reduced = iter(self.communicator.all_reduce(present, "sum"))
        return [None if g is None else next(reduced) for g in gradients]

    def loss_fraction(self, dtype: tf.DType) -> Any:
        """What a mean over this worker's rows counts in the mean over the global batch.

        A scalar tensor of `dtype`: local rows / global rows for a batch from one of
        this strategy's iterators, else 1 / workers, as in tf.distribute.
        """
        return tf.cast(self.rows.fraction(getattr(self._run, "num_rows", None)), dtype)

    @property
    def absent(self) -> Any | None:
        """Whether this worker has no rows in the step it runs: a bool tensor.

        None where it surely has some. Such a worker runs the step on a row of zeros,
        and leaves no trace of it in gradients, metrics and moving statistics.
        """
        return getattr(self._run, "absent", None)

    @contextlib.contextmanager
    def standing_in(self, absent: Any) -> Iterator[None]:
        """Within this, `absent` says whether the rows at hand stand in for none."""
        self._run.absent = absent
        try:
            yield
        finally:
            self._run.absent = None

    def _sum_rows(self, rows: Any) -> Any:
        return self.communicator.all_reduce([rows], "sum")[0]

    # Running ----------------------------------------------------------------

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        outer = getattr(self._run, "num_rows", None)
        self._run.num_rows = num_rows((args, kwargs))
        try:
            # Raw tf.random ops traced in here draw differently on each worker; Keras's
            # random layers have seeds of their own, shifted elsewhere.
            shift = self.communicator.rank * 1_000_003
            with self._replica_context(), shifted_seed(shift):
                return fn(*args, **kwargs)
        finally:
            self._run.num_rows = outer

    def _replica_context(self) -> tf.distribute.ReplicaContext:
        return tf.distribute.ReplicaContext(self._container_strategy(), self.communicator.rank)

    def _use_merge_call(self) -> bool:
        # Update variables in replica context; merge_call would need all replicas here.
        return False

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        with UpdateContext(colocate_with):
            result = fn(*args, **(kwargs or {}))
        return result if group else tf.nest.map_structure(self._local_results, result)

    def _replica_ctx_update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        del group
        return fn(var, *args, **(kwargs or {}))

    # Collectives ------------------------------------------------------------

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del options
        return tf.nest.pack_sequence_as(value, self._all_reduce(reduce_op, tf.nest.flatten(value)))

    def _all_reduce(self, reduce_op: Any, values: Any) -> list[Any]:
        tensors = [_as_tensor(value) for value in values]
        sums = self.communicator.all_reduce(tensors, "sum")
        if reduce_op != tf.distribute.ReduceOp.MEAN:
            return sums
        return [_divide(total, self.communicator.size) for total in sums]

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        del destinations, options
        return self._all_reduce(reduce_op, [value])[0]

    def _batch_reduce_to(self, reduce_op: Any, pairs: Any, options: Any) -> Any:
        del options
        return self._all_reduce(reduce_op, [value for value, _ in pairs])

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        del destinations, options
        value = tf.convert_to_tensor(value)
        if axis == 0:
            return self.communicator.all_gather(value)
        order = [axis, *(i for i in range(value.shape.rank) if i != axis)]
        back = [order.index(i) for i in range(value.shape.rank)]
        gathered = self.communicator.all_gather(tf.transpose(value, order))
        return tf.transpose(gathered, back)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        del destinations
        return tensor

    # Variables --------------------------------------------------------------

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if self.communicator.size > 1:
            kwargs["initial_value"] = self._chiefs(kwargs["initial_value"], kwargs.get("dtype"))
        return next_creator(**kwargs)

    def _chiefs(self, initial_value: Any, dtype: Any) -> Callable[..., Any]:
        """`initial_value` as a callable that returns the chief's value on every worker."""

        def initialize(**arguments: Any) -> Any:
            value: Any = initial_value
            if callable(initial_value):
                value = initial_value(**arguments)
            value = tf.convert_to_tensor(value, dtype)
            return self.communicator.broadcast([value])[0]

        return initialize

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        """A context manager; there is one device, so it changes nothing."""
        del colocate_with_variable
        return contextlib.nullcontext()

    def read_var(self, var: Any) -> Any:
        """The value of `var` on this worker."""
        return var.read_value()

    def value_container(self, value: Any) -> Any:
        """`value` itself: a worker has one replica."""
        return value

    def _local_results(self, val: Any) -> tuple[Any, ...]:
        return (val,)

    # Input ------------------------------------------------------------------

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if isinstance(dataset, DistributedDataset) or self.communicator.size == 1:
            return dataset
        del options
        rank, size = self.communicator.rank, self.communicator.size
        own = shard(dataset, rank, size, self._all_agree)
        if own is None:
            return DistributedDataset(slice_batches(dataset, rank, size), self._sliced)
        return DistributedDataset(count_rows(own), self._agreed)

    def _all_agree(self, mine: bool) -> bool:
        return bool(self.communicator.all_reduce_numpy(np.array([mine], np.int64), "min")[0])

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        del options
        dataset = dataset_fn(self._input_context())
        if self.communicator.size == 1:
            return dataset
        return DistributedDataset(count_rows(dataset), self._agreed)

    def _input_context(self) -> tf.distribute.InputContext:
        size = self.communicator.size
        return tf.distribute.InputContext(
            num_input_pipelines=size,
            input_pipeline_id=self.communicator.rank,
            num_replicas_in_sync=size,
        )

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        self.rows.reset()
        context = tf.distribute.experimental.ValueContext(
            self.communicator.rank, self.communicator.size
        )
        return value_fn(context)

    def _make_dataset_iterator(self, dataset: Any) -> Any:
        return iter(self._experimental_distribute_dataset(dataset, None))

    def _make_input_fn_iterator(self, input_fn: Any, replication_mode: Any = None) -> Any:
        del replication_mode
        return iter(self._distribute_datasets_from_function(input_fn, None))

    # Facts ------------------------------------------------------------------

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.communicator.size

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The one device of this worker."""
        gpus = tf.config.list_logical_devices("GPU")
        return (gpus[0].name if gpus else "/device:CPU:0",)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Where variables live: the worker's device."""
        return self.worker_devices

    def non_slot_devices(self, var_list: Any) -> Any:
        """The variable that non-slot variables go with."""
        return min(var_list, key=lambda var: var.name)

    def _in_multi_worker_mode(self) -> bool:
        # Keras and TensorFlow take other paths, made for PerReplica values, where this holds.
        return False

    @property
    def should_checkpoint(self) -> bool:
        """Whether this worker writes checkpoints: the chief does."""
        return self.communicator.rank == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this worker writes summaries: the chief does."""
        return self.communicator.rank == 0

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> int:
        del replica_id_in_sync_group
        return 0

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        del replica_id
        return self.communicator.rank

    @property
    def _global_batch_size(self) -> bool:
        return True


def _as_tensor(value: Any) -> Any:
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def _unless(absent: Any, gradients: list[Any]) -> list[Any]:
    """`gradients`, or zeros like them where `absent` holds."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    values = tf.cond(
        absent,
        lambda: [tf.zeros_like(v) for v in values],
        lambda: [tf.identity(v) for v in values],
    )
    return [
        tf.IndexedSlices(v, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else v
        for g, v in zip(gradients, values, strict=True)
    ]


def _divide(value: Any, size: int) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_divide(value.values, size), value.indices, value.dense_shape)
    return value // size if value.dtype.is_integer else value / size
