"""Uses each name of `drumbeat.legacy_names` as scripts do; run by test_legacy_names.py.

Prints a JSON object: for each check its error's text, or "".
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from drumbeat.training.legacy.install import install

CHECKS: dict[str, Callable[[], None]] = {}
X = np.arange(24, dtype="float32").reshape(8, 3) / 24
Y = np.arange(8) % 2


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def small(outputs: int = 2, optimizer: Any = "sgd") -> Any:
    keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(outputs)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


@check
def moved_modules() -> None:
    from keras.layers.core import Dense
    from keras.layers.merge import concatenate
    from tensorflow.keras.layers.experimental import preprocessing
    from tensorflow.keras.optimizers.legacy import SGD

    assert Dense is keras.layers.Dense
    assert concatenate is keras.layers.concatenate
    assert keras.layers.normalization.BatchNormalization is keras.layers.BatchNormalization
    assert tf.keras.callbacks.experimental.BackupAndRestore is keras.callbacks.BackupAndRestore
    assert preprocessing.Rescaling is keras.layers.Rescaling
    assert tf.keras.layers.experimental.preprocessing.RandomFlip is keras.layers.RandomFlip
    assert SGD is keras.optimizers.SGD
    assert tf.keras.optimizers.legacy.Adam is keras.optimizers.Adam
    assert keras.experimental.CosineDecay is keras.optimizers.schedules.CosineDecay
    assert tf.keras.utils.np_utils.to_categorical is keras.utils.to_categorical
    policy = tf.keras.mixed_precision.experimental.Policy("float32")
    tf.keras.mixed_precision.experimental.set_policy(policy)
    layer = tf.keras.layers.experimental.SyncBatchNormalization(axis=-1)
    assert layer.synchronized
    creator = tf.keras.utils.experimental.DatasetCreator(lambda context: [context])
    assert creator(3) == [3]
    model = small()
    assert tf.keras.utils.multi_gpu_model(model, gpus=2) is model


@check
def what_never_was_says_so() -> None:
    for name in ("layers.experimental.Nonsense", "callbacks.experimental.Nonsense"):
        module, _, last = name.rpartition(".")
        owner = tf.keras
        for part in module.split("."):
            owner = getattr(owner, part)
        with pytest.raises(AttributeError, match=f"keras.{name}"):
            getattr(owner, last)


@check
def metrics_reset_states() -> None:
    metric = tf.keras.metrics.Mean()
    metric.update_state([1.0, 3.0])
    metric.reset_states()
    assert float(metric.result()) == 0

    class Own(tf.keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="own")
            self.seen = self.add_weight(name="seen", initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.seen.assign_add(1.0)

        def result(self) -> Any:
            return self.seen

        def reset_states(self) -> None:
            super().reset_states()
            self.seen.assign(5.0)

    own = Own()
    own.update_state(None, None)
    own.reset_state()
    assert float(own.result()) == 5


@check
def learning_rates() -> None:
    assert abs(float(tf.keras.optimizers.Adam(lr=0.25).lr) - 0.25) < 1e-7
    optimizer = tf.keras.optimizers.legacy.SGD(lr=0.5, decay=0.1, momentum=0.9)
    optimizer.iterations.assign(10)
    assert abs(float(optimizer.learning_rate) - 0.5 / 2) < 1e-6
    optimizer = tf.keras.optimizers.SGD(0.5, 0.9, decay=0.1)
    optimizer.iterations.assign(10)
    assert abs(float(optimizer.learning_rate) - 0.5 / 2) < 1e-6
    assert optimizer.momentum == 0.9
    optimizer = tf.keras.optimizers.RMSprop(decay=0.0)
    optimizer.lr = 0.125
    tf.keras.backend.set_value(optimizer.lr, 0.0625)
    assert float(tf.keras.backend.get_value(optimizer.lr)) == 0.0625


@check
def decay_as_keras_2_had_it() -> None:
    old = small(optimizer=tf.keras.optimizers.SGD(lr=0.5, decay=0.1))
    old.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    by_hand = small(optimizer=keras.optimizers.SGD(0.5))
    for step in range(4):
        by_hand.optimizer.learning_rate = 0.5 / (1 + 0.1 * step)
        rows = slice(0, 4) if step % 2 == 0 else slice(4, 8)
        by_hand.train_on_batch(X[rows], Y[rows])
    for mine, theirs in zip(old.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@check
def optimizer_methods() -> None:
    variable = tf.Variable([1.0, 2.0])
    optimizer = tf.keras.optimizers.SGD(0.5)
    optimizer.minimize(lambda: tf.reduce_sum(variable**2), [variable])
    np.testing.assert_allclose(variable.numpy(), [0, 0])
    assert len(optimizer.get_weights()) == len(optimizer.weights) > 0
    optimizer.apply_gradients(
        [(tf.constant([1.0, 1.0]), variable)], experimental_aggregate_gradients=False
    )
    np.testing.assert_allclose(variable.numpy(), [-0.5, -0.5])


@check
def generators_and_arguments() -> None:
    def rows() -> Any:
        while True:
            yield X, Y

    model = small()
    model.fit_generator(generator=rows(), steps_per_epoch=2, epochs=1, verbose=0, workers=1)
    history = model.fit_generator(rows(), 1, 3, 0, None, (X, Y), None, 3)
    assert len(history.history["loss"]) == 3
    assert len(history.history["val_loss"]) == 1
    model.evaluate_generator(rows(), 1, None, 10, 1, False, 0)
    assert model.predict_generator(rows(), steps=1, verbose=0).shape == (8, 2)
    model.evaluate(X, Y, verbose=0, workers=2, max_queue_size=3)
    model.predict(X, verbose=0, use_multiprocessing=False)
    assert model.predict_classes(X).shape == (8,)
    assert model.predict_proba(X).shape == (8, 2)
    model.compile("sgd", "mse", experimental_run_tf_function=False)
    model.compile("sgd", "mse", experimental_steps_per_execution=2)
    assert model.steps_per_execution == 2
    assert model.layers[-1].output_shape == (None, 2)
    assert model.layers[-1].input_shape == (None, 3)
    tf.keras.layers.BatchNormalization(fused=True)
    tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.AUTO)
    tf.keras.callbacks.TensorBoard("logs", write_grads=True)


@check
def inputs_and_embeddings() -> None:
    from tensorflow.keras import Input
    from tensorflow.keras.layers import Input as LayersInput

    assert Input(shape=3).shape == LayersInput(shape="3").shape == (None, 3)
    assert tf.keras.Input((2, 2)).shape == (None, 2, 2)
    table = np.arange(6, dtype="float32").reshape(3, 2)
    layer = tf.keras.layers.Embedding(3, 2, weights=[table], input_length=1)
    np.testing.assert_allclose(layer(np.array([[2]])), [[[4, 5]]])


@check
def states_of_recurrent_layers() -> None:
    layer = tf.keras.layers.LSTM(2, stateful=True)
    model = tf.keras.Sequential([tf.keras.Input(batch_shape=(1, 2, 3)), layer])
    first = model.predict(np.ones((1, 2, 3)), verbose=0)
    assert (model.predict(np.ones((1, 2, 3)), verbose=0) != first).any()
    model.reset_states()
    np.testing.assert_array_equal(model.predict(np.ones((1, 2, 3)), verbose=0), first)


@check
def strategies() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    assert float(strategy.experimental_run_v2(lambda: tf.constant(3.0))) == 3
    assert len(list(strategy.experimental_make_numpy_dataset((X, Y)))) == 8
    optimizer = tf.train.experimental.enable_mixed_precision_graph_rewrite(
        tf.keras.optimizers.SGD(0.1)
    )
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


@check
def a_saved_folder_serves_and_goes_on() -> None:
    model = small()
    model.fit(X, Y, verbose=0)
    model.save("saved", save_format="tf")
    served = tf.saved_model.load("saved").signatures["serve"]
    np.testing.assert_allclose(
        next(iter(served(tf.constant(X)).values())), model.predict(X, verbose=0), rtol=1e-5
    )
    again = tf.keras.models.load_model("saved")
    np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
    assert again.optimizer.iterations == 1
    again.fit(X, Y, verbose=0)
    again.evaluate(X, Y, verbose=0)
    again.save("saved")  # over the old one


@check
def a_foreign_folder_predicts() -> None:
    model = small()
    model.export("foreign", verbose=False)
    loaded = tf.keras.models.load_model("foreign")
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)


@check
def weights_in_checkpoints() -> None:
    model = small()
    os.makedirs("weights")
    path = "weights/ckpt-{epoch}"
    checkpoint = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[checkpoint])
    newest = tf.train.latest_checkpoint("weights")
    assert newest == "weights/ckpt-2", newest
    other = small()
    other.load_weights(newest)
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    other.save_weights("weights/last.weights.h5")
    checkpoint = tf.keras.callbacks.ModelCheckpoint("weights/e.h5", save_weights_only=True)
    model.fit(X, Y, verbose=0, callbacks=[checkpoint])
    for name in ("weights/e.h5", "weights/w.hdf5"):
        model.save_weights("weights/w.hdf5")
        other = small()
        other.load_weights(name)
        for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    model.save("weights/whole.h5")
    other.load_weights("weights/whole.h5")
    with pytest.raises(FileNotFoundError, match="weights/none.index"):
        other.load_weights("weights/none")


@check
def checkpoints_of_every_second_epoch() -> None:
    every = tf.keras.callbacks.ModelCheckpoint("every-{epoch}", period=2)
    small().fit(X, Y, epochs=3, verbose=0, callbacks=[every])
    assert sorted(path.name for path in Path().glob("every-*")) == ["every-2"]
    assert tf.keras.models.load_model("every-2").predict(X, verbose=0).shape == (8, 2)


@check
def files_with_full_paths() -> None:
    np.savez("here.npz", x_train=X)
    path = os.path.abspath("here.npz")
    assert tf.keras.utils.get_file(path, "file:///nowhere") == path
    # What load_data calls; the files themselves are not to be had without a network.
    module = sys.modules[tf.keras.datasets.mnist.load_data.__module__]
    assert module.get_file is tf.keras.utils.get_file


@check
def what_cannot_be_had_says_what_to_write() -> None:
    with pytest.raises(AttributeError, match="tf.estimator is gone since TensorFlow 2.16"):
        tf.estimator.RunConfig()
    with pytest.raises(AttributeError, match="Write keras.utils.FeatureSpace"):
        tf.keras.layers.DenseFeatures([])
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tf.keras.layers.nonsense  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tf.nonsense  # noqa: B018
    assert not hasattr(tf, "contrib")


@check
def notebooks() -> None:
    shell = get_ipython()  # type: ignore[name-defined]  # noqa: F821
    assert shell.getoutput("exit 1") == []
    shell.run_line_magic("matplotlib", "inline")
    shell.run_cell_magic("time", "", "timed = 3")
    assert globals()["timed"] == 3
    shell.run_cell_magic("writefile", "-a cell.py", "print(1)")
    assert Path("cell.py").read_text(encoding="utf-8") == "print(1)"
    shell.run_cell_magic("bash", "", "touch never")
    assert not Path("never").exists()


def main() -> None:
    install()
    found = {}
    os.chdir(tempfile.mkdtemp(dir=sys.argv[1]))
    for name, function in CHECKS.items():
        try:
            function()
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


main()
