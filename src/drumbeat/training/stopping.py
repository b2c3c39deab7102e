"""Workers that stop in the same step, whichever of them a callback stops.

Keras's loops look at `model.stop_training` (`stop_evaluating`, `stop_predicting`)
after each batch. A worker that broke off alone would leave the others in a step
that it never comes to. So where a callback could set one of these on one worker
only, the workers tell each other after each batch, and all of them stop after the
batch in which it was set, as one worker would.

Where none could, nothing is sent, as a small step would take 5 to 20% longer for it:
a callback can if it has a hook for batches of its own and the code that it may run
mentions the attribute. Code that sets it without a mention ends in an error on all
workers, never in workers that make different steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from drumbeat.collectives.communicator import Communicator
from drumbeat.training.mentions import mentions

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


_OWN_CALLBACKS = ("keras.src.callbacks", "tf_keras.src.callbacks")


def each(callbacks: Any) -> Iterator[Any]:
    """The single callbacks in what a user gives as `callbacks`, also those in lists of lists."""
    for callback in keras.tree.flatten(callbacks):
        if type(callback).__name__ == "CallbackList":  # of Keras 3, or of tf_keras
            yield from each(callback.callbacks)
        elif callback is not None:
            yield callback


def may_stop(callbacks: Iterable[Any], loop: str, model: Any = None) -> bool:
    """Whether one of `callbacks` could stop Keras's `loop` while it runs.

    That is one with a hook of its own there, and code that mentions what stops the loop. Its
    attribute `may_stop_training` (`may_stop_evaluating`, `may_stop_predicting`) wins, if it
    has one. Keras's own hooks never stop, but for TerminateOnNaN's. A model whose own class
    mentions it may stop as well.

    Args:
        callbacks: Single callbacks, see `each`.
        loop: "train", "test" or "predict".
        model: That runs the loop.
    """
    attribute, hooks = _LOOPS[loop]
    mine = [each for each in callbacks if any(_is_the_users(each, hook) for hook in hooks)]
    told = [getattr(each, f"may_{attribute}", None) for each in mine]
    if any(told):
        return True
    rest = [each for each, answer in zip(mine, told, strict=True) if answer is None]
    return mentions([*rest, type(model)], attribute)


def _is_the_users(callback: Any, hook: str) -> bool:
    method = getattr(callback, hook, None)
    if method is None:
        return False
    if hook == "on_batch_end" and "TerminateOnNaN" in (c.__name__ for c in type(callback).__mro__):
        return True
    # What has no module, such as a functools.partial given to LambdaCallback, is the user's.
    return not str(getattr(method, "__module__", "")).startswith(_OWN_CALLBACKS)


def watcher(
    callbacks: Any, model: Any, communicator: Communicator, base: type = keras.callbacks.Callback
) -> Any:
    """What to put behind `callbacks` so that the workers stop together.

    The workers may have different callbacks, such as one that only the chief has;
    what one of them has to watch, all do.

    Args:
        callbacks: As a user gives them to `fit`, `evaluate` or `predict`.
        model: That runs the loop.
        communicator: Of the workers, which must all call this.
        base: Class of callbacks, of the Keras that runs the loop.
    """
    own = list(each(callbacks))
    mine = np.array([may_stop(own, loop, model) for loop in _LOOPS], np.int64)
    watch = communicator.all_reduce_numpy(mine, "max", name="which loops a callback may stop")
    loops = [loop for loop, watched in zip(_LOOPS, watch.tolist(), strict=True) if watched]
    # By that name Keras 2 doesn't take it for a callback whose time is to be watched.
    made = type(base.__name__, (_StopTogether, base), {})()
    made.begin(communicator, loops)
    return made


class _StopTogether:
    """Stops the given loops on all workers after the batch in which one of them stops.

    In the other loops no worker should stop by itself; if one does, all end with an error.
    """

    model: Any
    # Keras 2 need not wait for a step to make numbers of what it logs.
    _supports_tf_logs = True

    def begin(self, communicator: Communicator, loops: list[str]) -> None:
        """What a constructor would be given; the one of Keras 2 resets the flag above."""
        self._supports_tf_logs = True
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
        attribute = _LOOPS[loop][0]
        if loop in self._loops:
            agree(self.model, attribute, self._communicator)
        elif getattr(self.model, attribute, False):
            # Where all have set it, all come here. Else the others are in another collective.
            self._communicator.barrier(_UNEXPECTED.format(attribute))


_UNEXPECTED = (
    "model.{0} was set while batches ran, which no callback was expected to do: write "
    "may_{0} = True in the class of the one that does"
)


def agree(model: Any, attribute: str, communicator: Communicator) -> None:
    """Set `model.<attribute>`, a bool, where it is set on any worker; all must call this."""
    mine = bool(getattr(model, attribute, False))
    stop = communicator.all_reduce_numpy(np.array([mine], np.int64), "max", name=attribute)
    if stop[0] and not mine:
        setattr(model, attribute, True)
