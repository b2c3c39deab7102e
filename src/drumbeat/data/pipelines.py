"""Pipelines that each worker builds for itself, and that must still yield the same elements.

Workers cut their rows from global batches that all of them compute
(`data.distributed`). Two requests of a script would break that: elements in
whatever order they come, and one cache file for several writers.
"""

from __future__ import annotations

import functools
import inspect
import os
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
