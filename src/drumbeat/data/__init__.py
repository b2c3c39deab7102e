"""Datasets of files that many workers read in one global order.

`files` for one example a file, such as images; `tfrecords` for the records of TFRecord
files. Everything else a script reads with tf.data stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumbeat.data.ordered import files, tfrecords

__all__ = ["files", "tfrecords"]


def __getattr__(name: str) -> Any:
    # Importing this package must not import TensorFlow: the agent does it.
    if name in __all__:
        from drumbeat.data import ordered

        return getattr(ordered, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
