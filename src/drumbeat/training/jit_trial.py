"""Times the parts of a step both ways, and leaves no trace of it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat.collectives.communicator import Communicator
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import gradients, randomness
from drumbeat.training.compiled import Gradients, NotCompilable, compiled_update

REPEATS = 5


@dataclass(frozen=True)
class Timed:
    """One part of a step, in one way.

    Attributes:
        first_s: The first call, in which it is traced, and compiled.
        more_s: Each of the next `REPEATS` calls.
    """

    first_s: float
    more_s: tuple[float, ...]

    @property
    def usual_s(self) -> float:
        """The median of those after the first."""
        return float(np.median(self.more_s))

    def slowest(self, communicator: Communicator) -> Timed:
        """Call by call that of the slowest worker; all must call this."""
        mine = np.array([self.first_s, *self.more_s], np.float64)
        first_s, *more_s = communicator.all_reduce_numpy(mine, "max", name="jit").tolist()
        return Timed(first_s, tuple(more_s))


NEVER = Timed(float("inf"), (float("inf"),) * REPEATS)
"""Of what can't be done."""


class Trial:
    """Of one model on one worker.

    Args:
        model: That is built, with its optimizer.
        strategy: Its workers'.
        batch: A local batch.
    """

    def __init__(self, model: Any, strategy: DataParallelStrategy, batch: Any) -> None:
        self._model = model
        self._strategy = strategy
        self._batch = batch

    def check(self) -> None:
        """Whether XLA can compile the forward and backward part, found without compiling it.

        Raises:
            NotCompilable: It can't.
        """
        with self._without_trace():
            self._in_replica(self._lower)

    def _lower(self, batch: Any) -> None:
        part = Gradients(self._model, self._strategy, jit=True)
        arguments = part.arguments(batch)
        try:
            _check_operations(part.function.get_concrete_function(*arguments).graph)
            part.function.experimental_get_compiler_ir(*arguments)(stage="hlo")
        except NotCompilable:
            raise
        except Exception as error:
            raise NotCompilable(_first_line(error)) from None

    def gradients(self, *, jit: bool) -> Timed:
        """The forward and backward part."""
        times: list[Timed] = []

        def run(batch: Any) -> None:
            part = Gradients(self._model, self._strategy, jit=jit)
            times.append(_timed(lambda: part(batch)))

        with self._without_trace():
            self._in_replica(run)
        return times[0]

    def update(self, *, jit: bool) -> Timed:
        """The optimizer's update, by gradients that are zeros."""
        optimizer, weights = self._model.optimizer, self._model.trainable_weights
        grads = [tf.zeros(w.shape, w.dtype) for w in weights]
        times: list[Timed] = []

        def apply(summed: list[Any]) -> Any:
            pairs = list(zip(summed, weights, strict=True))
            return gradients.with_reduced(optimizer.apply_gradients, pairs)

        def run(batch: Any) -> None:
            del batch
            function = compiled_update(apply, jit=jit)
            times.append(_timed(lambda: function(grads)))

        with self._without_trace():
            self._in_replica(run)
        return times[0]

    def _in_replica(self, body: Callable[[Any], None]) -> None:
        self._strategy.run(tf.autograph.experimental.do_not_convert(body), args=(self._batch,))

    @contextlib.contextmanager
    def _without_trace(self) -> Iterator[None]:
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


_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_RANDOM = re.compile(r"Random|Multinomial|Normal(V\d)?$|Gamma|Poisson|Binomial")
_SAME_RANDOM = {"StatelessRandomUniformFullIntV2", "StatelessRandomGetKeyCounter"}


def _check_operations(graph: Any) -> None:
    definition = graph.as_graph_def()
    nodes = [*definition.node]
    for function in definition.library.function:
        nodes += function.node_def
    operations = {node.op for node in nodes}
    if operations & _PYTHON:
        raise NotCompilable("it talks to other workers, or calls Python, on its way")
    draws = sorted(op for op in operations - _SAME_RANDOM if _RANDOM.search(op))
    if draws:
        raise NotCompilable(f"XLA draws other random numbers ({draws[0]})")


def _timed(call: Callable[[], Any]) -> Timed:
    try:
        first_s, *more_s = [_seconds(call) for _ in range(REPEATS + 1)]
    except (tf.errors.OpError, NotCompilable, ValueError, TypeError):
        return NEVER
    return Timed(first_s, tuple(more_s))


def _seconds(call: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    for leaf in tf.nest.flatten(call()):
        if tf.is_tensor(leaf):
            np.asarray(tf.convert_to_tensor(leaf))  # when it is there
            break
    return time.perf_counter() - began_s


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200] if text else ''}"
