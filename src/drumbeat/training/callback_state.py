"""What Python objects have become while training: callbacks, datasets of Keras's, values.

Each attribute is kept on its own, as pickle writes it. What can't be written, such as a
file, a lambda or a model, is left as the script makes it anew. Attributes come back
into the same lists and dicts, so that whoever else holds these sees it.
"""

from __future__ import annotations

import collections
import io
import logging
import os
import pickle
import types
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat.training.kinds import KINDS

logger = logging.getLogger("drumbeat")

# Set by Keras when a callback is used, and not by the callback.
_NOT_KEPT = frozenset({"_model", "params", "validation_data"})
# Variables are kept as such, see `holdings`; of the rest, what training can't change.
_LEFT_OUT = (
    keras.Variable,
    keras.random.SeedGenerator,
    tf.Variable,
    tf.Module,
    tf.data.Dataset,
    tf.distribute.Strategy,
    types.MethodType,
    types.ModuleType,
    io.IOBase,
)
# Larger arrays are only kept once they have changed: they are data, most often.
_LARGE_BYTES = 1 << 16
# From here on it is told: each snapshot pickles, compares and copies it.
_TOLD_BYTES = 100_000_000

Kept = dict[str, bytes | np.ndarray]
"""One object's attributes, as pickle writes them; long ones as arrays of bytes."""


def _left_out() -> tuple[Any, ...]:
    kinds = KINDS.layers + KINDS.optimizers + KINDS.metrics + KINDS.left_out
    return (*_LEFT_OUT, *kinds)


class _LeftOut(Exception):
    """The attribute holds something that is not kept."""


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> None:
        if isinstance(obj, _left_out()):
            raise _LeftOut


class PythonState:
    """What some objects hold, apart from variables.

    Args:
        objects: In the same order in each life of the process.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = list(objects)
        self._large: dict[tuple[int, str], int] = {}
        self._has_told = False

    def begin(self) -> None:
        """Notes what large arrays the objects hold to begin with: only changed ones are kept."""
        for number, each in enumerate(self._objects):
            for name, value in _attributes(each):
                if _is_large(value):
                    self._large[number, name] = _digest(value)

    def take(self) -> list[Kept]:
        """Each object's attributes."""
        return [self._take(number, each) for number, each in enumerate(self._objects)]

    def put_back(self, kept: Sequence[Kept]) -> None:
        """Gives the objects the attributes that `take` returned."""
        for each, attributes in zip(self._objects, kept, strict=False):
            for name, kept_as in attributes.items():
                data = kept_as if isinstance(kept_as, bytes) else kept_as.data
                if name == _FILE_KEY:
                    _cut_back(each, *pickle.loads(data))
                else:
                    _put(each, name, pickle.loads(data))

    def _take(self, number: int, each: Any) -> Kept:
        kept: Kept = {}
        for name, value in _attributes(each):
            large = self._large.get((number, name))
            if large is not None and _is_large(value) and _digest(value) == large:
                continue
            data = pickled(value)
            if data is not None:
                kept[name] = data
                self._tell_size(each, name, len(data))
        if isinstance(each, KINDS.csv_loggers):
            kept[_FILE_KEY] = pickle.dumps(_written(each))
        return kept

    def _tell_size(self, each: Any, name: str, size_bytes: int) -> None:
        if size_bytes >= _TOLD_BYTES and not self._has_told:
            self._has_told = True
            logger.warning(
                "%s.%s takes %.0f MB of each snapshot, which makes snapshots slow, and so fewer. "
                "What needn't be restored after a failure, keep outside of the callback.",
                type(each).__name__,
                name,
                size_bytes / 1e6,
            )


def _attributes(each: Any) -> list[tuple[str, Any]]:
    if isinstance(each, KINDS.progress_bars):
        return []  # A line on the screen begins anew.
    own = getattr(each, "__dict__", {})
    return [(name, value) for name, value in own.items() if name not in _NOT_KEPT]


def pickled(value: Any) -> bytes | np.ndarray | None:
    """`value` as bytes, see `Kept`; None where it can't be, or isn't to be kept."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    except _LeftOut:
        return None
    except Exception:
        # Whatever an object's own methods raise: it is as if it couldn't be written.
        return None
    if buffer.tell() > _LARGE_BYTES:
        # Pickle then needs no copy of them, and they go to other nodes once if all have the same.
        return np.frombuffer(buffer.getbuffer(), np.uint8)
    return buffer.getvalue()


def _is_large(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray) and value.nbytes > _LARGE_BYTES and not value.dtype.hasobject
    )


def _digest(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _put(owner: Any, name: str, value: Any) -> None:
    before = getattr(owner, "__dict__", {}).get(name)
    if before is None or not _fill(before, value):
        vars(owner)[name] = value


def _fill(before: Any, value: Any) -> bool:
    """Makes the object `before` equal `value`; False where it can't be, or isn't worth it."""
    if type(before) is not type(value):
        return False
    filler = _FILLERS.get(type(before))
    if filler is not None:
        filler(before, value)
        return True
    if isinstance(before, np.ndarray):
        if before.shape != value.shape or before.dtype != value.dtype or not before.flags.writeable:
            return False
        before[...] = value
        return True
    if type(before).__module__ == "builtins" or not hasattr(before, "__dict__"):
        return False
    if hasattr(type(before), "__slots__") or isinstance(before, type):
        return False
    vars(before).clear()
    vars(before).update(vars(value))
    return True


def _fill_sequence(before: Any, value: Any) -> None:
    before.clear()
    before.extend(value)


def _fill_mapping(before: Any, value: Any) -> None:
    before.clear()
    before.update(value)


_FILLERS: dict[type, Callable[[Any, Any], None]] = {
    list: _fill_sequence,
    collections.deque: _fill_sequence,
    bytearray: _fill_sequence,
    dict: _fill_mapping,
    collections.OrderedDict: _fill_mapping,
    collections.defaultdict: _fill_mapping,
    collections.Counter: _fill_mapping,
    set: _fill_mapping,
}

# CSVLogger ---------------------------------------------------------------------

_FILE_KEY = "(file)"


def _written(logger: Any) -> tuple[int, bool]:
    """How long the log file is, and whether it has its header."""
    try:
        if logger.csv_file is not None and not getattr(logger.csv_file, "closed", False):
            logger.csv_file.flush()
        size_bytes = os.path.getsize(logger.filename)
    except OSError:
        size_bytes = 0
    return size_bytes, logger.writer is not None or not logger.append_header or size_bytes > 0


def _cut_back(logger: Any, size_bytes: int, has_header: bool) -> None:
    """Leaves out of the log file what was written after the snapshot."""
    logger.append_header = not has_header
    try:
        if os.path.getsize(logger.filename) > size_bytes:
            os.truncate(logger.filename, size_bytes)
    except OSError:
        pass  # Another node's disk, or no local file: it is appended to as it is.
