"""Says which of Keras's internals moved, when Keras changes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from drumbeat import keras_internals
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("touch", keras_internals.TOUCHES, ids=lambda touch: touch.name)
def test_keras_has_what_we_replace(touch: keras_internals.Touch) -> None:
    assert keras_internals.problem_with(touch) is None
    assert touch.why


def test_a_keras_that_moved_is_refused() -> None:
    gone = keras_internals.Touch(
        module="keras.src.losses.loss", name="no_such_function", parameters=(), why="test"
    )
    with pytest.raises(ConfigError, match=rf"Keras {keras.__version__}.*no_such_function"):
        keras_internals.wrap(gone, lambda original: original)
    changed = keras_internals.Touch(
        module="keras.src.losses.loss",
        name="scale_loss_for_distribution",
        parameters=("other",),
        why="test",
    )
    with pytest.raises(ConfigError, match="takes \\['value'\\], expected \\['other'\\]"):
        keras_internals.wrap(changed, lambda original: original)


def test_touches_are_all_there_is() -> None:
    names = [f"{touch.module}.{touch.name}" for touch in keras_internals.TOUCHES]
    assert len(names) == len(set(names)) > 20


def test_another_thread_sees_keras_as_this_one_does() -> None:
    policies = []

    def look() -> None:
        adopt()
        policies.append(keras.config.dtype_policy().name)

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        adopt = keras_internals.thread_state()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(10)
    finally:
        keras.config.set_dtype_policy("float32")
    assert policies == ["mixed_bfloat16"]


def test_the_global_seed_generator_is_the_one_that_draws() -> None:
    keras.random.normal([1])
    generator = keras_internals.global_seed_generator()
    assert generator is keras_internals.use_global_seed_generator()
    before = keras.ops.convert_to_numpy(generator.state)
    keras.random.normal([1])
    assert not np.array_equal(before, keras.ops.convert_to_numpy(generator.state))


def test_what_is_shown_beside_keras_numbers_is_in_their_file(tmp_path: Path) -> None:
    board = keras.callbacks.TensorBoard(str(tmp_path))

    class Beside(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            with keras_internals.train_writer(board).as_default():
                tf.summary.scalar("ours", 1.0, step=epoch)

    model: Any = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 1)), np.ones(4), verbose=0, callbacks=[board, Beside()])
    (file,) = (tmp_path / "train").glob("events*")
    assert b"ours" in file.read_bytes()
    assert b"epoch_loss" in file.read_bytes()


def test_masks_are_where_keras_looks_for_them() -> None:
    masked = keras.layers.Masking()(np.array([[[1.0], [0.0]]], "float32"))
    assert keras_internals.has_mask(masked)
    assert np.array_equal(keras_internals.mask_of(masked), [[True, False]])
    other = tf.constant([[[1.0], [5.0]]])
    assert keras_internals.mask_of(other) is None
    keras_internals.set_mask(other, tf.constant([[True, False]]))
    loss = keras.losses.MeanAbsoluteError()(tf.zeros([1, 2, 1]), other)
    assert float(loss) == pytest.approx(1.0)


def test_a_metric_of_a_loss_object_calls_that() -> None:
    loss = keras.losses.MeanAbsoluteError()
    assert keras_internals.is_loss(loss)
    assert not keras_internals.is_loss(keras.losses.mean_absolute_error)
    metric = keras.metrics.MeanMetricWrapper(loss)
    assert metric._fn is loss
    assert metric._fn_kwargs == {}


def test_a_loss_object_has_its_function_and_its_reduction() -> None:
    loss = keras.losses.CosineSimilarity(axis=0)
    assert loss.fn is keras.losses.cosine_similarity
    assert loss._fn_kwargs == {"axis": 0}
    assert loss.reduction == "sum_over_batch_size"
    assert keras_internals.is_keras_own(type(loss).call)
    assert keras_internals.is_keras_own(loss.fn)
