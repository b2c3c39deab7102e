"""Which callback takes how long. Nothing is changed in callbacks; it is looked at their calls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from drumbeat import keras_internals as touch


class CallbackTimes:
    """What the hooks of each class of callbacks took, as far as it was listened to.

    Those of drumbeat's own are under "".

    Attributes:
        names_batches: Listen to the hooks for batches, which costs some microseconds a step.
        batch_s: By class, seconds in these.
        epoch_s: By class, seconds in the hooks for the beginning and end of an epoch.
        epoch_end_began_s: `time.perf_counter` when those for its end were called last.
        after_epoch: Called with the number of the epoch after all of them.
    """

    def __init__(self, after_epoch: Callable[[int], None]) -> None:
        self.names_batches = False
        self.epoch_end_began_s = 0.0
        self.after_epoch = after_epoch
        self.batch_s: dict[str, float] = {}
        self.epoch_s: dict[str, float] = {}


class _Listening:
    times: CallbackTimes | None = None


_listening = _Listening()


@contextlib.contextmanager
def listening(times: CallbackTimes) -> Iterator[None]:
    """Within this, Keras's calls of callbacks are timed."""
    before, _listening.times = _listening.times, times
    try:
        yield
    finally:
        _listening.times = before


def integrate() -> None:
    """Look on where Keras calls all callbacks of a fit."""
    touch.wrap(touch.CALLBACKS_EPOCH_BEGIN, _epoch_begin)
    touch.wrap(touch.CALLBACKS_EPOCH_END, _epoch_end)
    for hook in (touch.CALLBACKS_BATCH_BEGIN, touch.CALLBACKS_BATCH_END):
        touch.wrap(hook, _batch_hook)


def _epoch_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        times = _listening.times
        if times is None:
            original(self, epoch, logs)
        else:
            _call(lambda: original(self, epoch, logs), self, times.epoch_s)

    return on_epoch_begin


def _epoch_end(original: Callable[..., Any]) -> Callable[..., Any]:
    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        times = _listening.times
        if times is None:
            original(self, epoch, logs)
        else:
            times.epoch_end_began_s = time.perf_counter()
            _call(lambda: original(self, epoch, logs), self, times.epoch_s)
            times.after_epoch(epoch)

    return on_epoch_end


def _batch_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def hook(self: Any, batch: int, logs: Any = None) -> None:
        times = _listening.times
        if times is None or not times.names_batches:
            original(self, batch, logs)
        else:
            _call(lambda: original(self, batch, logs), self, times.batch_s)

    return hook


def _call(hook: Callable[[], None], callbacks: Any, spent_s: dict[str, float]) -> None:
    """Calls Keras's `hook` of its list of callbacks, with each of them timed."""
    given = callbacks.callbacks
    timed: list[Any] = [_Timed(callback, spent_s) for callback in given]
    callbacks.callbacks = timed
    try:
        hook()
    finally:
        if callbacks.callbacks is timed:
            given.extend(timed[len(given) :])  # what a hook has added
            callbacks.callbacks = given


class _Timed:
    """Stands for a callback while a hook of all of them is called."""

    def __init__(self, callback: Any, spent_s: dict[str, float]) -> None:
        self._callback = callback
        self._spent_s = spent_s

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._callback, name)
        if not callable(method):
            return method

        def timed(*args: Any, **kwargs: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                label = type(self._callback).__name__
                if type(self._callback).__module__.startswith("drumbeat."):
                    label = ""
                spent_s = time.perf_counter() - began_s
                self._spent_s[label] = self._spent_s.get(label, 0.0) + spent_s

        return timed
