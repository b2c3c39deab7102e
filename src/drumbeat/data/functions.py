"""The traced functions that maps of a pipeline call, and what they are like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from drumbeat.tf_internals import (
    add_function,
    dataset_parallelism,
    element_of,
    is_op_determinism,
    map_function,
    stateful_ops,
    tensors_of,
)

# Draws of different workers differ by this much in their seeds.
_SEED_STRIDE = 1_000_003
_PYTHON = frozenset({"PyFunc", "EagerPyFunc"})


def obstacle_of(dataset: Any, harmless: frozenset[str]) -> str:
    """Why a map can't run for some examples only without changing what it returns; "" if it can.

    Args:
        dataset: Of a kind of map.
        harmless: Operations that count as having state, and yet are alike for any example.
    """
    state = stateful_ops(dataset) - harmless
    if not state:
        return ""
    if state & _PYTHON:
        return (
            "map() calls Python code, which may remember what it has seen; if it doesn't, use "
            "tf.numpy_function(..., stateful=False)"
        )
    graph = map_function(dataset).function.graph.as_graph_def()
    others = state - {node.op for node in _nodes(graph) if _draws_by_seed(node)}
    if others:
        return f"map() has state that goes on from example to example ({min(others)})"
    calls = dataset_parallelism(dataset).get("num_parallel_calls")
    if calls is None or int(calls) == 1 or is_op_determinism():
        return (
            "map() draws random numbers in the order of the examples; tf.random.stateless_* and "
            "tf.image.stateless_* don't"
        )
    return ""


def call(dataset: Any, rank: int) -> Callable[[Any], Any]:
    """What a map calls for an element, to be called in the function of another map.

    The user's function isn't traced again.

    Args:
        dataset: Of a kind of map.
        rank: This worker. Random numbers that come in no order are drawn from seeds of its own:
            with equal ones, the k-th example of each would get the same.

    Returns:
        A function from an element of what `dataset` reads to one of its own.
    """
    own = map_function(dataset)
    draws = any(_draws_by_seed(node) for node in _nodes(own.function.graph.as_graph_def()))
    shift = rank * _SEED_STRIDE
    function = _Reseeded(own.function, shift) if shift and draws else own.function

    def called(element: Any) -> Any:
        results = function(*tensors_of(own.given, element))
        return element_of(own.returned, tf.nest.flatten(results))

    return called


class _Reseeded:
    """A traced function whose random operations have other seeds.

    Args:
        function: The function.
        shift: What is added to the seeds.
    """

    def __init__(self, function: Any, shift: int) -> None:
        self._function = function
        self._graph = _reseeded(function.graph.as_graph_def(), shift)
        for inner in self._graph.library.function:
            add_function(inner)

    def __call__(self, *tensors: Any) -> list[Any]:
        graph = self._function.graph
        inputs = [*tensors, *self._function.captured_inputs]
        return tf.graph_util.import_graph_def(
            self._graph,
            input_map={own.name: tensor for own, tensor in zip(graph.inputs, inputs, strict=True)},
            return_elements=[tensor.name for tensor in graph.outputs],
        )


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _draws_by_seed(node: Any) -> bool:
    """Whether an operation with state draws from a seed that is settled when it is traced."""
    return "seed" in node.attr and "seed2" in node.attr


def _reseeded(graph: Any, shift: int) -> Any:
    """`graph`, which it changes, with other seeds, and functions of other names."""
    # A process knows functions by their names.
    renamed = {f.signature.name: f"{f.signature.name}_{shift}" for f in graph.library.function}
    for function in graph.library.function:
        function.signature.name = renamed[function.signature.name]
    del graph.library.gradient[:]
    for node in _nodes(graph):
        node.op = renamed.get(node.op, node.op)
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                if called.name in renamed:
                    called.name = renamed[called.name]
        # Without a seed they draw differently each time as it is.
        if _draws_by_seed(node) and (node.attr["seed"].i or node.attr["seed2"].i):
            node.attr["seed2"].i = (node.attr["seed2"].i + shift) % 2**31
    return graph
