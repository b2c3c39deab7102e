"""What comes back of Python objects."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from drumbeat.training.callback_state import PythonState

pytestmark = pytest.mark.tensorflow


class Plain:
    """As users write them."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0, 7),
        ("a", "b"),
        (None, [1]),
        ([1], [1, [2, 3]]),
        ({"a": [1]}, {"b": [2]}),
        ({1}, {2, 3}),
        (collections.deque([1], maxlen=3), collections.deque([2, 3], maxlen=3)),
        (collections.Counter("a"), collections.Counter("bb")),
        (np.zeros(3), np.ones(3)),
        (np.zeros(3), np.ones(4)),
        ([np.zeros(2)], [np.ones(2), np.ones(1)]),
    ],
)
def test_values_come_back(before: Any, after: Any) -> None:
    kept = PythonState([Plain(value=after)]).take()
    owner = Plain(value=before)
    alias = owner.value
    PythonState([owner]).put_back(kept)
    np.testing.assert_equal(owner.value, after)
    if isinstance(before, list | dict | set | collections.deque):
        assert owner.value is alias


def test_objects_within_stay_the_same() -> None:
    kept = PythonState([Plain(inner=Plain(count=3))]).take()
    inner = Plain(count=0)
    owner = Plain(inner=inner)
    PythonState([owner]).put_back(kept)
    assert owner.inner is inner
    assert inner.count == 3


def test_what_cannot_be_kept_is_left(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        cannot = {
            "file": file,
            "function": lambda: 1,
            "network": keras.Sequential([keras.layers.Dense(1)]),
            "in_a_list": [tf.Variable(1.0)],
            "dataset": tf.data.Dataset.range(3),
            "lock": __import__("threading").Lock(),
        }
        state = PythonState([Plain(**cannot, count=1)])
        assert state.take()[0].keys() == {"count"}


def test_large_arrays_only_once_they_changed() -> None:
    owner = Plain(data=np.arange(1e5), small=np.arange(3))
    state = PythonState([owner])
    state.begin()
    assert state.take()[0].keys() == {"small"}
    owner.data[[1, 2]] = owner.data[[2, 1]]
    assert state.take()[0].keys() == {"small", "data"}


def test_keras_callbacks() -> None:
    stop = keras.callbacks.EarlyStopping(patience=4)
    slower = keras.callbacks.ReduceLROnPlateau()
    slower.set_model(keras.Sequential())
    stop.set_model(slower.model)
    stop.wait, stop.best, stop.best_weights = 3, 0.25, [np.ones(2)]
    slower.wait, slower.cooldown_counter = 2, 1
    kept = PythonState([stop, slower]).take()
    others = [keras.callbacks.EarlyStopping(patience=4), keras.callbacks.ReduceLROnPlateau()]
    PythonState(others).put_back(kept)
    assert (others[0].wait, others[0].best) == (3, 0.25)
    np.testing.assert_equal(others[0].best_weights, [np.ones(2)])
    assert (others[1].wait, others[1].cooldown_counter) == (2, 1)


@pytest.mark.parametrize("rows_before", [0, 2])
def test_csv_logger_goes_on_with_its_file(tmp_path: Path, rows_before: int) -> None:
    def logger(append: bool) -> Any:
        made = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=append)
        made.set_model(keras.Sequential())
        made.on_train_begin()
        return made

    first = logger(append=False)
    for epoch in range(rows_before):
        first.on_epoch_end(epoch, {"loss": 0.5})
    kept = PythonState([first]).take()
    first.on_epoch_end(rows_before, {"loss": 9.0})
    first.on_train_end()
    # As `resuming` lets it begin.
    second = logger(append=True)
    PythonState([second]).put_back(kept)
    for epoch in range(rows_before, 3):
        second.on_epoch_end(epoch, {"loss": 0.5})
    second.on_train_end()
    lines = (tmp_path / "log.csv").read_text().split()
    assert lines == ["epoch,loss,val_loss", "0,0.5,NA", "1,0.5,NA", "2,0.5,NA"]


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


def losses(callback: keras.callbacks.Callback, values: list[float]) -> None:
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {"loss": value})
