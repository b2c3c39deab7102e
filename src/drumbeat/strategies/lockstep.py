"""Runs functions that wait for each other, one at a time, each in a thread of its own.

While a graph is traced this puts the operations of several replicas into it in a
fixed order, as tf.distribute's mirrored strategy does: replica 0 up to where it
meets the others, then replica 1, and so on; then what they meet for; then on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from drumbeat.errors import CollectiveMismatch


class State(Protocol):
    """State of which each replica sees its own copies while it runs."""

    def enter(self, index: int) -> None:
        """Show the copies of replica `index`."""

    def leave(self) -> None:
        """Show the state itself again."""

    def settle(self) -> None:
        """All replicas have met for an update: make one of what they have left until now."""

    def finish(self) -> None:
        """All replicas have ended: make one of what they leave."""


AnyState = TypeVar("AnyState", bound=State)


class _Abandoned(BaseException):
    """Ends the function of a replica when another one has failed."""


class _Body(threading.Thread):
    def __init__(self, function: Callable[[], Any], back: threading.Semaphore) -> None:
        super().__init__(daemon=True, name="replica")
        self._function = function
        self._back = back
        self._go = threading.Semaphore(0)
        self._abandoned = False
        self.brought: tuple[Any, Callable[[list[Any]], Any]] | None = None
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.ended = False

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._abandoned:
                self.outcome = self._function()
        except _Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001  (raised again by the caller's thread)
            self.error = error
        self.ended = True
        self._back.release()

    def go_on(self) -> None:
        """Let it run until it waits or has ended; for the caller's thread."""
        self._go.release()
        self._back.acquire()

    def abandon(self) -> None:
        """End it where it waits; for the caller's thread."""
        self._abandoned = True
        if not self.ended:
            self.go_on()
        self.join()

    def wait(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Bring `value` to the others and return what comes of all; for its own thread."""
        self.brought = (value, combine)
        self._back.release()
        self._go.acquire()
        if self._abandoned:
            raise _Abandoned
        return self.outcome


class Lockstep:
    """One run of several replicas."""

    def __init__(self, scopes: Callable[[], AbstractContextManager[Any]]) -> None:
        """Args: makes the context that every replica's thread runs in."""
        self._scopes = scopes
        self._bodies: list[_Body] = []
        self._state: Any = None
        self._running = 0

    def run(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of `functions`, in their order.

        Raises:
            CollectiveMismatch: Some met while others had ended.
            Exception: What the first function to fail raised; the others are ended.
        """
        back = threading.Semaphore(0)
        self._bodies = [_Body(self._scoped(function), back) for function in functions]
        for body in self._bodies:
            body.start()
        try:
            while not self._one_round():
                pass
        finally:
            for body in self._bodies:
                body.abandon()
        if self._state is not None:
            self._state.finish()
        return [body.outcome for body in self._bodies]

    def meet(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Wait until every replica is here, and return `combine` of all their values.

        Args:
            value: What this replica brings.
            combine: Called once, in the thread that runs the replicas.
        """
        return self._bodies[self._running].wait(value, combine)

    def keep(self, make: Callable[[], AnyState]) -> AnyState:
        """The state of this run, made when it is first asked for."""
        if self._state is None:
            self._state = make()
            self._state.enter(self._running)
        return self._state

    def settle(self) -> None:
        """Make one of the replicas' copies of what an update is about to change."""
        if self._state is not None:
            self._state.settle()

    def _scoped(self, function: Callable[[], Any]) -> Callable[[], Any]:
        def body() -> Any:
            with self._scopes():
                return function()

        return body

    def _one_round(self) -> bool:
        """Run every replica until it waits or ends; whether all have ended."""
        for index, body in enumerate(self._bodies):
            self._running = index
            if self._state is not None:
                self._state.enter(index)
            try:
                body.go_on()
            finally:
                if self._state is not None:
                    self._state.leave()
            if body.error is not None:
                raise body.error
        ended = [index for index, body in enumerate(self._bodies) if body.ended]
        if len(ended) == len(self._bodies):
            return True
        if ended:
            raise CollectiveMismatch(
                f"Virtual shard {ended[0]} of this worker ran to its end while others wait in a "
                "collective. Every shard must take the same steps: look for code that counts its "
                "own calls or depends on Python state that changes from call to call."
            )
        combine = self._bodies[0].brought
        assert combine is not None  # noqa: S101
        values = [body.brought[0] for body in self._bodies if body.brought is not None]
        outcome = combine[1](values)
        for body in self._bodies:
            body.outcome, body.brought = outcome, None
        return False
