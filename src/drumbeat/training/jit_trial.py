"""A step without what workers do together, checked and timed both ways; it leaves no trace."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import compiled, gradients, randomness
from drumbeat.training.compiled import Gradients, NotCompilable

_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_RANDOM = re.compile(r"Random|Multinomial|Normal(V\d)?$|Gamma$|Poisson|Binomial")
_SAME_RANDOM = {"StatelessRandomUniformFullIntV2", "StatelessRandomGetKeyCounter"}
"""Integers, of which XLA draws the same."""
_CONVOLUTION = re.compile(r"^(Conv\dD|DepthwiseConv|MaxPool|AvgPool)")
SLOW = "XLA's convolutions are slower than oneDNN's"


class Trial:
    """Of one model on one worker, to be used within `without_trace`.

    Args:
        model: That is built, with its optimizer.
        strategy: Its workers'.
        batch: A local batch.
    """

    def __init__(self, model: Any, strategy: DataParallelStrategy, batch: Any) -> None:
        self._model = model
        self._strategy = strategy
        self._batch = batch

    @contextlib.contextmanager
    def without_trace(self) -> Iterator[None]:
        """Brings variables and random numbers back at the end."""
        model = self._model
        counted = [v for metric in model.metrics for v in metric.variables]
        variables = {id(v): v for v in (*model.variables, *model.optimizer.variables, *counted)}
        values = [np.array(tf.convert_to_tensor(v)) for v in variables.values()]
        random = randomness.state()
        try:
            yield
        finally:
            for variable, value in zip(variables.values(), values, strict=True):
                variable.assign(value)
            randomness.put_back(random)

    def check(self) -> None:
        """Whether XLA can compile the forward and backward part, found without doing it.

        Raises:
            NotCompilable: It can't.
        """

        def lower(batch: Any) -> None:
            part = Gradients(self._model, self._strategy, jit=True)
            arguments = part.arguments(batch)
            _check_operations(part.function.get_concrete_function(*arguments).graph, jit=True)
            part.function.experimental_get_compiler_ir(*arguments)(stage="hlo")

        with _as_not_compilable():
            self._in_replica(lower)

    def step(self, *, jit: bool) -> Callable[[], None]:
        """A function that takes one step by this worker's gradients alone; its first call traces.

        Raises:
            NotCompilable: By that function, if the step can't be compiled, or if compiling
                can't make it faster.
        """
        model = self._model
        traced: list[Any] = []

        def local(batch: Any) -> None:
            _, grads = Gradients(model, self._strategy, jit=jit)(batch)

            def apply(summed: list[Any]) -> Any:
                pairs = list(zip(summed, model.trainable_weights, strict=True))
                return gradients.with_reduced(model.optimizer.apply_gradients, pairs)

            with compiled.updates(jit=jit):
                compiled.update(apply, list(grads))

        def call(batch: Any) -> None:
            if not traced:
                function = tf.function(local, autograph=False).get_concrete_function(batch)
                _check_operations(function.graph, jit=jit)
                if any(_CONVOLUTION.match(op) for op in _operations(function.graph)):
                    raise NotCompilable(SLOW)
                traced.append(function)
            traced[0](batch)

        def run() -> None:
            with _as_not_compilable():
                self._in_replica(call)

        return run

    def _in_replica(self, body: Callable[[Any], None]) -> None:
        self._strategy.run(tf.autograph.experimental.do_not_convert(body), args=(self._batch,))


def seconds(call: Callable[[], None]) -> float:
    """How long `call` takes; infinity where it can't be compiled."""
    began_s = time.perf_counter()
    try:
        call()
    except NotCompilable:
        return float("inf")
    return time.perf_counter() - began_s


@contextlib.contextmanager
def _as_not_compilable() -> Iterator[None]:
    """What TensorFlow and Keras raise of many types, they raise as XLA is another compiler."""
    try:
        yield
    except NotCompilable:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()
        raise NotCompilable(f"{type(error).__name__}: {text[0][:200] if text else ''}") from None


def _check_operations(graph: Any, *, jit: bool) -> None:
    operations = _operations(graph)
    if operations & _PYTHON:
        raise NotCompilable("it talks to other workers, or calls Python, on its way")
    draws = sorted(op for op in operations - _SAME_RANDOM if _RANDOM.search(op))
    if jit and draws:
        raise NotCompilable(f"XLA draws other random numbers ({draws[0]})")


def _operations(graph: Any) -> set[str]:
    definition = graph.as_graph_def()
    nodes = [*definition.node]
    for function in definition.library.function:
        nodes += function.node_def
    return {node.op for node in nodes}
