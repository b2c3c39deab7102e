"""The callback that tells a fit's phase how far Keras's loop is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from drumbeat.training.resuming import FitPhase


class FollowerHooks:
    """Stands behind all other callbacks of a fit, of either Keras."""

    def __init__(self, phase: FitPhase) -> None:
        super().__init__()
        self._phase = phase

    def on_train_begin(self, logs: Any = None) -> None:
        """The model and its functions are made."""
        self._phase.train_begins()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Steps come next."""
        self._phase.epoch_about_to_begin(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step is made."""
        self._phase.noted(logs)

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation comes next."""
        self._phase.evaluation_begins()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Steps and validation are over."""
        self._phase.epoch_ends()


class Follower(FollowerHooks, keras.callbacks.Callback):
    """That of Keras 3."""
