"""What `drumbeat install-hook` has every Python of an environment do: see `cli.hook`.

A process with TF_CONFIG that imports TensorFlow gets `drumbeat.auto` right after. Nothing is
imported before, and nothing at all where there is no TF_CONFIG or `drumbeat run` is at work.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

OFF_VARIABLE = "DRUMBEAT_NO_HOOK"


class _AfterTensorFlow(importlib.abc.MetaPathFinder):
    """Finds TensorFlow, once, as the other finders do, and adds to its loading."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow" or "TF_CONFIG" not in os.environ:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        import drumbeat.auto  # noqa: F401


def install() -> None:
    """Called at the start of every Python of the environment; takes microseconds."""
    if "DRUMBEAT_RANK" not in os.environ and not os.environ.get(OFF_VARIABLE):
        sys.meta_path.insert(0, _AfterTensorFlow())
