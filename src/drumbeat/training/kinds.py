"""The classes of Keras whose objects hold the state of a training: of Keras 3, and of tf_keras.

Those of tf_keras are there once it is imported, see `training.keras2`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import keras


@dataclass
class Kinds:
    """Classes, for `isinstance`.

    Attributes:
        models: Models.
        layers: Layers; models are such, too.
        optimizers: Optimizers.
        metrics: Metrics; those of tf_keras are layers, too.
        left_out: What callbacks hold that a snapshot has no use for.
        histories: History callbacks.
        csv_loggers: CSVLogger callbacks.
        progress_bars: ProgbarLogger callbacks.
        sequences: Data sets of Python code.
        more_of: Functions that give further variables of a layer or an optimizer: those that
            its `variables` doesn't have.
    """

    models: tuple[type, ...] = (keras.Model,)
    layers: tuple[type, ...] = (keras.layers.Layer,)
    optimizers: tuple[type, ...] = (keras.optimizers.Optimizer,)
    metrics: tuple[type, ...] = (keras.Metric,)
    left_out: tuple[type, ...] = (keras.losses.Loss,)
    histories: tuple[type, ...] = (keras.callbacks.History,)
    csv_loggers: tuple[type, ...] = (keras.callbacks.CSVLogger,)
    progress_bars: tuple[type, ...] = (keras.callbacks.ProgbarLogger,)
    sequences: tuple[type, ...] = (keras.utils.PyDataset,)
    more_of: list[Callable[[Any], Iterable[Any]]] = field(default_factory=list)

    def variables(self, owner: Any) -> list[Any]:
        """What `more_of` gives for `owner`."""
        return [variable for more in self.more_of for variable in more(owner)]


KINDS = Kinds()
