"""What is settled about the steps of a `fit` when its model is built, before the first of them."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.data.batch_rows import least_rows, usual_rows
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import absence, jit


def integrate() -> None:
    """Have it known what the user asked for."""
    touch.wrap(touch.COMPILE, _compile)


@dataclass(frozen=True)
class _Fit:
    """A `fit` that begins.

    Attributes:
        model: That is fitted.
        strategy: With which all workers train it.
        arguments: Of `fit`, by name.
    """

    model: Any
    strategy: DataParallelStrategy
    arguments: Mapping[str, Any]


_begins: list[_Fit] = []


@contextlib.contextmanager
def of_fit(
    model: Any, strategy: DataParallelStrategy, arguments: Mapping[str, Any]
) -> Iterator[None]:
    """Within this `model` is fitted, on all workers; `arguments` are those of `fit`, by name."""
    fit = _Fit(model, strategy, arguments)
    _begins.append(fit)
    try:
        yield
    finally:
        if fit in _begins:
            _begins.remove(fit)


def built(model: Any, epochs: Any) -> None:
    """Keras has built `model` for `epochs`, its iterator over epochs of batches."""
    if not _begins or _begins[-1].model is not model:
        return  # an evaluation, or the validation of a fit
    fit = _begins.pop()
    data = fit.arguments.get("x")
    absence.expect(model, fit.strategy, _least_rows(data, epochs))
    first, last = fit.arguments.get("initial_epoch", 0), fit.arguments.get("epochs", 1)
    is_dataset = isinstance(data, tf.data.Dataset)
    ahead = jit.Ahead(
        spec=epochs._distributed_dataset.element_spec,
        rows=usual_rows(data) if is_dataset else touch.usual_rows_of_arrays(epochs),
        steps=(last - first) * (epochs.num_batches or 0),
        asked=model in _asked,
    )
    jit.settle(model, fit.strategy, ahead)


_asked: Any = weakref.WeakSet()
"""Models that the user wants XLA to compile the steps of."""


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments.get("jit_compile", "auto")
        (_asked.add if given != "auto" and self.jit_compile else _asked.discard)(self)

    return compile


def leave_out_jit(model: Any) -> None:
    """Has Keras not compile whole steps: XLA can't compile the collectives in them, but parts."""
    if model.jit_compile:
        model.jit_compile = False
        model.train_function = model.test_function = model.predict_function = None


def _least_rows(data: Any, epochs: Any) -> int:
    """The rows of the smallest global batch, or fewer; 0 where nothing is known."""
    if getattr(epochs._distributed_dataset, "is_own", False):
        return 0
    if isinstance(data, tf.data.Dataset):
        return least_rows(data)
    return touch.least_rows_of_arrays(epochs)
