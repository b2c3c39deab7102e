"""Files that are named by a URL: on TensorFlow's own file systems, or on those that fsspec knows.

TensorFlow 2.21 comes with gs:// and without s3://, which fsspec's drivers add.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from drumbeat.errors import DataError


def is_remote(path: str) -> bool:
    """Whether `path` is a URL such as gs://bucket/file."""
    return "://" in path


def open_file(path: str) -> Any:
    """A file-like object with `read` and `seek`, which is a context manager.

    Raises:
        OSError: The file can't be opened.
        DataError: There is no driver for it.
    """
    if _is_tensorflows(path):
        return tf.io.gfile.GFile(path, "rb")
    driver, name = _driver(path)
    with _as_os_errors():
        return driver.open(name, "rb")


def size_bytes(path: str) -> int:
    """The file's size.

    Raises:
        OSError: The file can't be read.
        DataError: There is no driver for it.
    """
    if _is_tensorflows(path):
        return tf.io.gfile.stat(path).length
    driver, name = _driver(path)
    with _as_os_errors():
        return int(driver.size(name))


def kind(path: str) -> str:
    """Whether the URL names a "file", a "folder" or "nothing".

    Raises:
        OSError: That can't be found out.
        DataError: There is no driver for it.
    """
    if _is_tensorflows(path):
        if tf.io.gfile.isdir(path):
            return "folder"
        return "file" if tf.io.gfile.exists(path) else "nothing"
    driver, name = _driver(path)
    with _as_os_errors():
        if driver.isfile(name):
            return "file"
        return "folder" if driver.isdir(name) else "nothing"


def matching(pattern: str) -> list[str]:
    """The files that the pattern matches, as URLs.

    Raises:
        OSError: That can't be found out.
        DataError: There is no driver for it.
    """
    if _is_tensorflows(pattern):
        return [path for path in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(path)]
    driver, name = _driver(pattern)
    with _as_os_errors():
        found = driver.glob(name, detail=True)
    return [driver.unstrip_protocol(path) for path, of in found.items() if of["type"] == "file"]


def _is_tensorflows(path: str) -> bool:
    return path.partition("://")[0] in tf.io.gfile.get_registered_schemes()


def _driver(path: str) -> tuple[Any, str]:
    # Imported here: a tenth of a second that only these URLs are worth.
    import fsspec.core

    try:
        return fsspec.core.url_to_fs(path)
    except ImportError as error:
        raise DataError(f"{path} needs a driver that is not installed: {error}") from None
    except ValueError as error:
        raise DataError(
            f"{path} can't be read: {error}. Expected a path, or a URL of a file system that "
            "TensorFlow or fsspec knows, such as gs://bucket/file or s3://bucket/file."
        ) from None
    except Exception as error:  # a driver's own, such as for missing credentials
        raise DataError(f"{path} can't be read: {type(error).__name__}: {error}") from None


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Drivers raise errors of their own for what goes wrong on the network, or with a login."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
