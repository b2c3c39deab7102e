"""Synchronous data-parallel training, one process per device, on any number of workers.

Every worker holds all variables and computes the gradients of its rows of the
global batch; the gradients are summed over the workers before the update, so
all workers take the same step. DESIGN.md, decision 1: variables are plain
`tf.Variable`s, `run` calls the function directly in a replica context, and all
that crosses processes goes through one `Communicator`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from drumbeat.cluster.averaging import Averaging
from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.residuals import Owner
from drumbeat.collectives.tree import tree_sum
from drumbeat.data.rows import BatchRows, Span
from drumbeat.data.shares import Shares
from drumbeat.strategies.aggregated import aggregate
from drumbeat.strategies.gradient_sync import GradientSync
from drumbeat.strategies.inputs import Inputs, check
from drumbeat.strategies.local_sgd import LocalSgd
from drumbeat.strategies.placement import Placement
from drumbeat.strategies.reductions import as_tensor, divide, local_sums, unless
from drumbeat.strategies.replicas import LockstepContext, Replicas
from drumbeat.tf_internals import PerReplica, StrategyExtendedV1, UpdateContext, shifted_seed


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

    In exact mode there are `exact` replicas, virtual shards of the global batch that
    the workers share evenly, and `num_replicas_in_sync` says so. Each worker runs the
    replica function once for each of its shards, and all sums over replicas are made in
    one fixed order, so that every result has the same bytes for any number of workers.

    Args:
        communicator: Joins this process with the other workers.
        cluster_resolver: What the property of that name returns; scripts ask it
            for `task_type` and `task_id`.
        shares: How much of each global batch each worker takes; equal by default.
        measure_shares: Start with these and follow the workers' speed.
        exact: Number of virtual shards; None for one replica on each device.
        placement: The devices of this worker, as many as the others have.

    Raises:
        ConfigError: `shares` has another number of workers, or the workers can't share
            `exact` shards evenly.
    """

    def __init__(
        self,
        communicator: Communicator,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        *,
        shares: Shares | None = None,
        measure_shares: bool = False,
        exact: int | None = None,
        placement: Placement | None = None,
    ) -> None:
        shares = Shares.equal(communicator.size) if shares is None else shares
        check(communicator.size, shares, exact)
        placement = placement or Placement()
        # Not by super(): a subclass may also be one of TensorFlow's, to be known as that.
        tf.distribute.Strategy.__init__(
            self,
            DataParallelExtended(self, communicator, cluster_resolver, shares, exact, placement),
        )
        if measure_shares and communicator.size > 1:
            self.extended.inputs.follow_speed()

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
        shares: Shares,
        exact: int | None,
        placement: Placement,
    ) -> None:
        super().__init__(strategy)
        self.communicator = communicator
        self.exact = exact
        self.placement = placement
        self.inputs = Inputs(communicator, shares)
        self.gradient_sync = GradientSync(communicator)
        self.averaging = Averaging()
        self.local_sgd: LocalSgd | None = None
        self.jit = "auto"
        self.adopts = False  # Models whose script names no strategy, made outside of `scope()`.
        self._cluster_resolver = cluster_resolver
        self._retrace_functions_for_each_device = False
        self._here = threading.local()
        size = communicator.size
        count = exact // size if exact else max(len(placement.devices), 1)
        self.replicas = Replicas(
            self.inputs.rows,
            rank=communicator.rank,
            world_size=size,
            count=count,
            lockstep=exact is not None or count > 1,
            fixed_shards=exact is not None,
            context=self._replica_context,
        )

    @property
    def rows(self) -> BatchRows:
        """Where the input iterators record which rows of a global batch they hand out."""
        return self.inputs.rows

    @property
    def shares(self) -> Shares:
        """How much of each global batch each worker takes."""
        return self.inputs.shares

    # Gradients and losses ---------------------------------------------------

    def total(self, value: Any) -> Any:
        """The sum of a tensor over all replicas that have rows."""
        present = [value] if self.absent is None else unless(self.absent, [value])
        return self.meet(present, self._sum)[0]

    def update_once(
        self,
        gradients: Sequence[Any],
        update: Callable[[list[Any]], Any],
        of: Owner | None = None,
    ) -> Any:
        """What `update` returns for the sums of the gradients over all replicas.

        Args:
            gradients: Tensors, `tf.IndexedSlices` or None, alike on all replicas; None
                stays None.
            update: Called once in each worker, however many replicas it runs.
            of: Whose gradients these are.
        """
        if of is not None:
            of = of.without([i for i, g in enumerate(gradients) if g is None])
        present = [g for g in gradients if g is not None]
        absent = self.absent
        if absent is not None and (self.exact or self.replicas.count > 1):
            present, absent = unless(absent, present), None

        replica = self.replicas.current

        def combined(everyones: list[list[Any]]) -> Any:
            if replica is not None and replica.lockstep is not None:
                replica.lockstep.settle()
            if self.exact:
                sums = self._sum(everyones)
            else:
                sums = self.gradient_sync.sum(local_sums(everyones), of, absent)
            reduced = iter(sums)
            return update([None if g is None else next(reduced) for g in gradients])

        return self.meet(present, combined)

    def loss_fraction(self, dtype: tf.DType) -> Any:
        """What a mean over this replica's rows counts in the mean over the global batch.

        A scalar tensor of `dtype`: its rows / global rows for a batch from one of this
        strategy's iterators, else 1 / replicas, as in tf.distribute.
        """
        span = self.span()
        fraction = tf.math.divide_no_nan(
            tf.cast(span.rows, tf.float64), tf.cast(span.total, tf.float64)
        )
        return tf.cast(fraction, dtype)

    def span(self) -> Span:
        """The rows of the global batch that the replica at hand holds; int64 scalars."""
        replica = self.replicas.current
        return self.rows.span(None) if replica is None else replica.span()

    @property
    def absent(self) -> Any | None:
        """Whether this replica has no rows in the step it runs: a bool tensor.

        None where it surely has some. Such a replica runs the step on a row of zeros,
        and leaves no trace of it in gradients, metrics and moving statistics.
        """
        replica = self.replicas.current
        return None if replica is None else replica.absent

    @contextlib.contextmanager
    def standing_in(self, absent: Any) -> Iterator[None]:
        """Within this, `absent` says whether the rows at hand stand in for none."""
        replica = self.replicas.current
        assert replica is not None  # noqa: S101
        replica.absent = absent
        try:
            yield
        finally:
            replica.absent = None

    def sum_over_replicas(self, values: Sequence[Sequence[Any]], name: str = "") -> list[Any]:
        """The sum of each tensor over all replicas of all workers.

        Args:
            values: For each replica of this worker, the same list of tensors.
            name: Label for error messages.
        """
        if self.exact:
            return tree_sum(self.communicator, values, self.exact, name=name)
        return self.communicator.all_reduce(local_sums(values), name=name)

    def _sum(self, values: Sequence[Sequence[Any]]) -> list[Any]:
        return self.sum_over_replicas(values) if values[0] else []

    @property
    def is_in_lockstep(self) -> bool:
        """Whether the caller is a replica that meets the others of its worker."""
        replica = self.replicas.current
        return replica is not None and replica.lockstep is not None

    def meet(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """`combine` of what all replicas of this worker bring; called once."""
        replica = self.replicas.current
        if replica is None or replica.lockstep is None:
            return combine([value])
        lockstep = replica.lockstep

        def where_variables_are(everyones: list[Any]) -> Any:
            with self.placement.of_variables():
                return combine(everyones)

        return lockstep.meet(value, where_variables_are)

    # Running ----------------------------------------------------------------

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self.replicas.run(fn, args, kwargs)

    @contextlib.contextmanager
    def _replica_context(self, number: int) -> Iterator[None]:
        # Raw tf.random ops traced in here draw differently on each replica; Keras's
        # random layers draw what one worker would have drawn for the rows.
        context = LockstepContext(self._container_strategy(), number)
        place = self.placement.of_replica(number - self.replicas.first, self.replicas.count)
        with context, shifted_seed(number * 1_000_003), place:
            yield

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
        return self.meet((), lambda _: fn(var, *args, **(kwargs or {})))

    # Collectives ------------------------------------------------------------

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del options
        tensors = [as_tensor(leaf) for leaf in tf.nest.flatten(value)]
        results = self.meet(tensors, lambda everyones: self._reduced(reduce_op, everyones))
        return tf.nest.pack_sequence_as(value, results)

    def _reduced(self, reduce_op: Any, everyones: list[list[Any]]) -> list[Any]:
        """Args: the operation, and for each replica of this worker the same list."""
        sums = self._sum(everyones)
        if reduce_op != tf.distribute.ReduceOp.MEAN:
            return sums
        return [divide(total, self._num_replicas_in_sync) for total in sums]

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        del destinations, options
        return self._batch_reduce_to(reduce_op, [(value, None)], None)[0]

    def _batch_reduce_to(self, reduce_op: Any, pairs: Any, options: Any) -> Any:
        del options
        if any(isinstance(value, PerReplica) for value, _ in pairs):
            each = zip(*(self._local_results(value) for value, _ in pairs), strict=True)
            return self._reduced(reduce_op, [[as_tensor(v) for v in own] for own in each])
        # Values of a worker, however many shards it runs.
        sums = self.communicator.all_reduce([as_tensor(value) for value, _ in pairs])
        if reduce_op != tf.distribute.ReduceOp.MEAN:
            return sums
        return [divide(total, self.communicator.size) for total in sums]

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        del destinations, options
        if isinstance(value, PerReplica):
            value = tf.concat(value.values, axis)
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
        if self.communicator.size > 1 and not getattr(self._here, "alone", False):
            kwargs["initial_value"] = self._chiefs(kwargs["initial_value"], kwargs.get("dtype"))
        with self.placement.of_variables():
            variable = next_creator(**kwargs)
        return aggregate(variable) if self.replicas.can_meet else variable

    def aggregated(self, everyones: Sequence[Any], how: tf.VariableAggregation) -> Any:
        """What all replicas of all workers have, a tensor each, as one.

        Args:
            everyones: Of the replicas of this worker.
            how: How to make one of them.
        """
        if how == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            return self.communicator.broadcast([everyones[0]])[0]
        total = self._sum([[value] for value in everyones])[0]
        return total if how == tf.VariableAggregation.SUM else divide(total, self.replicas.total)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within this, in this thread, variables begin with this worker's value.

        For what the other workers don't do at the same time.
        """
        before = getattr(self._here, "alone", False)
        self._here.alone = True
        try:
            yield
        finally:
            self._here.alone = before

    def _chiefs(self, initial_value: Any, dtype: Any) -> Callable[..., Any]:
        """`initial_value` as a callable that returns the chief's value on every worker."""

        def initialize(**arguments: Any) -> Any:
            value: Any = initial_value
            if callable(initial_value):
                value = initial_value(**arguments)
            value = tf.convert_to_tensor(value, dtype)
            return self.communicator.broadcast([value])[0]

        return initialize

    def variable_created_in_scope(self, v: Any) -> bool:
        """Whether `v` is a variable for this strategy."""
        is_plain = getattr(v, "_distribute_strategy", None) is None
        return (self.adopts and is_plain) or super().variable_created_in_scope(v)

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
        return tuple(val.values) if isinstance(val, PerReplica) else (val,)

    # Input ------------------------------------------------------------------

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        del options
        return self.inputs.distribute(dataset)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        del options
        devices = 1 if self.exact else self.replicas.count
        return self.inputs.from_function(dataset_fn, devices)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        self.rows.reset()
        first, total = self.replicas.first, self.replicas.total
        values = [
            value_fn(tf.distribute.experimental.ValueContext(number, total))
            for number in range(first, first + self.replicas.count)
        ]
        return values[0] if len(values) == 1 else PerReplica(values)

    def _make_dataset_iterator(self, dataset: Any) -> Any:
        return iter(self._experimental_distribute_dataset(dataset, None))

    def _make_input_fn_iterator(self, input_fn: Any, replication_mode: Any = None) -> Any:
        del replication_mode
        return iter(self._distribute_datasets_from_function(input_fn, None))

    # Facts ------------------------------------------------------------------

    @property
    def _num_replicas_in_sync(self) -> Any:
        return getattr(self._here, "counted_as", None) or self.replicas.total

    @contextlib.contextmanager
    def counted_as(self, number: Any) -> Iterator[None]:
        """Within this, in this thread, `number` stands for the number of replicas; None for it."""
        before = getattr(self._here, "counted_as", None)
        self._here.counted_as = number
        try:
            yield
        finally:
            self._here.counted_as = before

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices of this worker."""
        if self.placement.devices:
            return self.placement.devices
        gpus = tf.config.list_logical_devices("GPU")
        return (gpus[0].name if gpus else "/device:CPU:0",)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Where variables live."""
        return (self.placement.parameters or self.worker_devices[0],)

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
        return self.replicas.first + replica_id

    @property
    def _global_batch_size(self) -> bool:
        return True
