"""What keeps all workers from training a model of a script that names no strategy."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from drumbeat import keras_internals as touch
from drumbeat.training.obstacles import obstacle

pytestmark = pytest.mark.tensorflow


class OwnCall(keras.losses.Loss):
    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return keras.ops.mean(keras.ops.square(y_true - y_pred))


class Given(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(y_true - y_pred)


class Shows(keras.Sequential):
    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().compute_metrics(x, y, y_pred, sample_weight)


class Steps(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class Block(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="block")
        self.inner = keras.layers.GRU(2, stateful=True, name="within")

    def build(self, input_shape: Any) -> None:
        self.inner.build(input_shape)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)


def compiled(*layers: Any, of: Any = keras.Sequential, loss: Any = "mse") -> Any:
    model = of([keras.Input(batch_shape=(4, 3, 2)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", loss)
    return model


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (lambda: compiled(loss=OwnCall()), "a loss (OwnCall) with a __call__ of its own"),
        (lambda: compiled(loss=[OwnCall()]), "a loss (OwnCall) with a __call__ of its own"),
        (lambda: compiled(of=Shows), "a compute_metrics of its own"),
        (lambda: compiled(of=Steps), "a train_step of its own"),
        (lambda: compiled(Block()), "a stateful layer (within)"),
    ],
    ids=["loss", "losses", "metrics", "step", "stateful layer in a layer"],
)
def test_what_needs_the_whole_batch_is_found(model: Any, what: str) -> None:
    found = obstacle(model())
    assert found is not None
    assert found.what.startswith(what)
    assert found.advice.endswith(".")


@pytest.mark.parametrize("loss", ["mse", Given(), keras.losses.Huber(), [lambda t, p: t - p], None])
def test_other_models_have_none(loss: Any) -> None:
    assert obstacle(compiled(keras.layers.GRU(2), loss=loss)) is None
    assert obstacle(keras.Sequential([keras.layers.Dense(1)])) is None


def test_layers_are_looked_through_once_for_each_compile(monkeypatch):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError())
    walks, walk = [], touch.all_layers
    monkeypatch.setattr(touch, "all_layers", lambda model: walks.append(model) or walk(model))
    for _ in range(3):
        assert obstacle(model) is None
    assert len(walks) == 1
    model.compile("sgd", keras.losses.MeanAbsoluteError())
    assert obstacle(model) is None
    assert len(walks) == 2
