"""Files that several workers write with tf_keras: complete or absent, and written by the chief."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drumbeat import tf_keras_internals as touch
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training.saving import (
    chief_only,
    download_whole,
    own_csv,
    own_tensorboard,
    whole_or_nothing,
)


def integrate() -> None:
    """Make tf_keras's writers safe for several workers; see `training.saving`."""
    for writer in (touch.SAVE_MODEL, touch.SAVE_WEIGHTS, touch.SAVE_H5, touch.SAVE_FOLDER):
        touch.wrap(writer, whole_or_nothing)
    touch.wrap(touch.SAVE_OLD_WEIGHTS, _old_weights)
    touch.wrap(touch.DOWNLOAD, download_whole)
    for callback in (
        touch.CHECKPOINT_SAVE,
        touch.BACKUP_SAVE,
        touch.BACKUP_LOAD,
        touch.BACKUP_END,
    ):
        touch.wrap(callback, chief_only)
    touch.wrap(touch.BACKUP_BEGIN, _backup_begin)
    touch.wrap(touch.CSV_BEGIN, own_csv)
    touch.wrap(touch.TENSORBOARD_MODEL, own_tensorboard)


def _old_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    in_one_file = whole_or_nothing(original)

    def save_weights(
        model: Any,
        filepath: Any,
        overwrite: bool = True,
        save_format: Any = None,
        options: Any = None,
    ) -> Any:
        is_file = save_format in ("h5", "hdf5", "keras") or (
            save_format is None and str(filepath).endswith((".h5", ".hdf5", ".keras"))
        )
        # Others are checkpoints of TensorFlow's, see `training.checkpoints`.
        save = in_one_file if is_file else original
        return save(model, filepath, overwrite, save_format, options)

    return save_weights


def _backup_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    def on_train_begin(self: Any, logs: Any = None) -> Any:
        self._supported_strategies = (*self._supported_strategies, DataParallelStrategy)
        return original(self, logs)

    return on_train_begin
