"""Workers that stop in the same step, whichever of them a callback stops.

Keras's loops look at `model.stop_training` (`stop_evaluating`, `stop_predicting`)
after each batch. A worker that broke off alone would leave the others in a step
that it never comes to. So where a callback could set one of these on one worker
only, the workers tell each other after each batch, and all of them stop after the
batch in which it was set, as one worker would. Where none could, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from drumbeat.collectives.communicator import Communicator

# For each of Keras's loops: the attribute it looks at, and the hooks in which a
# callback could set it while the loop runs.
_LOOPS = {
    "train": (
        "stop_training",
        ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    ),
    "test": ("stop_evaluating", ("on_test_begin", "on_test_batch_begin", "on_test_batch_end")),
    "predict": (
        "stop_predicting",
        ("on_predict_begin", "on_predict_batch_begin", "on_predict_batch_end"),
    ),
}


def each(callbacks: Any) -> Iterator[Any]:
    """The single callbacks in what a user gives as `callbacks`, also those in lists of lists."""
    for callback in keras.tree.flatten(callbacks):
        if isinstance(callback, keras.callbacks.CallbackList):
            yield from each(callback.callbacks)
        elif callback is not None:
            yield callback


def may_stop(callbacks: Iterable[Any], loop: str) -> bool:
    """Whether one of `callbacks` could stop Keras's `loop` while it runs.

    That is one with a hook of its own there. Keras's own hooks never stop, but for
    TerminateOnNaN's.

    Args:
        callbacks: Single callbacks, see `each`.
        loop: "train", "test" or "predict".
    """
    _, hooks = _LOOPS[loop]
    return any(_is_the_users(callback, hook) for callback in callbacks for hook in hooks)


def _is_the_users(callback: Any, hook: str) -> bool:
    method = getattr(callback, hook, None)
    if method is None:
        return False
    if isinstance(callback, keras.callbacks.TerminateOnNaN) and hook == "on_batch_end":
        return True
    # What has no module, such as a functools.partial given to LambdaCallback, is the user's.
    return not str(getattr(method, "__module__", "")).startswith("keras.src.callbacks")


def watchers(callbacks: Any, communicator: Communicator) -> list[keras.callbacks.Callback]:
    """What to put behind `callbacks` so that the workers stop together.

    The workers may have different callbacks, such as one that only the chief has;
    what one of them has to watch, all do.

    Args:
        callbacks: As a user gives them to `fit`, `evaluate` or `predict`.
        communicator: Of the workers, which must all call this.
    """
    own = list(each(callbacks))
    mine = np.array([may_stop(own, loop) for loop in _LOOPS], np.int64)
    watch = communicator.all_reduce_numpy(mine, "max", name="which loops a callback may stop")
    loops = [loop for loop, watched in zip(_LOOPS, watch.tolist(), strict=True) if watched]
    return [_StopTogether(communicator, loops)] if loops else []


class _StopTogether(keras.callbacks.Callback):
    """Stops the given loops on all workers after the batch in which one of them stops."""

    def __init__(self, communicator: Communicator, loops: list[str]) -> None:
        super().__init__()
        self._communicator = communicator
        self._loops = loops

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._agree("train")

    def on_test_begin(self, logs: Any = None) -> None:
        self._agree("test")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._agree("test")

    def on_predict_begin(self, logs: Any = None) -> None:
        self._agree("predict")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._agree("predict")

    def _agree(self, loop: str) -> None:
        if loop in self._loops:
            agree(self.model, _LOOPS[loop][0], self._communicator)


def agree(model: Any, attribute: str, communicator: Communicator) -> None:
    """Set `model.<attribute>`, a bool, where it is set on any worker; all must call this."""
    mine = bool(getattr(model, attribute))
    stop = communicator.all_reduce_numpy(np.array([mine], np.int64), "max", name=attribute)
    if stop[0] and not mine:
        setattr(model, attribute, True)
