"""Says which of tf_keras's internals moved, when tf_keras changes."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tf_keras

from drumbeat import keras_internals, tf_keras_internals
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("touch", tf_keras_internals.TOUCHES, ids=lambda touch: touch.name)
def test_tf_keras_has_what_we_replace(touch: keras_internals.Touch) -> None:
    assert keras_internals.problem_with(touch) is None
    assert touch.why


def test_a_tf_keras_that_moved_is_refused() -> None:
    gone = keras_internals.Touch(
        module="tf_keras.src.losses", name="no_such_function", parameters=(), why="test"
    )
    with pytest.raises(ConfigError, match="tf_keras .* isn't supported: .*no_such_function"):
        tf_keras_internals.wrap(gone, lambda original: original)


def test_a_metric_of_a_loss_object_calls_that() -> None:
    loss = tf_keras.losses.MeanAbsoluteError()
    assert keras_internals.is_loss(loss)
    assert tf_keras.metrics.MeanMetricWrapper(loss)._fn is loss


def test_means_are_allowed_in_a_strategy_by_the_attribute_that_we_set() -> None:
    loss = tf_keras.losses.MeanAbsoluteError()
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        with pytest.raises(ValueError, match="loss reduction"):
            loss._get_reduction()
        loss._allow_sum_over_batch_size = True
        assert loss._get_reduction() == "sum_over_batch_size"
