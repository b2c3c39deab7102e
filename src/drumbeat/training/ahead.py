"""What is settled about the steps of a `fit` when its model is built, before the first of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.data.least_rows import least_rows
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import absence


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
    absence.expect(model, fit.strategy, _least_rows(fit.arguments.get("x"), epochs))


def _least_rows(data: Any, epochs: Any) -> int:
    """The rows of the smallest global batch, or fewer; 0 where nothing is known."""
    if getattr(epochs._distributed_dataset, "is_own", False):
        return 0
    if isinstance(data, tf.data.Dataset):
        return least_rows(data)
    return touch.least_rows_of_arrays(epochs)
