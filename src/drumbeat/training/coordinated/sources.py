"""Where the batches of a fit come from: the chief reads them, or each worker its own.

The chief reads arrays, generators and plain pipelines, batch by batch and in order, and
sends each batch along with a step. A dataset function, and a pipeline whose auto-shard
policy is FILE, HINT or OFF, runs on each worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from drumbeat.errors import DataError
from drumbeat.strategies.parameter_server import ParameterServerStrategy
from drumbeat.tf_internals import (
    auto_shard,
    create_on_each_worker,
    function_of_distributed,
    is_per_worker_dataset,
    serialized,
    shifted_seed,
    undistributed,
    worker_iterator_spec,
)
from drumbeat.training.coordinated.window import Window

_Policy = tf.data.experimental.AutoShardPolicy


class WorkerDataset(tf.data.Dataset):
    """Stands for pipelines on the workers where Keras expects a dataset.

    Iterating over it makes an iterator on each worker.

    Args:
        element_spec: Type specification of a batch.
        iterators: Makes them.
        batches: How many there are on all workers together; tf.data's numbers for unknown
            and infinite.
    """

    has_no_place = True
    """Nobody knows how far each worker has come in it: after a restart it begins anew."""

    def __init__(
        self,
        element_spec: Any,
        iterators: Callable[[], Any],
        batches: int,
    ) -> None:
        self._spec = element_spec
        self._iterators = iterators
        self._batches = batches
        # TensorFlow wants a tensor; nobody reads from this one.
        self._blank: Any = tf.data.Dataset.range(0)
        super().__init__(self._blank._variant_tensor)  # pyright: ignore[reportCallIssue]

    def _inputs(self) -> list[Any]:
        return []

    @property
    def element_spec(self) -> Any:
        """Type specification of a batch."""
        return self._spec

    def cardinality(self) -> Any:
        """Batches on all workers together."""
        return tf.constant(self._batches, tf.int64)

    def __iter__(self) -> Any:
        return self._iterators()


def is_function(data: Any) -> bool:
    """Whether `data` is a dataset function: something to call that isn't data itself."""
    known = (tf.data.Dataset, keras.utils.PyDataset, tf.distribute.DistributedDataset, tf.Tensor)
    return callable(data) and not isinstance(data, known) and not hasattr(data, "__array__")


def prepared(data: Any, strategy: ParameterServerStrategy, window: Window) -> Any:
    """`data` as Keras takes it: what runs on the workers as a `WorkerDataset`.

    Raises:
        DataError: A dataset function returns something else, or its datasets differ.
    """
    if is_per_worker_dataset(data):
        unknown = int(tf.data.INFINITE_CARDINALITY)
        return WorkerDataset(data.element_spec, lambda: iter(data), unknown)
    own = function_of_distributed(data)
    if own is None and is_function(data):
        own = data
    if own is not None:
        return _on_workers(own, strategy, window)
    data = undistributed(data)
    if isinstance(data, tf.data.Dataset) and not isinstance(data, WorkerDataset):
        policy = data.options().experimental_distribute.auto_shard_policy
        if policy in (_Policy.FILE, _Policy.HINT, _Policy.OFF):
            return _on_workers(_sharded(data, policy), strategy, window)
    return data


def on_chief(data: Any) -> Any:
    """`data` for one reader, in order: a dataset function is called for one pipeline."""
    own = function_of_distributed(data)
    if own is None and is_function(data):
        own = data
    if own is None:
        return undistributed(data)
    return _call(own, tf.distribute.InputContext(1, 0, 1))


def _sharded(data: Any, policy: Any) -> Callable[[Any], Any]:
    make = serialized(data)

    def dataset_fn(context: tf.distribute.InputContext) -> Any:
        if policy is _Policy.OFF:
            return make()
        return auto_shard(make(), context.num_input_pipelines, context.input_pipeline_id)

    return dataset_fn


def _call(function: Any, context: tf.distribute.InputContext) -> Any:
    try:
        takes = [
            each
            for each in inspect.signature(function).parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
        ]
    except (TypeError, ValueError):
        takes = [context]
    made = function(context) if takes else function()
    if not isinstance(made, tf.data.Dataset):
        raise DataError(
            f"The dataset function returned {type(made).__name__}; expected a tf.data.Dataset of "
            "batches."
        )
    return made


def _on_workers(function: Any, strategy: ParameterServerStrategy, window: Window) -> WorkerDataset:
    """A pipeline on each worker, of what `function` makes for it."""
    coordinator = strategy.coordinator
    count = strategy._num_workers
    makers = [_traced(function, number, count, strategy) for number in range(count)]
    specs = [maker.structured_outputs.element_spec for maker in makers]
    if any(spec != specs[0] for spec in specs):
        raise DataError(
            f"The dataset function makes other batches for some workers: {specs[0]} for the "
            f"first, {next(spec for spec in specs if spec != specs[0])} for another. Expected the "
            "same types and shapes for all."
        )
    like = makers[0].structured_outputs
    datasets = create_on_each_worker(coordinator, makers, like._type_spec)
    total = _total(_lengths(makers, window))
    spec = worker_iterator_spec(strategy, like)

    def iterators() -> Any:
        return create_on_each_worker(coordinator, [_iterator] * count, spec, (datasets,))

    return WorkerDataset(specs[0], iterators, total)


def _traced(function: Any, number: int, count: int, strategy: ParameterServerStrategy) -> Any:
    context = tf.distribute.InputContext(count, number, strategy.num_replicas_in_sync)
    made = tf.function(lambda: _call(function, context), autograph=False)
    # Pipelines that shuffle all rows shall not all have the same order.
    with shifted_seed(number):
        concrete = made.get_concrete_function()
    if any(tensor.dtype == tf.variant for tensor in concrete.captured_inputs):
        raise DataError(
            "The dataset function uses a dataset that was made outside of it, in the chief's "
            "process, where workers can't read it. Make all of it within the function; or give "
            "fit the dataset itself, which the chief then reads for the workers."
        )
    return concrete


def _lengths(makers: list[Any], window: Window) -> list[int]:
    """How many batches each of the pipelines has; any worker may say so."""
    for number, maker in enumerate(makers):
        length = tf.function(lambda made=maker: made().cardinality(), autograph=False)
        window.put(number, length.get_concrete_function(), ())
    return [int(window.take().value) for _ in makers]


def _iterator(dataset: Any) -> Any:
    return iter(dataset)


def _total(lengths: list[int]) -> int:
    for special in (tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY):
        if int(special) in lengths:
            return int(special)
    return sum(lengths)
