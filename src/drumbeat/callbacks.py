"""Callbacks for Keras's `fit`, on one worker and on several."""

from __future__ import annotations

import datetime
import logging
import os
from typing import Any

import keras

from drumbeat.state.backups import DEFAULT_KEEP
from drumbeat.training import journal
from drumbeat.training.integrate import integrate
from drumbeat.training.keeping import Every

__all__ = ["BackupAndRestore"]
logger = logging.getLogger("drumbeat")

# Not only when a callback is made: in `model.fit(callbacks=[BackupAndRestore(…)])` Python has
# looked up `fit` before.
integrate()


class BackupAndRestore(keras.callbacks.Callback):
    """Keeps backups of a training, and lets it go on from the newest one.

    As Keras's own callback of this name, but a training goes on exactly where the backup
    was made, in the middle of an epoch too: with the next batch, and with the weights, the
    optimizer, the metrics, the random numbers and what the other callbacks remember
    (EarlyStopping's patience) as they were. For that, run the same script again. On
    SIGTERM all workers stop after the same step, a last backup is made, and the process
    ends with exit code 75: start it again.

    Backups are written in the background by the chief: complete or not there. One that was
    damaged since is told of, and the one before is used. They stay when the training is
    finished: run again, the script takes the result from there. To train anew, give
    another folder or empty this one; only files of drumbeat's own are removed in it.

    Under `drumbeat run --backup-dir` this callback is not needed. Without `drumbeat run`
    it works as well, in `python train.py`; make it after the strategy and before `fit`.

    Args:
        backup_dir: Folder of this job, or its URL on what fsspec reaches (gs://, s3://, …).
        every: "epoch"; or a number of steps; or a time as a `datetime.timedelta` or such
            as "30s", "5min", "1h". A time is kept at the next step at which workers agree,
            at most about half a second later.
        keep: How many backups to keep; older ones are removed.

    Raises:
        drumbeat.errors.ConfigError: An argument can't be used, or the folder can't be
            written to.
        drumbeat.errors.StateError: From `fit`: the backups can't be read, or are of another
            model.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        every: str | int | datetime.timedelta = "epoch",
        keep: int = DEFAULT_KEEP,
    ) -> None:
        super().__init__()
        own = journal.make()
        self.keeper = own.backups.keeper(os.fspath(backup_dir), Every.of(every), keep)
        own.listen()

    def on_train_begin(self, logs: Any = None) -> None:
        """Says so where nothing can be kept of this training."""
        active = getattr(journal.own(), "active", None)
        if active is None or not active.is_kept:
            model: Any = self.model
            logger.warning(
                "BackupAndRestore keeps nothing of this training: its model is trained with %s, "
                "or by each worker for itself. Expected one worker without a strategy, or "
                "drumbeat's strategy on all workers.",
                type(model.distribute_strategy).__name__,
            )
