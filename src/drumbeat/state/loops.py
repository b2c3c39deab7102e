"""Training loops of one's own that go on where they were interrupted.

The loop itself is here, in plain Python. What is kept of it, and how, comes from
outside: see `keepers`.
"""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Protocol


class Keeper(Protocol):
    """What keeps the state of one loop over epochs."""

    def __enter__(self) -> None:
        """The loop begins."""
        ...

    def __exit__(self, *raised: object) -> None:
        """It is left, for whatever reason."""
        ...

    def first_epoch(self, first: int) -> int | None:
        """Where the loop begins; None where it is over. Puts back what was kept."""
        ...

    def epoch_begins(self, epoch: int) -> None:
        """Before the body of the loop."""
        ...

    def batches(self, data: Iterable[Any]) -> Iterator[Any]:
        """The batches of `data` that are left of this epoch."""
        ...

    def epoch_ends(self) -> None:
        """After the body of the loop."""
        ...

    def finish(self) -> None:
        """All epochs are over."""
        ...


keepers: list[Callable[[Resumable], Keeper | None]] = []
"""Makes the keeper of a loop that begins; empty or None where nothing is kept."""


class Resumable:
    """What a training loop holds, and how far it is; `drumbeat.state.resumable` makes it.

    The things it was made with are its attributes. Set others as you need them.
    """

    # Apart from the attributes that users see.
    __slots__ = ("__dict__", "_keeper")

    def __init__(self, held: dict[str, Any]) -> None:
        self._keeper: Keeper | None = None
        self.__dict__.update(held)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"This loop holds no {name!r}; it was made with {', '.join(vars(self)) or 'nothing'}."
        )

    def epochs(self, count: int, first: int = 0) -> Iterator[int]:
        """The numbers of the epochs that are left, from `first` to `count - 1`.

        All workers must begin it together. One loop at a time.
        """
        keeper = next((k for k in (make(self) for make in keepers) if k is not None), None)
        if keeper is None:
            yield from range(first, count)
            return
        with keeper:
            self._keeper = keeper
            begin = keeper.first_epoch(first)
            try:
                for epoch in range(count if begin is None else begin, count):
                    keeper.epoch_begins(epoch)
                    yield epoch
                    keeper.epoch_ends()
            except GeneratorExit:
                if _left_on_purpose(sys._getframe(1)):
                    keeper.finish()
                raise
            else:
                if begin is not None:
                    keeper.finish()
            finally:
                self._keeper = None

    def batches(self, data: Iterable[Any]) -> Iterator[Any]:
        """The batches of `data` that are left of this epoch; what each is used for is a step.

        Args:
            data: A `tf.data.Dataset`, what a strategy made of one, or anything to iterate
                over that gives the same batches when the script is run again.
        """
        if self._keeper is None:
            yield from data
        else:
            yield from self._keeper.batches(data)


# With which a `for` gives up its iterator at `break` and `return`.
_LEAVING = {"POP_TOP", "POP_ITER"}


def _left_on_purpose(frame: FrameType) -> bool:
    """Whether the loop in `frame` is left by `break` or `return`, and not by an exception.

    Python closes a loop's generator in either case and doesn't say why. An exception is
    raised by another instruction than those.
    """
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]] in _LEAVING


def resumable(**held: Any) -> Resumable:
    """Makes a training loop of one's own go on where it was, when workers are started again.

        progress = drumbeat.state.resumable(
            model=model, optimizer=optimizer, metrics=[mean], best=0.0
        )
        for epoch in progress.epochs(10):
            mean.reset_state()
            for batch in progress.batches(train_data):
                train_step(batch)
            progress.best = max(progress.best, float(mean.result()))

    A loop that had come to its end is passed over. One that was interrupted goes on with
    the batch after its last snapshot: the part of the body before `batches` runs again,
    then everything is put back as it was in the middle of the epoch. Random numbers of
    Python, NumPy and TensorFlow are put back too. Without `drumbeat run` these are plain loops.

    Local variables are not kept: hold counters and the like here, as `progress.best`.

    Args:
        held: Models, optimizers, metrics, `tf.Variable`s, and lists or dicts of them, which
            keep their values; and plain values, which pickle must be able to write. They
            become attributes.

    Raises:
        drumbeat.errors.StateError: When it goes on: the variables are others than before.
    """
    return Resumable(held)
