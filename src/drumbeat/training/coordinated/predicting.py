"""`predict` on the workers: batches in any order, rows in theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.strategies.parameter_server import ParameterServerStrategy
from drumbeat.training.coordinated.loops import AHEAD, spec_of, without_optionals
from drumbeat.training.coordinated.window import Window


def predict(
    model: Any,
    strategy: ParameterServerStrategy,
    window: Window,
    *,
    x: Any,
    batch_size: Any,
    verbose: Any,
    steps: Any,
    callbacks: Any,
) -> Any:
    """What Keras's `predict` returns: the outputs for all rows of `x`, in order.

    Args:
        model: Built under `strategy`.
        strategy: With parameter servers.
        window: Of its workers.
        x: Data that this process reads.
        batch_size: See Keras's `predict`; so are the others.
        verbose: See there.
        steps: See there.
        callbacks: See there.
    """
    epochs = touch.epoch_iterator(x, batch_size, steps, strategy)
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.callbacks.CallbackList(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=1,
            steps=epochs.num_batches,
            model=model,
        )
    function = _Function(model, strategy)
    model.stop_predicting = False
    callbacks.on_predict_begin()
    outputs = _outputs(model, window, function, epochs, callbacks, AHEAD * strategy._num_workers)
    callbacks.on_predict_end()
    if not outputs:
        raise ValueError("There was no batch to predict for; expected at least one.")
    return tf.nest.map_structure(lambda *parts: _whole(list(parts)), *outputs)


def _outputs(
    model: Any, window: Window, function: Any, epochs: Any, callbacks: Any, limit: int
) -> list[Any]:
    """The outputs of each batch, in the order of the data."""
    done: dict[int, Any] = {}

    def take() -> None:
        finished = window.take()
        done[finished.number] = finished.value
        number = len(done) - 1
        callbacks.on_predict_batch_end(number, {"outputs": finished.value})

    with epochs.catch_stop_iteration():
        for number, _, iterator in epochs:
            batch = without_optionals(next(iterator))
            callbacks.on_predict_batch_begin(number)
            window.put(number, function(spec_of(iterator, batch)), (batch,))
            while len(window) >= limit:
                take()
            if model.stop_predicting:
                break
    while len(window):
        take()
    return [done[number] for number in sorted(done)]


class _Function:
    """Makes the concrete function for batches of a type."""

    def __init__(self, model: Any, strategy: ParameterServerStrategy) -> None:
        self._model = model
        self._strategy = strategy
        self._made: dict[str, Callable[..., Any]] = {}

    def __call__(self, spec: Any) -> Any:
        key = str(spec)
        if key not in self._made:
            step = tf.autograph.experimental.do_not_convert(
                lambda batch: self._strategy.run(self._model.predict_step, args=(batch,))
            )
            with self._strategy.scope():
                self._made[key] = tf.function(step).get_concrete_function(spec)
        return self._made[key]


def _whole(parts: list[Any]) -> Any:
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, 0)
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, parts)
    if not parts[0].shape.rank:
        return np.stack([part.numpy() for part in parts])
    return np.concatenate([part.numpy() for part in parts])
