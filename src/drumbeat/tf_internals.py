"""Every use of what TensorFlow does not publish, each with its reason.

Checked with TensorFlow 2.21; tests/test_tf_internals.py fails loudly when one
changes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# ServerDef: the message in which the context wants the cluster.
from tensorflow.core.protobuf import (
    tensorflow_server_pb2,  # pyright: ignore[reportMissingImports]
)

# do_not_convert leaves callees alone as well.
from tensorflow.python.autograph.impl import (  # pyright: ignore[reportMissingImports]
    api as autograph,
)

# Checkpoints are written in parts whose names clash between workers.
from tensorflow.python.checkpoint import checkpoint  # pyright: ignore[reportMissingImports]

# FILE and HINT sharding rewrite the graph of a dataset; there is no public name for it.
from tensorflow.python.data.experimental.ops.distribute import (  # pyright: ignore[reportMissingImports]
    _AutoShardDataset,
)

# Keras and AutoGraph take other paths for iterators that aren't TensorFlow's own.
from tensorflow.python.data.ops import iterator_ops  # pyright: ignore[reportMissingImports]

# How elements that aren't plain tensors go into and come out of the functions of maps.
from tensorflow.python.data.util import structure  # pyright: ignore[reportMissingImports]

# What every strategy outside of TensorFlow has to build on.
# A dataset of theirs is looked into where they have one replica.
# Parameter servers: the part of TensorFlow's strategy that Keras calls into, and its variables
# in several parts, are public only as what other functions return.
from tensorflow.python.distribute import (
    distribute_lib,  # pyright: ignore[reportMissingImports]
    input_lib,  # pyright: ignore[reportMissingImports]
    parameter_server_strategy_v2,  # pyright: ignore[reportMissingImports]
    sharded_variable,  # pyright: ignore[reportMissingImports]
)

# Functions for a coordinator's workers get their own values by these; their end can't be
# asked for but by waiting, and there is no public way to give each worker something else.
from tensorflow.python.distribute.coordinator import (  # pyright: ignore[reportMissingImports]
    values as coordinator_values,
)

# The values of a worker with several replicas, which tf.distribute and Keras know by class.
from tensorflow.python.distribute.values import (  # pyright: ignore[reportMissingImports]
    PerReplica as _PerReplica,
)
from tensorflow.python.eager import context  # pyright: ignore[reportMissingImports]

# Which operations have state: no public list says it, nor whether they are deterministic.
from tensorflow.python.framework import (
    config,  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    op_def_registry,  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
)
from tensorflow.python.framework.composite_tensor_gradient import (  # pyright: ignore[reportMissingImports]
    CompositeTensorGradient as _CompositeTensorGradient,
)

# The collective ops take a group and a call's number; tf.distribute exposes them
# only through its strategies. The writer of tf.summary is a thread's own, and can't be
# asked for. Asking for the global generator makes one.
from tensorflow.python.ops import (
    collective_ops,  # pyright: ignore[reportMissingImports]
    resource_variable_ops,  # pyright: ignore[reportMissingImports]
    stateful_random_ops,  # pyright: ignore[reportMissingImports]
    summary_ops_v2,  # pyright: ignore[reportMissingImports]
)

__all__ = [
    "CompositeTensorGradient",
    "IteratorSpec",
    "OwnedIterator",
    "ParameterServerExtended",
    "PerReplica",
    "ReplicaContext",
    "ResourceVariable",
    "ShardedVariable",
    "StrategyExtendedV1",
    "TFCentralStorageStrategy",
    "TFMirroredStrategy",
    "UpdateContext",
    "WrappedDataset",
    "abort_collectives",
    "add_function",
    "all_gather_v2",
    "all_reduce_v2",
    "all_to_all_v2",
    "auto_shard",
    "broadcast_recv_v2",
    "broadcast_send_v2",
    "call_after_writing",
    "captured",
    "called_graph",
    "context_is_initialized",
    "create_on_each_worker",
    "dataset_inputs",
    "dataset_kind",
    "dataset_number",
    "dataset_parallelism",
    "dataset_tensors",
    "element_of",
    "function_of_distributed",
    "global_generator",
    "global_seed",
    "is_finished",
    "is_op_determinism",
    "is_per_worker_dataset",
    "join_cluster",
    "map_function",
    "operation_seeds",
    "put_back_operation_seeds",
    "rebuilt",
    "resliced",
    "serialized",
    "shifted_seed",
    "specs_of_iterators",
    "stateful_ops",
    "tensors_of",
    "thread_scopes",
    "undistributed",
    "wait_for",
    "worker_iterator_spec",
    "wrap_checkpoint_write",
    "wrap_next",
    "zip_structure",
]

CompositeTensorGradient: Any = _CompositeTensorGradient
IteratorSpec: Any = iterator_ops.IteratorSpec
OwnedIterator: Any = iterator_ops.OwnedIterator
ParameterServerExtended: Any = parameter_server_strategy_v2.ParameterServerStrategyV2Extended
PerReplica: Any = _PerReplica
# What `tf.Variable(...)` makes: a class of its own, with methods to override.
ResourceVariable: Any = resource_variable_ops.ResourceVariable
ReplicaContext: Any = distribute_lib.ReplicaContext
ShardedVariable: Any = sharded_variable.ShardedVariable
StrategyExtendedV1: Any = distribute_lib.StrategyExtendedV1
UpdateContext: Any = distribute_lib.UpdateContext
# Public, but in a worker stand-ins take these names.
TFMirroredStrategy: Any = tf.distribute.MirroredStrategy
TFCentralStorageStrategy: Any = tf.distribute.experimental.CentralStorageStrategy


class WrappedDataset(tf.data.Dataset):
    """A `tf.data.Dataset` of a class of our own, with the elements of another dataset.

    The class is public, but not how its subclasses name their tensor and their inputs.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._wrapped: Any = dataset
        super().__init__(self._wrapped._variant_tensor)  # pyright: ignore[reportCallIssue]

    def _inputs(self) -> list[Any]:
        return [self._wrapped]

    @property
    def element_spec(self) -> Any:
        """Type specification of an element."""
        return self._wrapped.element_spec


def dataset_kind(dataset: tf.data.Dataset) -> str:
    """What kind of tf.data's own datasets it is: "Map", "Batch", "Prefetch"...

    The name of its class, without underscores and "Dataset"; for other classes something else.
    """
    kind = type(dataset)
    if not kind.__module__.startswith("tensorflow."):
        return ""
    return kind.__name__.strip("_").removesuffix("Dataset").removesuffix("DatasetV2")


def dataset_inputs(dataset: tf.data.Dataset) -> list[Any]:
    """The datasets that `dataset` reads from."""
    own: Any = dataset
    return list(own._inputs())


def dataset_number(dataset: Any, name: str) -> int:
    """An argument that `dataset` was made with, such as `batch_size`, as a whole number."""
    return int(getattr(dataset, f"_{name}"))


def dataset_tensors(dataset: Any) -> list[Any]:
    """The tensors of a dataset of `from_tensor_slices`, as its elements are kept inside."""
    return list(dataset._tensors)


class _Rebuilt(tf.data.Dataset):
    """A dataset made by an operation, with all else as in the dataset that it takes after."""

    def __init__(self, variant: Any, like: Any, inputs: list[Any]) -> None:
        # `like` also keeps the functions that the operation calls.
        self._like, self._over = like, inputs
        super().__init__(variant)  # pyright: ignore[reportCallIssue]

    def _inputs(self) -> list[Any]:
        return self._over

    @property
    def element_spec(self) -> Any:
        return self._like.element_spec


_UNARY: dict[str, Any] = {
    "Map": tf.raw_ops.MapDataset,
    "ParallelMap": tf.raw_ops.ParallelMapDatasetV2,
    "Batch": tf.raw_ops.BatchDatasetV2,
    "ParallelBatch": tf.raw_ops.ParallelBatchDataset,
    "PaddedBatch": tf.raw_ops.PaddedBatchDatasetV2,
}


def rebuilt(dataset: Any, source: Any) -> tf.data.Dataset:
    """`dataset`, of a kind of map or batch, over another input.

    A map calls the same traced function: the user's isn't called again.

    Args:
        dataset: What `map`, `batch` or `padded_batch` returned.
        source: Yields the same types as the input of `dataset`.
    """
    operation = _UNARY[dataset_kind(dataset)]
    known = inspect.signature(operation).parameters
    given = {n: getattr(dataset, f"_{n}") for n in known if hasattr(dataset, f"_{n}")}
    given.update({n: v for n, v in dataset._common_args.items() if n in known})
    given["input_dataset"] = source._variant_tensor
    if "f" in known:
        given["f"] = dataset._map_func.function
        given["other_arguments"] = dataset._map_func.function.captured_inputs
    for name in {"padded_shapes", "padding_values"} & given.keys():
        given[name] = tf.nest.flatten(given[name])
    return _Rebuilt(operation(**given), dataset, [source])


def zip_structure(dataset: Any, inputs: list[Any]) -> Any:
    """`inputs` in the structure of datasets that `dataset`, of kind Zip, was made of."""
    return tf.nest.pack_sequence_as(dataset._datasets, inputs)


def resliced(dataset: Any, tensors: list[Any]) -> tf.data.Dataset:
    """`dataset`, of `from_tensor_slices`, over other tensors of the same types."""
    variant = tf.raw_ops.TensorSliceDataset(
        components=tensors,
        output_shapes=dataset._common_args["output_shapes"],
        metadata=dataset._common_args["metadata"],
    )
    return _Rebuilt(variant, dataset, [])


def called_graph(operation: tf.Operation) -> tf.Graph:
    """The graph, with its `inputs` and `outputs`, of the function that a PartitionedCall calls."""
    return operation.graph._get_function(operation.get_attr("f").name).graph


def captured(tensor: tf.Tensor) -> Any:
    """What a placeholder in a function's graph stands for outside of all graphs.

    The placeholder itself, or one in a graph around it, where it stands for an argument.
    """
    while True:
        captures = getattr(tensor.graph, "captures", ())
        outer = next((outer for outer, inner in captures if inner is tensor), None)
        if outer is None:
            return tensor
        if not hasattr(outer, "op"):
            return outer  # has a value
        tensor = outer


def stateful_ops(dataset: Any) -> set[str]:
    """The operations with state in the functions that `dataset` calls, also within calls.

    Operations that TensorFlow doesn't know are among them.
    """
    found: set[str] = set()
    for function in dataset._functions():
        graph = function.function.graph.as_graph_def()
        found.update(node.op for node in graph.node)
        for inner in graph.library.function:
            found.update(node.op for node in inner.node_def)
    known = {name: op_def_registry.get(name) for name in found}
    return {name for name, known_as in known.items() if known_as is None or known_as.is_stateful}


def dataset_parallelism(dataset: Any) -> dict[str, Any]:
    """The arguments for `map` or `batch` that make it run as many calls at once as `dataset` does.

    Args:
        dataset: Of a kind of map or batch.

    Returns:
        Nothing for one call at a time.
    """
    calls = getattr(dataset, "_num_parallel_calls", None)
    if calls is None:
        return {}
    given: dict[str, Any] = {"num_parallel_calls": calls, "deterministic": True}
    if getattr(dataset, "_use_unbounded_threadpool", False):
        given["use_unbounded_threadpool"] = True
    return given


class MapFunction(NamedTuple):
    """What a map calls.

    Attributes:
        given: Type specification of what it gets.
        returned: Of what it returns.
        function: The traced function, from the `tensors_of` the one to those of the other.
    """

    given: Any
    returned: Any
    function: Any


def map_function(dataset: Any) -> MapFunction:
    """What `dataset`, of a kind of map, calls for each element."""
    own = dataset._map_func
    return MapFunction(own._input_structure, own.output_structure, own.function)


def tensors_of(spec: Any, element: Any) -> list[Any]:
    """An element of the type specification `spec` as functions of datasets get it."""
    return structure.to_tensor_list(spec, element)


def element_of(spec: Any, tensors: list[Any]) -> Any:
    """Inverse of `tensors_of`."""
    return structure.from_tensor_list(spec, tensors)


def add_function(definition: Any) -> None:
    """Makes a function known to this process by its name, from its FunctionDef."""
    if not _context().has_function(definition.signature.name):
        _context().add_function_def(definition)


def is_op_determinism() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` has been called."""
    return config.is_op_determinism_enabled()


all_reduce_v2 = collective_ops.all_reduce_v2
all_gather_v2 = collective_ops.all_gather_v2
all_to_all_v2 = collective_ops.all_to_all_v2
broadcast_send_v2 = collective_ops.broadcast_send_v2
broadcast_recv_v2 = collective_ops.broadcast_recv_v2


def _context() -> Any:
    # The one place that knows whether TensorFlow has started, and as which task.
    return context.context()


def context_is_initialized() -> bool:
    """Whether TensorFlow has run an op or listed devices, after which it can't join a cluster."""
    return _context()._context_handle is not None


def join_cluster(
    jobs: Mapping[str, Sequence[str]], *, job: str, index: int, protocol: str = "grpc"
) -> None:
    """Makes this process a task of a cluster whose tasks run collective ops together.

    Starts TensorFlow's server on the task's port. The same configuration as
    tf.distribute's multi-worker strategy makes, but for its coordination service.

    Args:
        jobs: Addresses ("host:port") of each job's tasks, only those that train.
        job: This task's job.
        index: This task's index.
        protocol: TF_CONFIG's rpc_layer.
    """
    leader_job = "chief" if "chief" in jobs else "worker"
    leader = f"/job:{leader_job}/replica:0/task:0"
    me = f"/job:{job}/task:{index}"
    ctx = _context()
    ctx.configure_collective_ops(collective_leader=leader, device_filters=(me,))
    config = ctx.config
    config.experimental.collective_group_leader = leader
    del config.device_filters[:]
    config.device_filters.append(me)
    server = tensorflow_server_pb2.ServerDef(
        cluster=tf.train.ClusterSpec({k: list(v) for k, v in jobs.items()}).as_cluster_def(),
        default_session_config=config,
        job_name=job,
        task_index=index,
        protocol=protocol,
    )
    ctx.enable_collective_ops(server)
    ctx.ensure_initialized()


def abort_collectives() -> None:
    """Ends the collective ops under way, and all later ones, with DeadlineExceededError.

    What tf.distribute does when its health check finds a worker gone: transfers are
    cancelled before the ops end.
    """
    _context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, "no answer in time")


def global_seed() -> int | None:
    """The seed of `tf.random.set_seed`, or None when none was set."""
    return context.global_seed()


def operation_seeds() -> tuple[int | None, Any]:
    """The global seed, and the state of what gives eager operations and datasets their own seeds.

    None for both where no seed was set.
    """
    ctx = _context()
    return ctx._seed, None if ctx._seed is None else ctx._rng.getstate()


def put_back_operation_seeds(seed: int | None, state: Any) -> None:
    """Brings back what `operation_seeds` returned.

    As tf.random.set_seed does, it forgets the kernels of eager operations: one that has
    drawn from a seed already would go on behind that.
    """
    if seed is None:
        return
    ctx = _context()
    ctx._set_global_seed(seed)
    ctx._rng.setstate(state)


def global_generator() -> Any | None:
    """TensorFlow's global `tf.random.Generator`; None before its first use."""
    return stateful_random_ops.global_generator


def auto_shard(dataset: tf.data.Dataset, num_workers: int, index: int) -> tf.data.Dataset:
    """`dataset` rewritten by its own auto-shard policy (FILE or HINT) for worker `index`.

    Raises:
        tf.errors.NotFoundError, tf.errors.InvalidArgumentError: The policy doesn't
            fit: too few files, no file source, or no hint.
    """
    sharded: Any = _AutoShardDataset(dataset, num_workers, index, num_workers)
    return sharded


@contextlib.contextmanager
def shifted_seed(shift: int) -> Iterator[None]:
    """Within this, random ops see the global seed plus `shift`; without a global seed, nothing.

    The public tf.random.set_seed would also restart the stream of eager op seeds.
    """
    owner: Any = context.context() if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    name = "_seed" if tf.executing_eagerly() else "seed"
    seed = getattr(owner, name)
    if seed is None or not shift:
        yield
        return
    setattr(owner, name, (seed + shift) % 2**31)
    try:
        yield
    finally:
        setattr(owner, name, seed)


def thread_scopes() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What another thread has to enter to go on with the caller's graph, or eagerly as the caller.

    Returns:
        Makes a context manager, once for each thread.
    """
    graph, eager = tf.compat.v1.get_default_graph(), tf.executing_eagerly()
    if not eager:
        # Otherwise one thread's device and name scopes would be every thread's.
        graph.switch_to_thread_local()
    creators = list(graph._variable_creator_stack)
    name_scope = graph.get_name_scope()
    # tf.summary's writer and step.
    summaries = dict(vars(summary_ops_v2._summary_state))
    with tf.init_scope():
        outermost = tf.compat.v1.get_default_graph()
        outermost_creators = list(outermost._variable_creator_stack)

    @contextlib.contextmanager
    def scopes() -> Iterator[None]:
        vars(summary_ops_v2._summary_state).update(summaries)
        with outermost.as_default(), context.eager_mode():
            outermost._variable_creator_stack = list(outermost_creators)
            with contextlib.ExitStack() as stack:
                if not eager:
                    stack.enter_context(graph.as_default())
                    graph._variable_creator_stack = list(creators)
                    stack.enter_context(tf.name_scope(f"{name_scope}/" if name_scope else ""))
                yield

    return scopes


def wrap_checkpoint_write(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces what `tf.train.Checkpoint`'s save and write, and CheckpointManager, end in.

    Args:
        make: Gets the original, which takes a checkpoint, a prefix and `options`.
    """
    original = tf.train.Checkpoint._write
    tf.train.Checkpoint._write = functools.wraps(original)(make(original))


def wrap_next(fetch: Callable[[Callable[[], Any]], Any]) -> None:
    """Has iterators of tf.data, in and outside of graphs, hand out what `fetch` makes of it.

    Args:
        fetch: Gets the original, which returns the next element, or an Optional of it.
    """
    for name in ("_next_internal", "get_next_as_optional"):
        original = getattr(OwnedIterator, name)
        setattr(OwnedIterator, name, _fetching(original, fetch))


def _fetching(original: Callable[..., Any], fetch: Callable[[Callable[[], Any]], Any]) -> Any:
    return functools.wraps(original)(lambda self: fetch(lambda: original(self)))


def call_after_writing(callbacks: Sequence[Callable[..., Any]], path: str) -> None:
    """Calls what CheckpointOptions has for after a write to `path`, as TensorFlow does."""
    checkpoint._execute_callbacks(callbacks, path)


def undistributed(dataset: Any) -> Any:
    """The pipeline that one of TensorFlow's own strategies has distributed; others as they are."""
    if isinstance(dataset, input_lib.DistributedDataset):
        return dataset._original_dataset
    return dataset


def is_finished(remote: Any) -> bool:
    """Whether a coordinator's RemoteValue is in this process's memory, or has an error.

    Its methods only wait, and fetch the value themselves: then the loss of the worker would be
    an error of the caller, where the coordinator has another worker run the function.
    """
    return remote._has_fetched_to_local or remote._error is not None


def wait_for(remote: Any, timeout_s: float) -> None:
    """Waits until a coordinator's RemoteValue is about to be finished, at most `timeout_s`."""
    if remote._status_available_event.is_set():
        time.sleep(min(timeout_s, 0.0005))
    else:
        remote._status_available_event.wait(timeout_s)


def serialized(dataset: Any) -> Callable[[], Any]:
    """What makes `dataset` again in another process, as part of a function that runs there."""
    spec = dataset.element_spec
    graph = coordinator_values.serialize_dataset_to_graph(dataset)
    return lambda: coordinator_values.deserialize_dataset_from_graph(graph, spec)


def create_on_each_worker(
    coordinator: Any, makers: Sequence[Callable[..., Any]], spec: Any, args: tuple[Any, ...] = ()
) -> Any:
    """A value on each worker, made anew when a worker has come back.

    The coordinator's public method makes the same on all of them.

    Args:
        coordinator: A ClusterCoordinator.
        makers: What makes it, for each worker.
        spec: Type specification of what they return.
        args: For the makers; what was made before gives each worker its own.

    Returns:
        What functions can be scheduled with, of which each worker gets its own value.
    """
    workers = coordinator._cluster.workers
    made = []
    for worker, maker in zip(workers, makers, strict=True):
        remote = worker.create_resource(maker, args=args)
        remote._type_spec = spec
        made.append(remote)
    return coordinator_values.PerWorkerDistributedIterator(made)


def specs_of_iterators(per_worker: Any) -> tuple[Any, Any]:
    """Type specifications of each worker's iterator, and of its elements."""
    spec = per_worker._type_spec._value_spec
    return spec, spec._element_spec


def worker_iterator_spec(strategy: Any, dataset: Any) -> Any:
    """Type specification of an iterator over `dataset` on a worker."""
    return input_lib.get_iterator_spec_from_dataset(strategy, dataset)


def function_of_distributed(dataset: Any) -> Callable[..., Any] | None:
    """The dataset function behind what `distribute_datasets_from_function` returned, or None."""
    if isinstance(dataset, input_lib.DistributedDatasetsFromFunction):
        return dataset._dataset_fn
    return None


def is_per_worker_dataset(dataset: Any) -> bool:
    """Whether `dataset` is what a coordinator's `create_per_worker_dataset` returned."""
    return isinstance(dataset, coordinator_values.PerWorkerDatasetFromDatasetFunction)


def unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function as one that AutoGraph calls as it is, and whose callees it converts."""
    return autograph.autograph_artifact(function)


def drawn_ahead(generator: Any, count: Any) -> tuple[Any, Any]:
    """The key and the counter for the next `count` numbers of a `tf.random.Generator`, in uint64.

    It moves on behind them; as when it drew them itself, but for no replica in particular.

    Args:
        generator: One with Philox, made outside of any strategy or `freed`.
        count: int64 scalar.
    """
    before = generator.skip(count)
    return tf.bitcast(before[2:3], tf.uint64), tf.bitcast(before[:2], tf.uint64)


def freed(generator: Any) -> Any:
    """`generator`, so that it draws alike in all replicas of the strategy it was made under."""
    generator._distribution_strategy = None
    return generator


def use_keras_2() -> None:
    """Makes `tf.keras` tf_keras in a process that has imported TensorFlow before."""
    folders = {}
    for version, api in (("v1", tf.compat.v1), ("v2", tf.compat.v2)):
        package = importlib.import_module(f"tf_keras.api._{version}.keras")
        folders[version] = os.path.dirname(os.path.dirname(str(package.__file__)))
        setattr(api, "keras", package)  # noqa: B010  (no such name is known of it)
    # What `import tensorflow.keras` finds, and has found.
    tf.__path__.insert(0, folders["v2"])
    for name in [name for name in sys.modules if name.startswith("tensorflow.keras")]:
        if name == "tensorflow.keras" or name.startswith("tensorflow.keras."):
            del sys.modules[name]
    tf.keras = importlib.import_module("tf_keras.api._v2.keras")
