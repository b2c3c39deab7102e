"""Errors of TensorFlow's that are ours get their own text back."""

from __future__ import annotations

import pytest
import tensorflow as tf

from drumbeat.data.failures import data_error
from drumbeat.errors import DataError

pytestmark = pytest.mark.tensorflow


@tf.function
def asserts(text: tf.Tensor) -> None:
    tf.debugging.Assert(tf.equal(tf.strings.length(text), 0), [text])


def raises(text: tf.Tensor) -> None:
    def fail(_: bytes) -> None:
        raise DataError("expected [rows, 3], got [2]. Reshape it.")

    tf.function(lambda: tf.numpy_function(fail, [text], tf.int64))()


@pytest.mark.parametrize("fails", [asserts, raises])
def test_the_text_of_ours_is_found(fails):
    text = "expected [rows, 3], got [2]. Reshape it."
    with pytest.raises(tf.errors.OpError) as failed:
        fails(tf.constant("DataError: " + text))
    assert str(data_error(failed.value)) == text


def test_others_are_not_ours():
    with pytest.raises(tf.errors.OpError) as failed:
        tf.debugging.Assert(tf.constant(False), ["no rows"])
    assert data_error(failed.value) is None
