"""`tf.train.Checkpoint` and `CheckpointManager` called by all workers, for one path or for several.

TensorFlow writes a checkpoint in parts that have the same names in each process that
writes to one path, so several disturb each other. Here each worker writes beside the
place under a name of its own and moves that there whole. Where several save to one
path, the chief's is what stays; a path that only one worker knows gets that worker's.
"""

from __future__ import annotations

import contextlib
import copy
import glob
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from drumbeat import tf_internals
from drumbeat.strategies import choose
from drumbeat.training import activity

_BEGAN_S = time.time()
# The clocks of a file server and of this machine may differ by so much.
_CLOCKS_S = 60.0
# What this process has put in place: the inode of each index by its path.
_own: dict[str, int] = {}


def integrate() -> None:
    """Make TensorFlow's checkpoints safe for several workers."""
    tf_internals.wrap_checkpoint_write(_whole_or_nothing)


def _whole_or_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    def write(self: Any, file_prefix: Any, options: Any = None) -> Any:
        with activity.saving():
            return write_whole(self, file_prefix, options)

    def write_whole(self: Any, file_prefix: Any, options: Any) -> Any:
        strategy = choose.existing()
        if (
            strategy is None
            or strategy.communicator.size == 1
            or not _is_ours(file_prefix, options)
        ):
            return original(self, file_prefix, options=options)
        communicator = strategy.communicator
        place = os.fspath(file_prefix)
        folder, name = os.path.split(place)
        beside = os.path.join(folder, f".{name}.worker-{communicator.rank}")
        options = copy.copy(options) or tf.train.CheckpointOptions()
        callbacks = options.experimental_write_callbacks or []

        def publish(_: str) -> None:
            _move(beside, place, is_chief=communicator.rank == 0)
            tf_internals.call_after_writing(callbacks, place)

        options.experimental_write_callbacks = [publish]
        try:
            original(self, beside, options=options)
        finally:
            for path in _files(beside):
                path.unlink(missing_ok=True)
        return place

    return write


def _is_ours(file_prefix: Any, options: Any) -> bool:
    return (
        isinstance(file_prefix, (str, os.PathLike))
        and "://" not in str(file_prefix)
        and tf.executing_eagerly()
        and not getattr(options, "experimental_enable_async_checkpoint", False)
    )


def _move(beside: str, place: str, *, is_chief: bool) -> None:
    """Puts the finished files in their place, unless the chief's are there, or will be."""
    index = Path(f"{place}.index")
    moves = [
        (path, Path(f"{place}.{path.name.rpartition('.')[2]}"))
        for path in _files(beside, ".data-*")
    ]
    moves.append((Path(f"{beside}.index"), index))
    if is_chief or _is_mine_or_old(index):
        # Without its index a checkpoint isn't there: at no time is one that mixes two.
        index.unlink(missing_ok=True)
        for source, target in moves:
            os.replace(source, target)
    elif not _link(moves):
        return
    with contextlib.suppress(FileNotFoundError):  # the chief replaces it just now
        _own[str(index)] = index.stat().st_ino


def _is_mine_or_old(index: Path) -> bool:
    try:
        status = index.stat()
    except FileNotFoundError:
        return False
    return status.st_ino == _own.get(str(index)) or status.st_mtime < _BEGAN_S - _CLOCKS_S


def _link(moves: list[tuple[Path, Path]]) -> bool:
    """Puts files where there are none; False where another worker was faster."""
    for source, target in moves:
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        except OSError:  # some network file systems have no links
            if target.exists():
                return False
            os.replace(source, target)
    return True


def _files(prefix: str, suffix: str = ".*") -> list[Path]:
    return [Path(path) for path in sorted(glob.glob(glob.escape(prefix) + suffix))]
