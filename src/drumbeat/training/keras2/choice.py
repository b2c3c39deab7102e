"""Finds out that a script asks for Keras 2, and gives it.

A worker is forked from a process that has imported TensorFlow already, and mostly Keras 3, so
what TensorFlow decides as it is imported is decided again here: when the script sets
`TF_USE_LEGACY_KERAS`, `tf.keras` becomes tf_keras. Whoever imports tf_keras, by that or by its
name, gets it with drumbeat's changes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from drumbeat import tf_internals
from drumbeat.errors import ConfigError

VARIABLE = "TF_USE_LEGACY_KERAS"
# TensorFlow takes these.
_TRUE = ("true", "True", "1")
_PACKAGE = "tf_keras"


def is_asked_for() -> bool:
    """Whether the environment asks for Keras 2."""
    return os.environ.get(VARIABLE) in _TRUE


def install(integrate: Callable[[], None]) -> None:
    """To be called once, in a worker, before its script starts.

    Args:
        integrate: Makes the changes to tf_keras; called when it has been imported.
    """
    sys.meta_path.insert(0, _Finder(integrate))
    if _PACKAGE in sys.modules:
        integrate()
    os.environ.__class__ = _watched(type(os.environ), _use)


def _watched(base: type, use: Callable[[], None]) -> type:
    """A class of environments that call `use` when Keras 2 is asked for there."""

    class Environment(base):
        def __setitem__(self, name: Any, value: Any) -> None:
            before = is_asked_for()
            super().__setitem__(name, value)
            if name == VARIABLE and is_asked_for() and not before:
                use()

    return Environment


def _use() -> None:
    if importlib.util.find_spec(_PACKAGE) is None:
        raise ConfigError(
            f"{VARIABLE} asks for Keras 2, but tf_keras is not installed. Install it "
            "(pip install 'drumbeat[keras2]'), or unset the variable."
        )
    tf_internals.use_keras_2()


class _Finder(importlib.abc.MetaPathFinder):
    """Has `integrate` called behind the import of tf_keras."""

    def __init__(self, integrate: Callable[[], None]) -> None:
        self._integrate = integrate
        self._is_asking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Where tf_keras is, with a loader that comes back here; None for all else."""
        if fullname != _PACKAGE or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._integrate)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, behind: Any, integrate: Callable[[], None]) -> None:
        self._behind = behind
        self._integrate = integrate

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As ever."""
        return self._behind.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As ever, and then drumbeat's changes."""
        self._behind.exec_module(module)
        self._integrate()
