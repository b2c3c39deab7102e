"""Which callbacks may stop one worker alone."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest

from drumbeat.collectives.local import LocalCommunicator
from drumbeat.training import stopping

pytestmark = pytest.mark.tensorflow


class OnTrainBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...


class OnBatch(keras.callbacks.Callback):
    def on_batch_begin(self, batch: int, logs: Any = None) -> None: ...


class OnEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...


class OnTest(keras.callbacks.Callback):
    def on_test_begin(self, logs: Any = None) -> None: ...


class OnPredict(keras.callbacks.Callback):
    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None: ...


class Inherits(OnTrainBatch): ...


class Checkpoint(keras.callbacks.ModelCheckpoint):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)


HARMLESS = [
    keras.callbacks.BackupAndRestore("backup"),
    keras.callbacks.CSVLogger("log.csv"),
    keras.callbacks.EarlyStopping(),
    keras.callbacks.History(),
    keras.callbacks.LambdaCallback(on_epoch_end=print, on_train_begin=print),
    keras.callbacks.LearningRateScheduler(float),
    keras.callbacks.ModelCheckpoint("model.keras"),
    keras.callbacks.ProgbarLogger(),
    keras.callbacks.ReduceLROnPlateau(),
    keras.callbacks.RemoteMonitor(),
    keras.callbacks.SwapEMAWeights(),
    keras.callbacks.TensorBoard("logs", update_freq="batch"),
    OnEpoch(),
    None,
]
CASES = {
    "harmless": (HARMLESS, ()),
    "nothing": (None, ()),
    "train": (OnTrainBatch(), ("train",)),
    "older name": ([OnBatch()], ("train",)),
    "inherited": ([Inherits()], ("train",)),
    "a checkpoint of one's own": ([Checkpoint("model.keras")], ("train",)),
    "NaN": ([keras.callbacks.TerminateOnNaN()], ("train",)),
    "lambda": ([keras.callbacks.LambdaCallback(on_train_batch_begin=print)], ("train",)),
    "partial": (
        [keras.callbacks.LambdaCallback(on_train_batch_end=functools.partial(print, 1))],
        ("train",),
    ),
    "test": ([OnEpoch(), OnTest()], ("test",)),
    "predict": ([OnPredict()], ("predict",)),
    "nested": ([[OnTest(), [OnPredict()]]], ("test", "predict")),
    "in a list of callbacks": (
        [OnEpoch(), keras.callbacks.CallbackList([OnTrainBatch()])],
        ("train",),
    ),
    "a list of callbacks": (keras.callbacks.CallbackList([OnTest()]), ("test",)),
}


@pytest.mark.parametrize("case", CASES)
def test_may_stop(case: str) -> None:
    callbacks, loops = CASES[case]
    single = list(stopping.each(callbacks))
    found = [loop for loop in ("train", "test", "predict") if stopping.may_stop(single, loop)]
    assert tuple(found) == loops
    behind = stopping.watchers(callbacks, LocalCommunicator())
    assert len(behind) == bool(loops)


def test_keras_calls_hooks_of_batches_in_the_thread_of_the_loop() -> None:
    # Else workers would stop one another at other steps than those in which they say so.
    callbacks = keras.callbacks.CallbackList(OnTrainBatch())
    assert not any(getattr(callbacks, f"_async_{loop}") for loop in ("train", "test", "predict"))


def test_agree_keeps_what_is_set() -> None:
    class Model:
        stop_training = np.bool_(True)

    stopping.agree(Model, "stop_training", LocalCommunicator())
    assert Model.stop_training
