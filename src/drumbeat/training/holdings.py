"""The variables that a phase of training holds, in an order that is the same each time.

A model's own, those of its optimizers and metrics, and those that its attributes and
callbacks hold on to.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.collectives.compression.residuals import Memory, groups_of
from drumbeat.strategies.local_sgd import is_own, round_of
from drumbeat.training import shard_state
from drumbeat.training.divergence import optimizer_variables, path_of, weights_of
from drumbeat.training.kinds import KINDS


class Kind(enum.Enum):
    """What a variable is, and so whether workers must have the same in it."""

    TRAINED = "weights"
    """Changed by an optimizer alone: the same on all workers."""
    OPTIMIZER = "optimizer variables"
    """The same on all workers."""
    METRIC = "metrics"
    """Counted by each worker by itself."""
    STATISTIC = "statistics"
    """Whatever else layers hold of floats, such as moving statistics: they may differ."""
    OWN = "state of each worker's own"
    """In local SGD: of optimizers, and weights between two averages."""
    RESIDUAL = "residuals of compressed gradients"
    """What each worker owes of its gradients; only the sum over the workers counts."""
    OTHER = "state"
    """Seeds and variables of the script's own: each worker may have its own."""


@dataclass(frozen=True)
class Held:
    """A variable.

    Attributes:
        kind: See there.
        path: For messages.
        variable: Keras's, TensorFlow's, or a `Memory` of compression's.
        shard: In exact mode, the worker's virtual shard that counts in it, from 1; 0 for
            the variable itself.
    """

    kind: Kind
    path: str
    variable: Any
    shard: int = 0

    @property
    def may_differ(self) -> bool:
        """Whether each worker may have its own value."""
        return self.kind not in (Kind.TRAINED, Kind.OPTIMIZER)

    @property
    def view(self) -> np.ndarray:
        """What it holds; on a CPU without a copy."""
        if isinstance(self.variable, Memory):
            return self.variable.array
        return np.asarray(tf.convert_to_tensor(self.variable))


@dataclass
class Holdings:
    """What was found.

    Attributes:
        shards: How many virtual shards this worker runs.
        held: All variables, each once.
        optimizers: All optimizers, each once.
        metrics: All metrics.
    """

    shards: int = 1
    held: list[Held] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def add(self, kind: Kind, variables: Iterable[Any], shard: int = 0) -> None:
        """Adds those that aren't there yet."""
        for variable in variables:
            if id(variable) not in self._seen and not _is_symbolic(variable):
                self._seen.add(id(variable))
                self.held.append(Held(kind, path_of(variable), variable, shard))

    def add_optimizer(self, optimizer: Any) -> None:
        """Adds an optimizer's variables."""
        if id(optimizer) not in self._seen:
            self._seen.add(id(optimizer))
            self.optimizers.append(optimizer)
            for variable in [*optimizer_variables(optimizer), *KINDS.variables(optimizer)]:
                own = is_own(optimizer, variable)
                self.add(Kind.OWN if own else Kind.OPTIMIZER, [variable])
            round_ = round_of(optimizer)
            if round_ is not None:
                self.add(Kind.OPTIMIZER, round_.alike)
                self.add(Kind.OWN, [round_.rows])

    @property
    def mains(self) -> list[Held]:
        """Those of `held` that are no copies of a virtual shard's."""
        return [each for each in self.held if not each.shard]

    def trained_by(self, optimizer: Any) -> list[int]:
        """Which of `held` a built optimizer updates, by position without shards' copies."""
        place = {id(each.variable): number for number, each in enumerate(self.mains)}
        if not getattr(optimizer, "built", False):  # those of tf_keras are built with the model
            return []
        return [place[id(v)] for v in touch.trained_by(optimizer) if id(v) in place]


def of(roots: Sequence[Any], shards: int = 1) -> Holdings:
    """What `roots` hold: models, optimizers, metrics, variables and objects that have such.

    Of an object, the attributes are looked at, also in lists and dicts; of those, Keras's
    own objects.

    Args:
        roots: See above.
        shards: How many virtual shards this worker runs.
    """
    found = Holdings(shards)
    looked_at: set[int] = set()
    for root in roots:
        _add(found, root, looked_at, depth=0)
    for optimizer in found.optimizers:
        for memory in (memory for group in groups_of(optimizer) for memory in group.memories):
            found.add(Kind.OPTIMIZER if memory.is_shared else Kind.RESIDUAL, [memory])
    rounds = [round_of(optimizer) for optimizer in found.optimizers]
    parted = {id(w) for each in rounds if each and each.is_open for w in each.weights}
    found.held = [
        replace(each, kind=Kind.OWN) if id(each.variable) in parted else each for each in found.held
    ]
    return found


_DEPTH = 3


def _add(found: Holdings, value: Any, looked_at: set[int], depth: int) -> None:
    if id(value) in looked_at:
        return
    looked_at.add(id(value))
    if isinstance(value, KINDS.models):
        _add_model(found, value, looked_at)
    elif isinstance(value, KINDS.metrics):
        _add_metric(found, value)
    elif isinstance(value, KINDS.layers):
        _add_layer(found, value)
    elif isinstance(value, KINDS.optimizers):
        found.add_optimizer(value)
    elif isinstance(value, keras.random.SeedGenerator | tf.random.Generator):
        found.add(Kind.OTHER, [value.state])
    elif isinstance(value, keras.Variable | tf.Variable):
        found.add(Kind.OTHER, [value])
    elif depth < _DEPTH:
        for inner in _inside(value, depth):
            _add(found, inner, looked_at, depth + 1)


def _inside(value: Any, depth: int) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set):
        return list(value)
    if depth == 0 and hasattr(value, "__dict__"):
        return [inner for name, inner in vars(value).items() if name not in ("_model", "model")]
    return []


def _add_model(found: Holdings, model: Any, looked_at: set[int]) -> None:
    _add_layer(found, model, [v for metric in model.metrics for v in metric.variables])
    if getattr(model, "optimizer", None) is not None:
        found.add_optimizer(model.optimizer)
    for metric in model.metrics:
        _add_metric(found, metric)
    # Second optimizers, variables of TensorFlow's, models that have optimizers of their own.
    for inner in vars(model).values():
        _add(found, inner, looked_at, depth=1)


def _add_layer(found: Holdings, layer: Any, counted: Iterable[Any] = ()) -> None:
    counted = {id(variable) for variable in counted}
    trained = {id(variable) for variable in weights_of(layer, "trainable_variables")}
    for variable in weights_of(layer, "variables"):
        if id(variable) in counted:  # a metric's: in Keras 2 a model has these as well
            continue
        # In one order, also where layers are frozen or unfrozen meanwhile.
        kind = Kind.STATISTIC if tf.as_dtype(variable.dtype).is_floating else Kind.OTHER
        found.add(Kind.TRAINED if id(variable) in trained else kind, [variable])
    found.add(Kind.OTHER, KINDS.variables(layer))


def _add_metric(found: Holdings, metric: Any) -> None:
    found.metrics.append(metric)
    for variable in metric.variables:
        found.add(Kind.METRIC, [variable])
        # In exact mode each virtual shard counts by itself.
        copies = shard_state.further_copies(variable, found.shards)
        for shard, copy in enumerate(copies, start=1):
            found.add(Kind.METRIC, [copy], shard)


def _is_symbolic(variable: Any) -> bool:
    value = getattr(variable, "_value", variable)
    return value is None or callable(value)
