"""Arguments of old, where Keras's functions refuse them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from drumbeat import legacy_names as names
from drumbeat.training.legacy.modules import public
from drumbeat.training.legacy.notice import tell


def install() -> None:
    """Have the functions take them."""
    for optimizer in _optimizers():
        _wrap(optimizer, "__init__", _rate)
    _wrap(keras.losses.Loss, "__init__", _reduction)
    _wrap(keras.layers.Embedding, "__init__", _embedding)
    _wrap(keras.layers.BatchNormalization, "__init__", _dropping("BatchNormalization"))
    _wrap(keras.callbacks.TensorBoard, "__init__", _dropping("TensorBoard"))
    # Keras asks whether a model has a compile of its own: it is replaced where it is.
    for method in ("fit", "evaluate", "predict"):
        _wrap(_owner(method), method, _dropping(method))
    _wrap(_owner("compile"), "compile", _steps_per_execution, _dropping("compile"))
    new_input = _input(keras.Input)
    for module in (*public(""), *public("layers")):
        module.Input = new_input  # type: ignore[attr-defined]


def _optimizers() -> list[type]:
    found = (getattr(keras.optimizers, name) for name in dir(keras.optimizers))
    classes = {each for each in found if isinstance(each, type)}
    return [each for each in classes if issubclass(each, keras.optimizers.Optimizer)]


def _owner(method: str) -> type:
    return next(each for each in keras.Model.__mro__ if method in vars(each))


def _wrap(owner: type, name: str, *changes: Callable[..., Any]) -> None:
    """Replaces a method that `owner` has itself by one whose arguments `changes` see first."""
    original = owner.__dict__.get(name)
    if original is None:
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for change in changes:
            change(original, given, kwargs)
        return original(self, *given, **kwargs)

    # Keras looks at its layers' arguments without following `__wrapped__`.
    wrapped.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


def _rate(original: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    if "lr" in kwargs:
        tell(names.LR)
        kwargs["learning_rate"] = kwargs.pop("lr")
    decay = kwargs.pop("decay", None)
    if decay is None:
        return
    tell(names.DECAY)
    if not decay:
        return
    usual = inspect.signature(original).parameters["learning_rate"].default
    rate = args[0] if args else kwargs.get("learning_rate", usual)
    schedule = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
    if args:
        args[0] = schedule
    else:
        kwargs["learning_rate"] = schedule


def _reduction(original: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    del original, args
    if kwargs.get("reduction") == "auto":
        tell(names.REDUCTION_AUTO)
        kwargs["reduction"] = "sum_over_batch_size"


def _embedding(original: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    del original, args
    tables = kwargs.pop("weights", None)
    if tables is not None:
        tell(names.EMBEDDING_WEIGHTS)
        table: Any = np.asarray(tables[0])
        kwargs["embeddings_initializer"] = keras.initializers.Constant(table)


def _steps_per_execution(
    original: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    del original, args
    if "experimental_steps_per_execution" in kwargs:
        tell(names.STEPS_PER_EXECUTION)
        kwargs["steps_per_execution"] = kwargs.pop("experimental_steps_per_execution")


def _dropping(function: str) -> Callable[..., Any]:
    arguments, _ = names.DROPPED[function]

    def drop(original: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        del original, args
        for argument in arguments:
            if argument in kwargs:
                del kwargs[argument]
                tell(names.dropped(function, argument))

    return drop


def _input(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new_input(shape: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(shape, (int, np.integer, str)):
            tell(names.INPUT_SHAPE)
            shape = (int(shape),)
        return original(shape, *args, **kwargs)

    return new_input
