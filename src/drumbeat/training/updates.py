"""Counts a script's optimizer updates, in whatever loop it makes them, for `drumbeat rehearse`."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.state.progress import ProgressPage
from drumbeat.training import current

_POLL_S = 0.05


def install(page: ProgressPage) -> None:
    """Begin to count: the agent finds on `page` how many updates were made."""
    counter = Counter(page)
    touch.wrap(touch.OPTIMIZER_APPLY, counter.around_apply)
    threading.Thread(target=counter.run, name="drumbeat-updates", daemon=True).start()


class Counter:
    """Looks at the optimizers' own counts: nothing is added to graphs, which XLA may compile."""

    def __init__(self, page: ProgressPage) -> None:
        self._page = page
        self._together = False
        self._begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def around_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Notes the optimizers that are used, when they or their graphs are first run."""

        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                is_new = optimizer not in self._begun
            if is_new:
                strategy = current.in_replica()
                self._together |= strategy is not None and strategy.communicator.size > 1
                with tf.init_scope():
                    count = _count(optimizer)
                with self._lock:
                    self._begun[optimizer] = count
            return original(optimizer, *args, **kwargs)

        return apply

    def run(self) -> None:
        """Goes on until the process ends."""
        while True:
            with self._lock:
                known = list(self._begun.items())
            made = [_count(each) - begun for each, begun in known]
            del known  # an optimizer that the script has dropped may go
            self._page.updated(max(made, default=0), together=self._together)
            time.sleep(_POLL_S)


def _count(optimizer: Any) -> int:
    try:
        return int(optimizer.iterations.numpy())
    # Of an optimizer whose variable is elsewhere, or not there yet, nothing is known.
    except Exception:  # noqa: BLE001
        return 0
