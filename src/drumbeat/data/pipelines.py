"""Pipelines that each worker builds for itself, and that must still yield the same elements.

Workers cut their rows from global batches that all of them compute
(`data.distributed`). Two requests of a script would break that: elements in
whatever order they come, and one cache file for several writers. And a worker that is
killed while it writes a cache file leaves it locked for the one that takes its place.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_ORDERED = ("map", "interleave", "batch", "padded_batch", "ragged_batch")


def keep_alike(rank: int) -> None:
    """Change `tf.data.Dataset` in this process, worker `rank` of several; call it once.

    `deterministic=False` is not followed, as `tf.data.Options.deterministic` is not
    for distributed data. `cache(filename)` writes `<filename>.worker-<rank>` on
    workers other than the chief: tf.data locks a cache file for one writer.
    """
    for name in _ORDERED:
        _wrap(name, _in_order)
    if rank:
        _wrap("cache", functools.partial(_own_file, suffix=f".worker-{rank}"))


def unlock_caches(before_s: float) -> None:
    """Let `tf.data.Dataset.cache(filename)` go on where a process that is gone left a lock.

    tf.data locks a cache file while it writes it, for ever if its process is killed, and then
    refuses it. Call it once, before `keep_alike`, where an earlier process of this worker may
    have been killed.

    Args:
        before_s: Locks that are older are removed when their `cache` is asked for; seconds since
            1970, such as the time at which this process began.
    """
    _wrap("cache", functools.partial(_unlock, before_s=before_s))


def _wrap(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    original: Any = getattr(tf.data.Dataset, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        change(bound.arguments)
        return original(*bound.args, **bound.kwargs)

    setattr(tf.data.Dataset, name, method)


def _in_order(arguments: dict[str, Any]) -> None:
    if arguments.get("deterministic") is False:
        arguments["deterministic"] = True


def _own_file(arguments: dict[str, Any], *, suffix: str) -> None:
    filename = arguments.get("filename")
    if isinstance(filename, (str, os.PathLike)) and os.fspath(filename):
        arguments["filename"] = os.fspath(filename) + suffix


def _unlock(arguments: dict[str, Any], *, before_s: float) -> None:
    filename = arguments.get("filename")
    if not isinstance(filename, (str, os.PathLike)) or not os.fspath(filename):
        return
    folder, name = os.path.split(os.fspath(filename))
    lock = re.compile(re.escape(name) + r"_\d+\.lockfile")
    with contextlib.suppress(tf.errors.NotFoundError):
        for found in filter(lock.fullmatch, tf.io.gfile.listdir(folder or ".")):
            path = os.path.join(folder, found)
            if _made_s(path) < before_s:
                tf.io.gfile.remove(path)


def _made_s(lock: str) -> float:
    """When a lock was made, by what it says; never, if it says nothing."""
    with tf.io.gfile.GFile(lock) as file:
        said = re.search(r"Created at: (\d+)", file.read())
    return float(said[1]) if said else math.inf
