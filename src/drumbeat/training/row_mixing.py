"""Layers of a model that take the rows of a batch together, which a worker has a part of only.

In the graph of a step it is looked for means, sums and the like over rows, and products of rows
with rows, from which the model's outputs follow; for variables that follow the rows; and for
random numbers for each row that TensorFlow draws, of which each worker gets the same. Layers of
Keras's are of no account, see `step_rows`. What isn't surely so is passed over in silence.

For models of scripts that name no strategy: whoever names one knows that there are parts.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat import tf_internals
from drumbeat.training import current, divergence, row_marks, row_rules, step_rows
from drumbeat.training.replaying import constant
from drumbeat.training.rowwise import CALLS, COUNT, FLAT, ROWS, Rows

logger = logging.getLogger("drumbeat")


class _Here(threading.local):
    model: Any = None
    """Whose step is traced."""


_here = _Here()


_looked_at: Any = weakref.WeakSet()
"""Models of which a step has been traced before."""


def integrate() -> None:
    """Look at each training step of Keras 3 when its loss is about to be computed."""
    touch.wrap(touch.TRAIN_STEP, _train_step)
    touch.wrap(touch.COMPILED_LOSS, _compiled_loss)


def _train_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def train_step(self: Any, data: Any) -> Any:
        strategy = current.with_whole_batches()
        is_here = strategy is not None and strategy.is_chief and not tf.executing_eagerly()
        if not is_here or self in _looked_at:
            return original(self, data)
        _looked_at.add(self)
        with _looking_at(self):
            return original(self, data)

    return train_step


@contextlib.contextmanager
def _looking_at(model: Any) -> Iterator[None]:
    before, _here.model = _here.model, model
    try:
        yield
    finally:
        _here.model = before


def _compiled_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        outputs = [each for each in keras.tree.flatten(y_pred) if isinstance(each, tf.Tensor)]
        if _here.model is not None and outputs and not tf.executing_eagerly():
            look(_here.model, outputs)
        return original(self, y_true, y_pred, sample_weight)

    return call


@tf.autograph.experimental.do_not_convert
def look(model: Any, outputs: list[Any]) -> None:
    """Warn of what in the graph of `outputs` isn't as with one worker."""
    all_layers = touch.all_layers(model)
    layers = step_rows.Layers(all_layers)
    graph = outputs[0].graph
    found = Search(layers, step_rows.of(graph, layers))
    found.through(graph)
    named = [each.name for each in all_layers if type(each).__name__ in ("MixUp", "CutMix")]
    culprits = [found.mixed_by(output) for output in outputs]
    named += [layers.name_of(culprit) for culprit in culprits if culprit is not None]
    if named:
        _warn(_MIXED, named[0])
    if found.draws:
        _warn(_DRAWN, layers.name_of(found.draws[0]), found.draws[0].type)
    paths = [path for path in map(_path_in(all_layers), found.followers) if path]
    if paths:
        divergence.warn_of_drift(paths[0], len(set(paths)) - 1)


_MIXED = (
    "The layer %s takes the rows of a batch together, and a worker has only its own rows there, so "
    "the model is not that of one worker. What is taken of the whole batch can be had from "
    "BatchNormalization(synchronized=True), in a loss, or in a number that a layer gives to "
    "add_loss. Whether it matters: drumbeat check."
)
_DRAWN = (
    "The layer %s draws random numbers for the rows of a batch by TensorFlow's own %s. Each worker "
    "draws for its own rows, the same as the others for theirs, so the model is not that of one "
    "worker. Draw by keras.random with a keras.random.SeedGenerator, and it is."
)
_said: set[str] = set()


def _warn(text: str, *of: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.warning(text, *of)


def _path_in(layers: list[Any]) -> Callable[[Any], str]:
    """Finds the path of a layer's variable by an operation's resource, "" for any other's."""
    owned = {variable.path: variable.value for each in layers for variable in each.variables}
    owned.update(touch.plain_variables(layers))

    def path_of(resource: Any) -> str:
        handle = tf_internals.captured(resource)
        return next((path for path, variable in owned.items() if variable.handle is handle), "")

    return path_of


_OVER_AXES = ("Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm", "Cumsum", "Cumprod")
_DRAWS = (
    *("RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"),
    *("StatelessRandomNormalV2", "StatelessRandomUniformV2", "StatelessTruncatedNormalV2"),
    *("StatelessRandomNormal", "StatelessRandomUniform", "StatelessTruncatedNormal"),
)
_ASSIGNS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


class Search:
    """Of one graph.

    Args:
        layers: Of the model.
        rows: What the graph's tensors have to do with rows.
        call: That calls it, None where it is that of the step.

    Attributes:
        draws: Operations that draw for a worker's rows.
        followers: Resources of variables that are given what follows from rows.
    """

    def __init__(self, layers: step_rows.Layers, rows: Rows, call: Any | None = None) -> None:
        self._layers = layers
        self._call = call
        self._rows = rows
        self._mixed: dict[str, Any] = {}
        self._depends: set[str] = set()
        self._rows_at: dict[str, int] = {}
        """For tensors that are transposed: which axis has the rows."""
        self.draws: list[Any] = []
        self.followers: list[Any] = []

    def mixed_by(self, tensor: Any) -> Any | None:
        """The operation that mixed the rows of which this tensor is made; None if none did."""
        return self._mixed.get(tensor.name)

    def through(self, graph: Any) -> None:
        """Look at all of its operations."""
        for operation in graph.get_operations():
            layer = self._layers.of(operation)
            looks = (layer or self._call) is not None and not step_rows.is_trusted(layer)
            if any(map(self._is_of_rows, operation.inputs)):
                self._depends.update(output.name for output in operation.outputs)
            culprits = map(self.mixed_by, operation.inputs)
            culprit = next((each for each in culprits if each is not None), None)
            if culprit is None and looks and self._mixes(operation):
                culprit = operation
            if culprit is not None:
                self._mixed.update(
                    (each.name, culprit) for each in operation.outputs if each.dtype.is_floating
                )
            if looks:
                self._note(operation)

    def _is_of_rows(self, tensor: Any) -> bool:
        """Whether something follows from the rows, or from how many there are."""
        return self._rows.of(tensor) in (ROWS, FLAT, COUNT) or tensor.name in self._depends

    def _note(self, operation: Any) -> None:
        kind, given = operation.type, list(operation.inputs)
        if kind in _ASSIGNS and self._is_of_rows(given[1]):
            self.followers.append(given[0])
        is_of_rows = kind in _DRAWS and self._rows.begins_with_rows(given[0])
        if is_of_rows and not row_marks.is_of_draw(operation):
            self.draws.append(operation)

    def _mixes(self, operation: Any) -> bool:
        kind, given = operation.type, list(operation.inputs)
        of_rows = [self._rows.of(each) is ROWS for each in given]
        if kind in CALLS:
            return self._calls_what_mixes(operation)
        if not given or not given[0].dtype.is_floating:
            return False
        if kind == "Transpose" and of_rows[0]:
            order = constant(given[1])
            if order is not None:
                self._rows_at[operation.outputs[0].name] = order.tolist().index(0)
        if kind in _OVER_AXES:
            return self._rows_axis(given[0]) in row_rules.axes_of(operation)
        if kind in ("Softmax", "LogSoftmax"):
            return self._rows_axis(given[0]) == given[0].shape.rank - 1
        if kind == "MatMul":
            return all(of_rows)
        return kind == "RandomShuffle" and of_rows[0]

    def _rows_axis(self, tensor: Any) -> int:
        """The axis that has the rows, -1 if none surely has."""
        return 0 if self._rows.of(tensor) is ROWS else self._rows_at.get(tensor.name, -1)

    def _calls_what_mixes(self, call: Any) -> bool:
        graph, rows = self._rows.within(call)
        within = Search(self._layers, rows, call)
        within.through(graph)
        self.draws += [call] * bool(within.draws)
        return any(within.mixed_by(output) is not None for output in graph.outputs)
