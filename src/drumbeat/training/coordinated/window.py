"""Functions under way on the workers: so many at once that none waits, and each has a deadline."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from drumbeat.errors import CollectiveTimeout
from drumbeat.tf_internals import is_finished, wait_for
from drumbeat.training.coordinated import failures

logger = logging.getLogger("drumbeat")

_LOOK_S = 0.002
"""How long to wait for the oldest before looking at the others: with one function queued for
each worker beside the one that it runs, no worker waits for so long."""


@dataclass(frozen=True)
class Finished:
    """A function that a worker has run.

    Attributes:
        number: As it was put.
        value: What it returned, in this process's memory.
    """

    number: int
    value: Any


class Window:
    """The functions that a coordinator has been given and not finished.

    Args:
        coordinator: TensorFlow's.
        timeout_s: So long at most until the next one is finished.
    """

    def __init__(self, coordinator: Any, timeout_s: float) -> None:
        self._coordinator = coordinator
        self._timeout_s = timeout_s
        self._flying: list[tuple[int, Any]] = []

    def __len__(self) -> int:
        return len(self._flying)

    def put(self, number: int, function: Any, args: tuple[Any, ...]) -> None:
        """Has `function` run by any worker.

        Args:
            number: Tells it from others.
            function: Concrete.
            args: Tensors, or values of each worker.
        """
        with self._telling_errors():
            self._flying.append((number, self._coordinator.schedule(function, args=args)))

    def take(self) -> Finished:
        """The next one that is finished, in whichever order.

        Raises:
            CollectiveTimeout: None was for `timeout_s`.
            ServerLost: A ps task is gone.
            Exception: What the function raised.
        """
        began_s = time.monotonic()
        while True:
            for place, (number, remote) in enumerate(self._flying):
                if is_finished(remote):
                    del self._flying[place]
                    with self._telling_errors():
                        return Finished(number, remote.get())
            wait_for(self._flying[0][1], _LOOK_S)
            if time.monotonic() - began_s > self._timeout_s:
                raise CollectiveTimeout(
                    f"No worker has finished a step for {self._timeout_s:g} s; "
                    f"{len(self._flying)} were under way. Either all workers are gone and have "
                    "not come back, or a step takes longer: then give a larger "
                    "--collective-timeout."
                )

    def clear(self) -> None:
        """Waits until nothing is under way any more, whatever becomes of it."""
        while self._flying:
            try:
                self.take()
            except Exception as error:
                logger.debug("dropped: %r", error)
                self._flying.clear()

    @contextlib.contextmanager
    def _telling_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._flying.clear()
            # Nothing else runs when the error is told; the coordinator would tell it again later.
            with contextlib.suppress(Exception):
                self._coordinator.join()
            if isinstance(error, tf.errors.OpError):
                raise failures.told(error) from None
            raise
