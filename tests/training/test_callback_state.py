"""What of a callback's attributes lives on in the process that takes over."""

from __future__ import annotations

import keras
import pytest

from drumbeat.training.callback_state import PythonState

pytestmark = pytest.mark.tensorflow


def losses(callback: keras.callbacks.Callback, values: list[float]) -> None:
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {"loss": value})


def test_a_callback_that_negates_its_delta_when_it_begins_does_so_once() -> None:
    # Keras's callbacks that monitor something choose a function for it, and the sign of
    # min_delta with it, unless they have one already.
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    first, second = (
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.2)
        for _ in range(2)
    )
    for callback in (first, second):
        callback.set_model(model)
        callback.on_train_begin()
    losses(first, [1.0])
    PythonState([second]).put_back(PythonState([first]).take())
    losses(second, [0.9])
    assert float(model.optimizer.learning_rate) == 0.5
