"""State of Keras's variables in exact mode, in which a worker runs several virtual shards.

Every shard counts its metrics in variables of its own, which are added up in one
fixed order when somebody asks. What a layer or a script assigns in a step (moving
statistics, a slowly following copy of the weights) each shard computes from the
same old value; what remains is the mean over all shards, in the same order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.strategies.aggregated import as_it_is
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.tf_internals import PerReplica
from drumbeat.training import current

_COPIES = "_drumbeat_copies"
# On a variable: the function that gives the value it started from, or that value.
START = "_drumbeat_start"


def integrate() -> None:
    """Let each shard write to variables of its own."""
    touch.wrap(touch.VARIABLE_ASSIGN, _direct_assign)
    touch.wrap(touch.ADD_LOSS, _add_loss)
    touch.wrap(touch.REDUCE_PER_REPLICA, _reduce_per_replica)


def _state_at_hand() -> _ShardState | None:
    """That of the run of several replicas in which the caller is."""
    strategy = current.in_replica()
    replica = None if strategy is None else strategy.extended.replicas.current
    if replica is None or replica.lockstep is None:
        return None
    return replica.lockstep.keep(lambda: _ShardState(strategy))


def _direct_assign(original: Callable[..., Any]) -> Callable[..., Any]:
    def direct_assign(self: Any, value: Any) -> Any:
        state = _state_at_hand()
        if state is None:
            return original(self, value)
        with as_it_is():
            state.hold(self)
            return original(self, value)

    return direct_assign


def _add_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_loss(self: Any, loss: Any) -> Any:
        state = _state_at_hand()
        if state is not None:
            state.hold_losses(self)
        return original(self, loss)

    return add_loss


def _reduce_per_replica(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction != "auto" or not isinstance(strategy, DataParallelStrategy):
            return original(values, strategy, reduction)
        return tf.nest.map_structure(
            lambda value: _logged(value.values) if isinstance(value, PerReplica) else value, values
        )

    return reduce_per_replica


def _logged(values: Sequence[Any]) -> Any:
    """What a step logs of the values of a worker's shards."""
    first = values[0]
    if not isinstance(first, tf.Tensor | tf.Variable) or first.dtype == tf.string:
        return first
    if first.shape.is_fully_defined():
        return _mean(values)
    return first if first.shape.rank is None else tf.concat(values, 0)  # Values of rows.


def _mean(values: Sequence[Any]) -> Any:
    """The mean, as float64: it is to be rounded once, when that over all workers is taken."""
    return tf.add_n([tf.cast(value, tf.float64) for value in values]) / len(values)


class _ShardState:
    """What the shards of a worker have written to in one run: variables, and layers' losses.

    The next shard begins while one waits, and layers forget what they have added to the loss
    when a model is called.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy: DataParallelStrategy = strategy
        self._held: dict[int, tuple[Any, list[Any]]] = {}
        self._losses: dict[int, tuple[Any, list[list[Any]]]] = {}
        self._index = 0

    def hold(self, variable: Any) -> None:
        """From now on each shard has its own copy of a Keras variable."""
        if id(variable) in self._held:
            return
        copies = _copies_for(variable, self._strategy.extended.replicas.count)
        if not _is_counted(variable):
            # The first shard to get here hasn't written yet.
            for copy in copies[1:]:
                copy.assign(copies[0])
        self._held[id(variable)] = (variable, copies)
        variable._value = copies[self._index]

    def hold_losses(self, layer: Any) -> None:
        """From now on each shard has its own list of what a Keras layer adds to the loss."""
        if id(layer) in self._losses:
            return
        count = self._strategy.extended.replicas.count
        lists = [touch.added_losses(layer), *([] for _ in range(count - 1))]
        self._losses[id(layer)] = (layer, lists)
        touch.show_added_losses(layer, lists[self._index])

    def enter(self, index: int) -> None:
        """Show the copies of shard `index`."""
        self._index = index
        self._show(index)

    def leave(self) -> None:
        """Show the variables and lists themselves."""
        self._show(0)

    def _show(self, index: int) -> None:
        for variable, copies in self._held.values():
            variable._value = copies[index]
        for layer, lists in self._losses.values():
            touch.show_added_losses(layer, lists[index])

    def settle(self) -> None:
        """Give weights that layers have changed themselves their mean, and no copies any more.

        What the optimizer does to a weight would be lost in a mean taken afterwards.
        """
        trained = [variable for variable, _ in self._held.values() if variable.trainable]
        self._give_means([self._held.pop(id(variable))[1] for variable in trained])

    def finish(self) -> None:
        """Give variables that aren't counted the mean of what the shards left."""
        held = [copies for variable, copies in self._held.values() if _is_mean(variable)]
        self._give_means(held)

    def _give_means(self, held: Sequence[list[Any]]) -> None:
        if not held:
            return
        extended = self._strategy.extended
        count = extended.replicas.count
        values = [[tf.convert_to_tensor(copies[i]) for copies in held] for i in range(count)]
        for copies, total in zip(held, extended.sum_over_replicas(values), strict=True):
            copies[0].assign(total / extended.replicas.total)


def _is_counted(variable: Any) -> bool:
    """Whether it belongs to a metric, whose states are added up."""
    return variable.synchronization == "on_read"


def _is_mean(variable: Any) -> bool:
    # Whole numbers, such as seeds and counters, are the same in every shard.
    return not _is_counted(variable) and variable.dtype.startswith(("float", "bfloat"))


def _copies_for(variable: Any, count: int) -> list[Any]:
    """The variable itself for the worker's first shard, and one like it for each further one."""
    copies = variable.__dict__.get(_COPIES)
    if copies is None:
        start = start_of(variable)
        with tf.init_scope():
            own = [_like(variable._value, start) for _ in range(count - 1)]
        copies = variable.__dict__[_COPIES] = [variable._value, *own]
    return copies


def _like(variable: Any, start: Any | None) -> Any:
    value = tf.zeros(variable.shape, variable.dtype) if start is None else start
    # A tape watches what is trainable.
    return tf.Variable(value, dtype=variable.dtype, trainable=variable.trainable, name="shard_copy")


def further_copies(variable: Any, count: int) -> list[Any]:
    """Of a metric's variable: what all but the first of the worker's `count` shards count in."""
    return _copies_for(variable, count)[1:] if count > 1 else []


def start_of(variable: Any) -> Any | None:
    """The value of a metric's variable after it was made or last reset; None for zeros."""
    start = getattr(variable, START, None)
    if callable(start):
        with tf.init_scope():
            start = start()
        setattr(variable, START, start)
    return start


def each_shards(variable: Any, start: Any | None, count: int) -> list[Any]:
    """What each of the worker's `count` shards has added to `start` in a metric's variable."""
    copies = variable.__dict__.get(_COPIES, [variable])
    values = [tf.convert_to_tensor(copy) for copy in copies]
    values = values if start is None else [value - start for value in values]
    return [*values, *[tf.zeros_like(values[0])] * (count - len(values))]


def mean_of_shards(
    ask: Callable[[], dict[str, Any]], variables: Sequence[Any], count: int
) -> dict[str, Any]:
    """What `ask` returns in each of the worker's shards, and the mean of that, as a step logs it.

    Args:
        ask: Computes from metric variables.
        variables: Those.
        count: How many shards the worker has.
    """
    if count == 1:
        return ask()
    held = [(v, v.__dict__[_COPIES]) for v in variables if _COPIES in v.__dict__]
    try:
        answers = []
        for index in range(count):
            for variable, copies in held:
                variable._value = copies[index]
            answers.append(ask())
    finally:
        for variable, copies in held:
            variable._value = copies[0]
    return {name: _mean([answer[name] for answer in answers]) for name in answers[0]}


@contextlib.contextmanager
def restored(variables: Sequence[Any]) -> Iterator[None]:
    """After this, variables and their copies hold what they hold now."""
    all_copies = [c for v in variables for c in v.__dict__.get(_COPIES, [v])]
    values = [tf.identity(tf.convert_to_tensor(copy)) for copy in all_copies]
    try:
        yield
    finally:
        for copy, value in zip(all_copies, values, strict=True):
            copy.assign(value)


def reset(variables: Sequence[Any]) -> None:
    """After a metric's reset: the further shards' copies start like the variable itself."""
    for variable in variables:
        for copy in variable.__dict__.get(_COPIES, [None])[1:]:
            copy.assign(variable._value)
