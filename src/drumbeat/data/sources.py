"""Where examples come from: numbered, and each to be had alone."""

from __future__ import annotations

import contextlib
import glob
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from drumbeat.data import remote
from drumbeat.data.records import RecordFiles
from drumbeat.errors import DataError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Source(Protocol):
    """Examples by number."""

    def __len__(self) -> int:
        """How many examples there are."""
        ...

    def fetch(self, numbers: Any) -> Any:
        """The examples of an int64 vector of numbers: a string vector. In a graph."""
        ...

    def fingerprint(self) -> int:
        """A number in [0, 2**32), most likely another one for other files."""
        ...


class PathSource:
    """One example a file: the path itself."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)
        # Made once: each epoch's pipeline refers to the same memory.
        self._tensor = tf.constant(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def fetch(self, numbers: Any) -> Any:
        """The paths, a string vector."""
        return tf.gather(self._tensor, numbers)

    def fingerprint(self) -> int:
        """Of the files' names; their folders may differ between workers."""
        return zlib.crc32("\n".join(os.path.basename(path) for path in self._paths).encode())


class RecordSource:
    """One example a record."""

    def __init__(self, records: RecordFiles) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def fetch(self, numbers: Any) -> Any:
        """The records' bytes, a string vector."""
        # Without state: several run at once, also where operations are deterministic.
        records: Any = tf.numpy_function(self._records.read, [numbers], tf.string, stateful=False)
        return tf.ensure_shape(records, [None])

    def fingerprint(self) -> int:
        """Of the records' lengths."""
        return zlib.crc32(self._records.lengths().astype(np.int64).tobytes())


def resolve(paths: Paths, function: str) -> list[str]:
    """The files that `paths` names.

    Args:
        paths: A path or pattern, or several. Patterns are expanded, each in the order of
            names; what is named without one is taken as it stands.
        function: Whose argument it is, for messages.

    Raises:
        DataError: Nothing matches, a file doesn't exist, or a folder is named.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found: list[str] = []
    for item in given:
        if not isinstance(item, (str, os.PathLike)):
            raise DataError(
                f"{function} got {item!r} ({type(item).__name__}) as a path; expected paths or "
                f"patterns, such as {function}('images/*.jpg', batch_size=256)."
            )
        found += _matching(os.fspath(item), function)
    if not found:
        raise DataError(f"{function} got no paths: {paths!r}. Expected at least one file.")
    return found


def _matching(path: str, function: str) -> list[str]:
    if not glob.has_magic(path) or os.path.exists(path):
        _require_file(path, function)
        return [path]
    matches = sorted(_glob(path, function))
    if not matches:
        raise DataError(
            f"{function}: no file matches {path!r} (seen from {os.getcwd()}). Expected a path or "
            "pattern of files that this worker can read."
        )
    return [os.fspath(match) for match in matches]


def _glob(pattern: str, function: str) -> list[str]:
    if not remote.is_remote(pattern):
        return [p for p in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(p)]
    with _explained(pattern, function):
        return remote.matching(pattern)


@contextlib.contextmanager
def _explained(path: str, function: str) -> Iterator[None]:
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"{function}: {path!r} can't be looked up: {error}") from error


def _require_file(path: str, function: str) -> None:
    is_folder, exists = os.path.isdir(path), os.path.exists(path)
    if remote.is_remote(path):
        with _explained(path, function):
            kind = remote.kind(path)
        is_folder, exists = kind == "folder", kind != "nothing"
    if is_folder:
        raise DataError(
            f"{function}: {path!r} is a folder; expected files. Give a pattern, such as "
            f"{os.path.join(path, '*')!r}."
        )
    if not exists:
        raise DataError(
            f"{function}: {path!r} doesn't exist (seen from {os.getcwd()}). Expected a file that "
            "this worker can read."
        )
