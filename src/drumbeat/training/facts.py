"""What may explain that a training is another one on several workers, for `drumbeat check`."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.cluster import recording as kinds
from drumbeat.cluster.averaging import Averaging
from drumbeat.strategies import choose
from drumbeat.strategies.data_parallel import DataParallelExtended

# Operations that draw from a stream of their own: RandomUniform, StatefulStandardNormalV2...
_RANDOM_OP = re.compile(
    r"(Random|Stateful|Parameterized|Truncated).*(Uniform|Normal|Gamma|Poisson|Shuffle|Binomial)"
    r"(Int|FullInt)?(V\d)?$|Multinomial$"
)


class _Here(threading.local):
    in_run = 0


class Facts:
    """Notes facts, see `drumbeat.cluster.recording`, while a script is traced and runs."""

    def __init__(self) -> None:
        self._noted: set[tuple[str, str]] = set()
        self._compiled: set[str] = set()
        self._here = _Here()

    def install(self, world_size: int) -> None:
        """Begin to take notes."""
        touch.wrap(touch.BATCH_MOMENTS, self._around_moments)
        replace(keras.random.SeedGenerator, "next", self._around_seed)
        replace(DataParallelExtended, "_call_for_each_replica", self._around_run)
        replace(DataParallelExtended, "_experimental_distribute_dataset", self._around_dataset)
        replace(DataParallelExtended, "_distribute_datasets_from_function", self._around_function)
        replace(choose, "use_local_sgd", self._around_local_sgd)
        if world_size == 1:
            # XLA can't compile the calls of Python that record a step. On several workers a
            # step with XLA fails anyway.
            replace(tf, "function", self._around_tf_function)

    def noted(self) -> tuple[tuple[str, str], ...]:
        """All notes so far."""
        return tuple(sorted(self._noted))

    def note_step(self, variables: Sequence[Any]) -> None:
        """Note what the step that is being made, or traced, says of its precision."""
        dtypes = {keras.config.dtype_policy().compute_dtype}
        dtypes |= {str(tf.as_dtype(v.dtype).name) for v in variables}
        for dtype in dtypes & {"float16", "bfloat16"}:
            self._noted.add((kinds.HALF, str(dtype)))
        enabled = tf.config.experimental.tensor_float_32_execution_enabled()
        if enabled and tf.config.list_physical_devices("GPU"):
            self._noted.add((kinds.TF32, "GPU"))
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_name.removeprefix("tf__")  # AutoGraph puts that before it
            if name in self._compiled:
                self._noted.add((kinds.JIT, name))
            frame = frame.f_back

    def _around_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(extended: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            self._here.in_run += 1
            try:
                result = original(extended, fn, args, kwargs)
            finally:
                self._here.in_run -= 1
            if not tf.executing_eagerly():
                self._note_random_ops()
            return result

        return call

    def _note_random_ops(self) -> None:
        graph = tf.compat.v1.get_default_graph().as_graph_def()
        nodes = [*graph.node]
        for function in graph.library.function:
            nodes += function.node_def
        for op in {node.op for node in nodes}:
            if _RANDOM_OP.match(op):
                self._noted.add((kinds.RANDOM_OP, op))

    def _around_moments(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def moments(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._here.in_run and not layer.synchronized:
                self._noted.add((kinds.BATCH_STATISTICS, layer.name))
            return original(layer, *args, **kwargs)

        return moments

    def _around_seed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_seed(generator: Any, *args: Any, **kwargs: Any) -> Any:
            if self._here.in_run:
                self._noted.add((kinds.RANDOM_LAYER, _layer_that_calls() or generator.name))
            return original(generator, *args, **kwargs)

        return next_seed

    def _around_dataset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def distribute(extended: Any, dataset: Any, options: Any) -> Any:
            if isinstance(dataset, tf.data.Dataset):
                policy = dataset.options().experimental_distribute.auto_shard_policy
                if policy.name not in ("AUTO", "DATA"):
                    self._noted.add((kinds.SHARDING, policy.name))
            return original(extended, dataset, options)

        return distribute

    def _around_function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def distribute(extended: Any, dataset_fn: Any, options: Any) -> Any:
            self._noted.add((kinds.SHARDING, "dataset function"))
            return original(extended, dataset_fn, options)

        return distribute

    def _around_local_sgd(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def use(strategy: Any, asked: Averaging) -> None:
            # Another algorithm by intention: what is compared is all else.
            if asked.is_on:
                self._noted.add((kinds.LOCAL_SGD, str(asked)))

        return use

    def _around_tf_function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs).arguments
            if not arguments.get("jit_compile"):
                return original(*args, **kwargs)
            if arguments.get("func") is None:
                return functools.partial(function, **arguments)
            self._compiled.add(getattr(arguments["func"], "__name__", "a function"))
            return original(**{**arguments, "jit_compile": None})

        return function


def replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Put `make(original)` in the place of `owner.name`."""
    setattr(owner, name, make(getattr(owner, name)))


def _layer_that_calls() -> str:
    """Name of the innermost Keras layer whose code is running, or ""."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.layers.Layer):
            return owner.name
        frame = frame.f_back
    return ""
