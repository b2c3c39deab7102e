"""Files that several workers write: complete or absent, and written by the chief.

Callbacks that write (ModelCheckpoint, BackupAndRestore, CSVLogger, TensorBoard)
do so on the chief; the others leave it out or write into their own folder. A
direct `model.save`, `save_weights` or `export` works on every worker, to one
path or to several: the file is written beside its place and moved there whole, so
workers that save to the same path can't disturb each other. It waits for nobody,
so a save by the chief alone is safe too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drumbeat import keras_internals as touch
from drumbeat.cluster.identity import Identity
from drumbeat.training import activity, checkpoints, current

_RENAME_TRIES = 10
logger = logging.getLogger("drumbeat")


def integrate() -> None:
    """Make Keras's writers safe for several workers."""
    for writer in (touch.SAVE_MODEL, touch.SAVE_WEIGHTS, touch.SAVE_H5, touch.EXPORT):
        touch.wrap(writer, whole_or_nothing)
    touch.wrap(touch.DOWNLOAD, download_whole)
    checkpoints.integrate()
    for callback in (
        touch.CHECKPOINT_SAVE,
        touch.BACKUP_SAVE,
        touch.BACKUP_LOAD,
        touch.BACKUP_END,
    ):
        touch.wrap(callback, chief_only)
    touch.wrap(touch.CSV_BEGIN, own_csv)
    touch.wrap(touch.TENSORBOARD_MODEL, own_tensorboard)


def own_folder(rank: int, env: Mapping[str, str]) -> Path:
    """Where worker `rank` keeps files that would clash with the chief's.

    Its folder in the run's folder under `drumbeat run`, else a new temporary one.
    """
    identity = Identity.from_env(env)
    if identity is None:
        return Path(tempfile.mkdtemp(prefix=f"drumbeat-worker-{rank}-"))
    folder = Path(identity.run_dir) / identity.name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def chief_only(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, a method of what has a model, for the chief alone."""

    def on_chief(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = self.model if hasattr(self, "model") else self._model
        strategy = current.of_model(model)
        if strategy is None:
            return original(self, *args, **kwargs)
        if not strategy.is_chief:
            return None
        # It may make variables, such as the counter of a checkpoint.
        with strategy.extended.alone():
            return original(self, *args, **kwargs)

    return on_chief


def own_csv(original: Callable[..., Any]) -> Callable[..., Any]:
    """CSVLogger's `on_train_begin`, with a file of its own for each worker."""

    def on_train_begin(self: Any, logs: Any = None) -> Any:
        strategy = current.of_model(self.model)
        if strategy is not None and not strategy.is_chief:
            folder = own_folder(strategy.communicator.rank, os.environ)
            self.filename = str(folder / os.path.basename(self.filename))
        return original(self, logs)

    return on_train_begin


def own_tensorboard(original: Callable[..., Any]) -> Callable[..., Any]:
    """TensorBoard's `set_model`, with a folder of its own for each worker."""

    def set_model(self: Any, model: Any) -> Any:
        strategy = current.of_model(model)
        if strategy is not None and not strategy.is_chief:
            folder = own_folder(strategy.communicator.rank, os.environ)
            self.log_dir = str(folder / "tensorboard")
        return original(self, model)

    return set_model


def whole_or_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which writes a model to a path, so that the path is complete or absent."""

    def write(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.of_model(model)
        alone = contextlib.nullcontext() if strategy is None else strategy.extended.alone()
        with activity.saving(), alone:
            return write_whole(model, filepath, *args, **kwargs)

    def write_whole(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = current.of_model(model)
        if strategy is None or not _is_local_path(filepath):
            return original(model, filepath, *args, **kwargs)
        place = Path(filepath)
        if not strategy.is_chief and not place.parent.is_dir():
            # Only the chief's branch of the script makes the folder, perhaps right now:
            # making it here could fail the chief. It writes the same model.
            logger.info("%s is left to the chief: its folder doesn't exist yet.", place)
            return None
        # Keras checks the file's name: keep its ending, and let it complain about the
        # name the user gave.
        suffix = "".join(place.suffixes[-2:]) if place.suffixes else ""
        beside = place.parent / f".{place.name}.{os.getpid()}{suffix}"
        if suffix not in ("", ".keras", ".weights.h5", ".h5", ".hdf5"):
            return original(model, filepath, *args, **kwargs)
        try:
            result = original(model, str(beside), *args, **kwargs)
            _move(beside, place)
        finally:
            _remove(beside)
        return result

    return write


def download_whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """`urlretrieve`, so that the file is complete or absent."""

    def urlretrieve(url: str, filename: Any = None, *args: Any, **kwargs: Any) -> Any:
        if filename is None:
            return original(url, None, *args, **kwargs)
        part = Path(f"{filename}.{os.getpid()}.part")
        try:
            _, headers = original(url, str(part), *args, **kwargs)
            os.replace(part, filename)
        finally:
            part.unlink(missing_ok=True)
        return filename, headers

    return urlretrieve


def _is_local_path(filepath: Any) -> bool:
    return isinstance(filepath, (str, os.PathLike)) and "://" not in str(filepath)


def _move(source: Path, place: Path) -> None:
    if not source.is_dir():
        os.replace(source, place)
        return
    # A folder can't replace a full one: move the old one away first. Another worker may
    # do the same at the same time; what it puts there is equal, so try again.
    for _ in range(_RENAME_TRIES):
        try:
            os.rename(source, place)
            return
        except OSError:
            old = place.parent / f".{place.name}.{os.getpid()}.old"
            try:
                os.rename(place, old)
            except FileNotFoundError:
                continue
            _remove(old)
    raise OSError(
        f"Could not move the finished folder to {place}: it was put back {_RENAME_TRIES} times. "
        "Expected that nobody else writes there; save to another path."
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
