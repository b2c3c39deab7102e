"""Names that can't be brought back: the error says since when they are gone, and what to write."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from drumbeat import legacy_names as names
from drumbeat.training.legacy.modules import public


def install() -> None:
    """Have the modules say so."""
    by_module: dict[str, dict[str, names.Old]] = {}
    for name in names.REFUSED:
        module, _, last = name.rpartition(".")
        by_module.setdefault(module, {})[last] = names.refused(name)
    for name, gone in by_module.items():
        for module in _modules(name):
            module.__getattr__ = _saying(module, gone)  # type: ignore[method-assign]


def _modules(name: str) -> Iterable[types.ModuleType]:
    root, _, rest = name.partition(".")
    return (tf,) if root == "tf" else public(rest)


def _saying(module: types.ModuleType, gone: dict[str, names.Old]) -> Callable[[str], Any]:
    original = module.__dict__.get("__getattr__")

    def getattribute(name: str) -> Any:
        if name in gone:
            raise AttributeError(gone[name].notice)
        if original is not None:
            return original(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    return getattribute
