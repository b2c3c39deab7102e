"""What a pipeline computes for each example by itself, apart from where examples come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from drumbeat.data.functions import call, obstacle_of
from drumbeat.data.position import HARMLESS
from drumbeat.tf_internals import (
    dataset_inputs,
    dataset_kind,
    dataset_number,
    dataset_parallelism,
    zip_structure,
)

_MAPS = ("Map", "ParallelMap")
_not_converted: Any = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Call:
    """A function of each example.

    Attributes:
        function: From an example to another.
        parallelism: Arguments for `Dataset.map`.
    """

    function: Callable[[Any], Any]
    parallelism: dict[str, Any]

    def over(self, dataset: Any) -> tf.data.Dataset:
        """`dataset`, of pairs of an example and a number, with the function called for each."""
        return dataset.map(
            _not_converted(lambda example, number: (self.function(example), number)),
            **self.parallelism,
        )


@dataclass(frozen=True)
class Setting:
    """What changes how a pipeline is run, and not what it yields.

    Attributes:
        over: Makes a dataset of another.
    """

    over: Callable[[Any], tf.data.Dataset]


Step = Call | Setting


@dataclass(frozen=True)
class Lifted:
    """A dataset of examples, taken apart.

    Its elements are those of `source` after all steps. None of the steps depends on which
    examples there are besides the one at hand.

    Attributes:
        source: Where examples come from; where nothing could be lifted, the dataset itself.
        steps: What becomes of each, in order.
        obstacle: Why no more is among the steps, though there are maps; "" where all are.
    """

    source: Any
    steps: tuple[Step, ...] = ()
    obstacle: str = ""

    @property
    def has_calls(self) -> bool:
        """Whether a function is called for each example."""
        return any(isinstance(step, Call) for step in self.steps)

    def then(self, step: Step) -> Lifted:
        """With another step behind the others."""
        return replace(self, steps=(*self.steps, step))


def lift(dataset: Any, rank: int) -> Lifted:
    """Takes `dataset` apart at the step nearest to its source above which all is for one example.

    What is lifted is called by traced functions as they are; maps are exchanged with `zip`,
    `take`, `skip`, `repeat` and `assert_cardinality`, which don't look at what they pass on.

    Args:
        dataset: Of examples.
        rank: This worker; random numbers that come in no order are drawn from seeds of its own.
    """
    kind = dataset_kind(dataset)
    if kind in _MAPS:
        obstacle = obstacle_of(dataset, HARMLESS)
        if obstacle:
            return Lifted(dataset, obstacle=obstacle)
        own = Call(call(dataset, rank), dataset_parallelism(dataset))
        return lift(_input(dataset), rank).then(own)
    if kind == "Zip":
        return _zip(dataset, rank)
    if kind in _SETTINGS or kind in _EXCHANGED:
        below = lift(_input(dataset), rank)
        if not below.has_calls:
            return replace(below, source=dataset, steps=())
        if kind in _SETTINGS:
            return below.then(Setting(_SETTINGS[kind](dataset)))
        return replace(below, source=_EXCHANGED[kind](dataset, below.source))
    return Lifted(dataset, obstacle=_obstacle(kind) if has_maps(dataset) else "")


def _input(dataset: Any) -> Any:
    (source,) = dataset_inputs(dataset)
    return source


def has_maps(dataset: Any) -> bool:
    """Whether `dataset`, or what it reads from, calls functions by `map`."""
    if dataset_kind(dataset) in _MAPS:
        return True
    return any(has_maps(source) for source in dataset_inputs(dataset))


def prefetch_like(dataset: Any) -> Callable[[Any], tf.data.Dataset]:
    """What reads ahead as far as `dataset`, of kind Prefetch."""
    ahead = dataset_number(dataset, "buffer_size")
    return lambda source: source.prefetch(ahead)


def options_like(dataset: Any) -> Callable[[Any], tf.data.Dataset]:
    """What sets the options of `dataset`."""
    return lambda source: source.with_options(dataset.options())


def asserting_like(dataset: Any, source: Any) -> tf.data.Dataset:
    """`source` with the cardinality that `dataset`, of kind AssertCardinality, asserts."""
    count = dataset_number(dataset, "expected_cardinality")
    return source.apply(tf.data.experimental.assert_cardinality(count))


def repeating_like(dataset: Any, source: Any) -> tf.data.Dataset:
    """`source` as often as `dataset`, of kind Repeat, has what it reads."""
    if dataset_kind(source) == "Shuffle":
        # tf.data would make one step of the two, which shuffles in another order.
        source = source.with_options(tf.data.Options())
    return source.repeat(dataset_number(dataset, "count"))


_SETTINGS: dict[str, Callable[[Any], Callable[[Any], tf.data.Dataset]]] = {
    "Options": options_like,
    "Prefetch": prefetch_like,
}
_EXCHANGED: dict[str, Callable[[Any, Any], tf.data.Dataset]] = {
    "AssertCardinality": asserting_like,
    "Repeat": repeating_like,
    "Skip": lambda dataset, source: source.skip(dataset_number(dataset, "count")),
    "Take": lambda dataset, source: source.take(dataset_number(dataset, "count")),
}


def _zip(dataset: Any, rank: int) -> Lifted:
    """A zip of the sources, and the steps of each part in turn."""
    parts = [lift(source, rank) for source in dataset_inputs(dataset)]
    obstacle = next((part.obstacle for part in parts if part.obstacle), "")
    if not any(part.has_calls for part in parts):
        return Lifted(dataset, obstacle=obstacle)
    steps = [_within(index, step) for index, part in enumerate(parts) for step in part.steps]
    last = max(index for index, step in enumerate(steps) if isinstance(step, Call))
    steps[last] = _packed(steps[last], dataset)
    source = tf.data.Dataset.zip(tuple(part.source for part in parts))
    return Lifted(source, tuple(steps), obstacle)


def _within(index: int, step: Step) -> Step:
    """`step` for one of several parts of an example."""
    if isinstance(step, Setting):
        return step
    function = step.function

    def called(parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*parts[:index], function(parts[index]), *parts[index + 1 :])

    return replace(step, function=called)


def _packed(step: Any, dataset: Any) -> Step:
    """`step`, the last, with its parts put together as in the elements of `dataset`, of zip."""
    function = step.function
    return replace(step, function=lambda parts: zip_structure(dataset, list(function(parts))))


def _obstacle(kind: str) -> str:
    """Why maps nearer to the source than a dataset of this kind run for all examples."""
    return _OBSTACLES.get(kind, f"{kind or 'a dataset of another class'} stands behind map()")


_OBSTACLES = {
    "Shuffle": "shuffle() stands behind map(); put it before, where it takes less memory, too",
    "Cache": (
        "cache() stands behind map() and keeps what it returns for all examples; from the second "
        "epoch on it doesn't run"
    ),
    "Filter": "filter() looks at what map() returns",
    "FlatMap": "flat_map() or filter() looks at what map() returns",
}
