"""Public modules that Keras has lost, or lost a part of: they come back, and tell of it."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from drumbeat import legacy_names as names
from drumbeat.training.legacy.notice import tell

# `tf.keras`, what `from tensorflow.keras import …` finds, and `keras` are three sets of modules.
ROOTS = ("keras", "keras._tf_keras.keras", "tensorflow.keras")


def public(name: str) -> Iterator[types.ModuleType]:
    """Each of the modules that stand for `keras.<name>`, or for `keras` itself with ""."""
    for root in ROOTS:
        yield importlib.import_module(f"{root}.{name}" if name else root)


class DatasetCreator:
    """A function that makes a dataset, as `fit` of a parameter-server script took it.

    Args:
        dataset_fn: From a `tf.distribute.InputContext` to a `tf.data.Dataset`.
        input_options: Not heeded.
    """

    def __init__(self, dataset_fn: Callable[..., Any], input_options: Any = None) -> None:
        del input_options
        self.dataset_fn = dataset_fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The dataset."""
        return self.dataset_fn(*args, **kwargs)


def _synchronized(*args: Any, **kwargs: Any) -> Any:
    return keras.layers.BatchNormalization(*args, **kwargs, synchronized=True)


# Names that have no like elsewhere: what to say and what to give.
_OWN: dict[str, tuple[names.Old, Any]] = {
    "layers.experimental.SyncBatchNormalization": (names.SYNC_BATCH_NORMALIZATION, _synchronized),
    "utils.experimental.DatasetCreator": (names.DATASET_CREATOR, DatasetCreator),
}


class _Gone(types.ModuleType):
    """Stands where a module was; its names lead to where they are now."""

    def __init__(self, path: str) -> None:
        super().__init__(f"keras.{path}")
        self.__path__ = []  # it may have modules of its own
        self._path = path

    def __getattr__(self, last: str) -> Any:
        name = f"{self._path}.{last}"
        if last.startswith("__"):
            raise AttributeError(last)
        if name in _OWN:
            old, value = _OWN[name]
            tell(old)
            return value
        module, _, what = _new_name(name, self._path).rpartition(".")
        owner = importlib.import_module(f"keras._tf_keras.keras.{module}") if module else None
        if owner is None or not hasattr(owner, what):
            raise AttributeError(f"keras.{name} is gone, and drumbeat knows nothing like it.")
        tell(names.moved(name))
        return getattr(owner, what)


def _new_name(name: str, path: str) -> str:
    all_of_it = names.MOVED.get(f"{path}.*", "")
    return names.MOVED.get(name) or all_of_it.replace("*", name.rpartition(".")[2])


def install() -> None:
    """Bring back the modules and functions."""
    for path in sorted(_gone()):
        gone = _Gone(path)
        for root in ROOTS:
            above, _, last = path.rpartition(".")
            # Setting it on a module that is gone itself keeps `__getattr__` from being asked.
            owner = sys.modules.get(f"{root}.{above}") if above else sys.modules[root]
            setattr(owner or importlib.import_module(f"{root}.{above}"), last, gone)
            sys.modules[f"{root}.{path}"] = gone
    for module in public("utils"):
        module.multi_gpu_model = _multi_gpu_model  # type: ignore[attr-defined]
    for module in public("backend"):
        module.set_value = _set_value  # type: ignore[attr-defined]
    for where in (tf.train.experimental, tf.compat.v1.train.experimental):
        where.enable_mixed_precision_graph_rewrite = _graph_rewrite


def _gone() -> set[str]:
    """All modules in front of the table's names that Keras does not have (any more)."""
    paths = set()
    for name in (*names.MOVED, *_OWN):
        parts = name.split(".")[:-1]
        paths |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    kept = {"callbacks", "layers", "mixed_precision", "optimizers", "utils"}
    return paths - kept


def _multi_gpu_model(model: Any, gpus: Any = None, *args: Any, **kwargs: Any) -> Any:
    del gpus, args, kwargs
    tell(names.MULTI_GPU_MODEL)
    return model


def _set_value(x: Any, value: Any) -> None:
    tell(names.SET_VALUE)
    x.assign(value)


def _graph_rewrite(opt: Any, loss_scale: Any = "dynamic") -> Any:
    tell(names.GRAPH_REWRITE)
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    if loss_scale == "dynamic":
        return keras.optimizers.LossScaleOptimizer(opt)
    # A fixed scale: one that is never raised.
    return keras.optimizers.LossScaleOptimizer(
        opt, initial_scale=float(loss_scale), dynamic_growth_steps=2**31 - 1
    )
