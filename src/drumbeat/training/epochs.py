"""What `resuming` puts around Keras's epochs and the functions that belong to them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from drumbeat import keras_internals as touch
from drumbeat.training import journal
from drumbeat.training.positions import alive
from drumbeat.training.resuming import FitPhase


def integrate() -> None:
    """Look into Keras's epochs."""
    touch.wrap(touch.EPOCH_STEPS, _enumerate_iterator)
    touch.wrap(touch.SYMBOLIC_BUILD, _symbolic_build)
    touch.wrap(touch.EPOCH_RESULT, _epoch_result)
    touch.wrap(touch.CSV_BEGIN, csv_begin)


def _active_for(model: Any) -> FitPhase | None:
    own = journal.own()
    active = None if own is None else own.active
    return active if isinstance(active, FitPhase) and active.model is model else None


def _enumerate_iterator(original: Callable[..., Any]) -> Callable[..., Any]:
    def enumerate_iterator(self: Any) -> Any:
        own = journal.own()
        if own is None:
            return original(self)
        if isinstance(own.active, FitPhase):
            return own.active.around_steps(original, self)
        return alive(original(self), own.page)

    return enumerate_iterator


def _symbolic_build(original: Callable[..., Any]) -> Callable[..., Any]:
    def maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        phase = _active_for(self)
        if phase is not None and iterator is not None:
            phase.knows(iterator)
        return original(self, iterator, data_batch)

    return maybe_symbolic_build


def _epoch_result(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        phase = _active_for(self)
        if phase is not None:
            # Before any callback's on_epoch_end; Keras's generator may be left unfinished.
            phase.steps_are_over()
        kept = None if phase is None else phase.kept_logs()
        # The epoch went on behind its last step.
        return original(self, logs if kept is None else kept)

    return get_metrics_result_or_logs


def csv_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    """CSVLogger's `on_train_begin`, after a restart with the file that there is."""

    def on_train_begin(self: Any, logs: Any = None) -> Any:
        phase = _active_for(self.model)
        if phase is None or not phase.is_going_on or self.append:
            return original(self, logs)
        # The file has rows of earlier epochs.
        with _appending(self):
            return original(self, logs)

    return on_train_begin


@contextlib.contextmanager
def _appending(logger: Any) -> Iterator[None]:
    logger.append = True
    try:
        yield
    finally:
        logger.append = False
