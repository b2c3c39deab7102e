"""Which callbacks may stop one worker alone."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from drumbeat.collectives.local import LocalCommunicator
from drumbeat.training import stopping

pytestmark = pytest.mark.tensorflow


class Callback(keras.callbacks.Callback):
    model: Any


class OnTrainBatch(Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = True


class Looks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen = time.monotonic()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None: ...

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None: ...


class OnBatch(Callback):
    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        setattr(self.model, "stop_training", True)  # noqa: B010


class OnEpoch(Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = True


class OnTest(Callback):
    def on_test_begin(self, logs: Any = None) -> None:
        self.model.stop_evaluating = True


class OnPredict(Callback):
    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.stop_predicting = True


class Inherits(OnTrainBatch): ...


class EarlyInTheEpoch(keras.callbacks.EarlyStopping):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.on_epoch_end(batch, logs)


class Checkpoint(keras.callbacks.ModelCheckpoint):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)


class Holds(Looks):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


class SaysSo(Looks):
    may_stop_training = True


class SaysNot(OnTrainBatch):
    may_stop_training = False


class Model(keras.Model):
    def halt(self) -> None:
        self.stop_training = True


HARMLESS = [
    keras.callbacks.BackupAndRestore("backup"),
    keras.callbacks.CSVLogger("log.csv"),
    keras.callbacks.EarlyStopping(),
    keras.callbacks.History(),
    keras.callbacks.LambdaCallback(on_epoch_end=print, on_train_begin=print),
    keras.callbacks.LambdaCallback(on_train_batch_end=print),
    keras.callbacks.LambdaCallback(on_train_batch_end=functools.partial(print, 1)),
    keras.callbacks.LearningRateScheduler(float),
    keras.callbacks.ModelCheckpoint("model.keras"),
    keras.callbacks.ProgbarLogger(),
    keras.callbacks.ReduceLROnPlateau(),
    keras.callbacks.RemoteMonitor(),
    keras.callbacks.SwapEMAWeights(),
    keras.callbacks.TensorBoard("logs", update_freq="batch"),
    Checkpoint("model.keras"),
    Holds([np.ones(3), keras.layers.Dense(1), {"loss": 1.0}]),
    Looks(),
    OnEpoch(),
    SaysNot(),
    None,
]
CASES = {
    "harmless": (HARMLESS, ()),
    "nothing": (None, ()),
    "train": (OnTrainBatch(), ("train",)),
    "older name": ([OnBatch()], ("train",)),
    "inherited": ([Inherits()], ("train",)),
    "inherited from Keras": ([EarlyInTheEpoch()], ("train",)),
    "one of Keras's within": ([Holds([keras.callbacks.EarlyStopping()])], ("train",)),
    "it says so": ([SaysSo()], ("train",)),
    "NaN": ([keras.callbacks.TerminateOnNaN()], ("train",)),
    "partial": (
        [
            keras.callbacks.LambdaCallback(
                on_train_batch_end=functools.partial(setattr, Looks(), "stop_training")
            )
        ],
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


def test_a_model_may_stop_itself() -> None:
    assert stopping.may_stop([], "train", Model())
    assert not stopping.may_stop([], "train", keras.Sequential())


def test_keras_calls_hooks_of_batches_in_the_thread_of_the_loop() -> None:
    # Else workers would stop one another at other steps than those in which they say so.
    callbacks = keras.callbacks.CallbackList(OnTrainBatch())
    assert not any(getattr(callbacks, f"_async_{loop}") for loop in ("train", "test", "predict"))


def test_agree_keeps_what_is_set() -> None:
    class Stopped:
        stop_training = np.bool_(True)

    stopping.agree(Stopped, "stop_training", LocalCommunicator())
    assert Stopped.stop_training


ROGUE = """
import tensorflow as tf, keras, numpy as np, os
class Rogue(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and os.environ["DRUMBEAT_RANK"] in RANKS:
            setattr(self.model, "_".join(["stop", "training"]), True)
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((40, 2)), np.ones((40, 1)), batch_size=4, verbose=0, callbacks=[Rogue()])
print("steps", int(model.optimizer.iterations))
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("ranks", "code"), [(("1",), 1), (("0",), 1), (("0", "1"), 0)])
def test_a_stop_that_nobody_saw_coming(tmp_path: Path, ranks: tuple[str, ...], code: int) -> None:
    script = tmp_path / "rogue.py"
    script.write_text(ROGUE.replace("RANKS", repr(ranks)))
    command = [sys.executable, "-m", "drumbeat", "run", "-n", "2", "--run-dir", str(tmp_path / "r")]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    if code:
        assert "write may_stop_training = True in the class of the one that does" in said
    else:
        assert said.count("steps 3") == 2
