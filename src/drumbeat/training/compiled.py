"""Steps of Keras's own `train_step` of which XLA compiles parts.

What XLA compiles can't talk to other workers. So there are two parts, with the sum of the
gradients between them: forward and backward, and the optimizer's update. All else of the
step (the input, metrics) runs as ever. Which models that is done for is settled before
their first step, see `jit`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.data.rows import Span
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import current, row_marks


class NotCompilable(Exception):
    """Why a step is not compiled, in words."""


class _Here(threading.local):
    gradients = False
    update = False


_here = _Here()
_models: Any = weakref.WeakSet()


def integrate() -> None:
    """Let Keras's training step run in parts."""
    touch.wrap(touch.TRAIN_STEP, _train_step)


def use(model: Any, *, jit: bool) -> None:
    """From now on the steps of `model` are compiled, or not; where that changes, traced anew."""
    if (model in _models) != jit:
        model.train_function = None
        (_models.add if jit else _models.discard)(model)


def is_for_xla() -> bool:
    """Whether what is traced just now is a forward and backward part that XLA compiles."""
    return _here.gradients


@contextlib.contextmanager
def updates(*, jit: bool) -> Iterator[None]:
    """Within this, `update` compiles, or not."""
    before, _here.update = _here.update, jit
    try:
        yield
    finally:
        _here.update = before


def update(function: Callable[[list[Any]], Any], reduced: list[Any]) -> Any:
    """What `function` returns for the summed gradients, compiled where the step at hand is.

    Gradients of some rows only, as of embeddings, may come for other numbers of rows in each
    step, and each would be compiled for anew. So they are not.
    """
    if not _here.update or any(isinstance(each, tf.IndexedSlices) for each in reduced):
        return function(reduced)
    return tf.function(function, autograph=False, jit_compile=True)(reduced)


def _train_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def train_step(self: Any, data: Any) -> Any:
        strategy = current.in_replica()
        if strategy is None or self not in _models:
            return original(self, data)
        outputs, gradients = Gradients(self, strategy, jit=True)(data)
        with updates(jit=True):
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return self.compute_metrics(x, y, outputs, sample_weight=sample_weight)

    return train_step


class Gradients:
    """Forward and backward part of a step, as a function of its own, for a replica to call.

    Args:
        model: That is trained.
        strategy: Its workers'.
        jit: Whether XLA compiles it.
    """

    def __init__(self, model: Any, strategy: DataParallelStrategy, *, jit: bool) -> None:
        self._model = model
        self._strategy = strategy
        self._jit = jit
        self.function: Any = tf.function(self._compute, autograph=False, jit_compile=jit)

    def __call__(self, data: Any) -> tuple[Any, list[Any]]:
        """The outputs and the gradients of `data`, a local batch."""
        return self.function(*self.arguments(data))

    def arguments(self, data: Any) -> tuple[Any, Any, Any]:
        """What `function` takes for `data`: with it, where its rows stand in the global batch."""
        extended = self._strategy.extended
        return data, tuple(extended.span()), extended.absent

    def _compute(self, data: Any, span: Any, absent: Any) -> tuple[Any, list[Any]]:
        replica = self._strategy.extended.replicas.current
        assert replica is not None  # noqa: S101
        data = row_marks.of_any_number(data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        before, _here.gradients = _here.gradients, self._jit
        try:
            with replica.seen_as(Span(*span), absent):
                with tf.GradientTape() as tape:
                    outputs, loss = touch.outputs_and_loss(self._model, x, y, sample_weight)
                gradients = tape.gradient(loss, self._model.trainable_weights)
        finally:
            _here.gradients = before
        if any(map(touch.has_mask, tf.nest.flatten(outputs))):
            raise NotCompilable("its outputs have masks, which metrics need")
        return outputs, gradients
