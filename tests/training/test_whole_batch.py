"""Which losses and metrics need the rows of all workers: that costs bytes in each step.

What they then come to is in test_plain.py.
"""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from drumbeat.collectives.local import LocalCommunicator
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import whole_batch

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(60)]

losses = keras.losses


def of_rows(a: Any, b: Any) -> Any:
    return tf.reduce_mean(tf.square(a - b), -1)


def of_all(a: Any, b: Any) -> Any:
    return tf.reduce_mean(tf.square(a - b))


class OfRows(losses.Loss):
    calls = 0

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.calls += 1
        return of_rows(y_true, y_pred)


class Root(losses.MeanSquaredError):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.sqrt(tf.reduce_mean(super().call(y_true, y_pred)))


def told(function: Any, of: Any, rest: tuple[int, ...]) -> bool:
    """What `function` says of a loss or metric, for batches with such rows."""
    strategy = DataParallelStrategy(LocalCommunicator())
    answers: list[bool] = []

    @tf.function(autograph=False)
    def step(a: Any, b: Any) -> None:
        answers.append(function(of, a, b, strategy))

    step.get_concrete_function(*[tf.TensorSpec([None, *rest])] * 2)
    return answers[0]


@pytest.mark.parametrize(
    ("loss", "rest", "expected"),
    [
        (losses.MeanSquaredError(), (3,), False),
        (losses.MeanSquaredError(), (), True),
        (losses.SparseCategoricalCrossentropy(), (3,), False),
        (losses.CosineSimilarity(), (3,), False),
        (losses.CosineSimilarity(axis=0), (3,), True),
        (losses.CosineSimilarity(axis=-2), (3,), True),
        (losses.Dice(), (3,), True),
        (losses.Dice(axis=(1, 2)), (3, 3), False),
        (losses.Circle(), (3,), True),
        (OfRows(), (3,), False),
        (Root(), (3,), True),
    ],
)
def test_losses_that_take_rows_together_are_known(loss, rest, expected):
    assert told(whole_batch.loss_mixes_rows, loss, rest) is expected
    assert getattr(loss, "calls", 0) == 0  # What a trace for finding out leaves in it is gone.


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (losses.mean_squared_error, False),
        (losses.MeanAbsoluteError(), False),
        (losses.MeanAbsoluteError(reduction="sum"), True),
        (losses.CosineSimilarity(axis=0), True),
        (Root(), True),
        (of_rows, False),
        (of_all, True),
    ],
)
def test_metrics_that_take_rows_together_are_known(function, expected):
    metric = keras.metrics.MeanMetricWrapper(function)
    assert told(whole_batch.metric_mixes_rows, metric, (3,)) is expected


def test_a_metric_of_keras_goes_by_its_axis():
    for axis, expected in ((-1, False), (0, True)):
        metric = keras.metrics.CosineSimilarity(axis=axis)
        assert told(whole_batch.metric_mixes_rows, metric, (3,)) is expected
