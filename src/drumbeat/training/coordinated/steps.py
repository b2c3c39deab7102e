"""What a worker runs: one step of Keras's, or several, as one function without Python.

A function gets its batches either from the chief or from an iterator on the worker, and
returns what the last of its steps logs, how late their updates came and how many there were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.strategies.parameter_server import ParameterServerStrategy
from drumbeat.training.coordinated import views
from drumbeat.training.coordinated.variables import is_on_ps


class Steps:
    """The functions for one of a model's steps.

    Each returns a tuple: what the last step logs; how many updates of others came between
    reading the variables and updating them, summed over the steps, float32, negative where
    nothing is updated; the steps, int32.

    Args:
        model: Built under `strategy`.
        step: `train_step` or `test_step`; gets a batch.
        strategy: With parameter servers.
        trains: Whether it updates the model.
    """

    def __init__(
        self,
        model: Any,
        step: Callable[[Any], Any],
        strategy: ParameterServerStrategy,
        *,
        trains: bool,
    ) -> None:
        self._model = model
        self._step = step
        self._strategy = strategy
        self._trains = trains
        self._made: dict[Any, Any] = {}

    def on_batches(self, spec: Any, count: int) -> Any:
        """A concrete function of `count` batches at once: of `pack`'s result for them.

        Args:
            spec: Type specification of a batch.
            count: How many.
        """
        key = ("batches", _key(spec), min(count, 2) if can_pack(spec) else count)
        if key not in self._made:
            self._made[key] = self._trace_batches(spec, count)
        return self._made[key]

    def on_iterator(self, iterator: Any, spec: Any, count: int) -> Any:
        """A concrete function of an iterator on each worker; makes up to `count` steps.

        Args:
            iterator: Type specification of one of them.
            spec: Of their elements.
            count: How many.
        """
        key = (str(iterator), _key(spec), count)
        if key not in self._made:
            self._made[key] = self._trace_iterator(iterator, spec, count)
        return self._made[key]

    def eagerly(self, batch: Any) -> tuple[Any, Any, Any]:
        """The step in this process, as Python."""
        return self._once(batch)

    def _once(self, batch: Any) -> tuple[Any, Any, Any]:
        optimizer = self._model.optimizer if self._trains else None
        updates = None if optimizer is None else touch.update_count(optimizer)
        before = None if updates is None else tf.identity(updates)
        counted = [v for metric in self._model.metrics for v in metric.variables if is_on_ps(v)]
        fixed = [] if optimizer is None else touch.numbers_of(optimizer)
        with views.of_step(counted, [v for v in fixed if is_on_ps(v)]):
            logs = self._strategy.run(self._step, args=(batch,))
        logs = tf.nest.map_structure(tf.convert_to_tensor, {} if logs is None else logs)
        late = tf.constant(-1.0)
        if before is not None:
            late = tf.cast(tf.maximum(tf.identity(updates) - before - 1, 0), tf.float32)
        return logs, late, tf.constant(1)

    def _traced_once(self, spec: Any) -> Any:
        once = tf.function(tf.autograph.experimental.do_not_convert(self._once))
        with self._strategy.scope():
            return once.get_concrete_function(spec)

    def _trace_batches(self, spec: Any, count: int) -> Any:
        once = self._traced_once(spec)
        if count == 1:
            return once

        def several(packed: Any, rows: Any) -> Any:
            if not can_pack(spec):
                return _in_turn(once, packed)
            ends = tf.cumsum(rows)

            def batch_of(number: Any) -> Any:
                start, stop = ends[number] - rows[number], ends[number]
                return tf.nest.map_structure(
                    lambda leaf, known: tf.ensure_shape(leaf[start:stop], known.shape), packed, spec
                )

            return _loop(
                once,
                tf.size(rows),
                lambda number: (tf.constant(True), lambda: batch_of(number)),
            )

        packed_spec = _packed_spec(spec, count)
        with self._strategy.scope():
            return _function(several).get_concrete_function(
                packed_spec, tf.TensorSpec([None], tf.int32)
            )

    def _trace_iterator(self, iterator: Any, spec: Any, count: int) -> Any:
        once = self._traced_once(spec)

        def from_iterator(own: Any) -> Any:
            def next_batch(number: Any) -> Any:
                optional = own.get_next_as_optional()
                return optional.has_value(), optional.get_value

            return _loop(once, tf.constant(count), next_batch)

        with self._strategy.scope():
            return _function(from_iterator).get_concrete_function(iterator)


def _function(python: Callable[..., Any]) -> Any:
    return tf.function(tf.autograph.experimental.do_not_convert(python))


def _loop(once: Any, count: Any, batch_of: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """Calls `once` with up to `count` batches, as far as there are any.

    Args:
        once: Concrete.
        count: A number, as a tensor.
        batch_of: For the number of a batch: whether there is one, and what returns it.
    """
    logs, late, steps = (_blank(part) for part in once.structured_outputs)

    def step(number: Any, more: Any, logs: Any, late: Any, steps: Any) -> Any:
        del more
        there, batch = batch_of(number)

        def make() -> Any:
            new_logs, one_late, one = once(batch())
            return new_logs, late + one_late, steps + one

        made = tf.cond(there, make, lambda: (logs, late, steps))
        return (number + 1, there, *made)

    state = (tf.constant(0), tf.constant(True), logs, late, steps)
    invariants = tf.nest.map_structure(
        lambda start, like: tf.TensorSpec(like.shape, start.dtype),
        state,
        (state[0], state[1], *once.structured_outputs),
    )
    ended = tf.while_loop(
        lambda number, more, *_: (number < count) & more, step, state, shape_invariants=invariants
    )
    return ended[2], ended[3], ended[4]


def _in_turn(once: Any, batches: Any) -> Any:
    made = [once(batch) for batch in batches]
    return (
        made[-1][0],
        tf.add_n([late for _, late, _ in made]),
        tf.add_n([steps for _, _, steps in made]),
    )


def _blank(structure: Any) -> Any:
    def zeros(leaf: Any) -> Any:
        return tf.zeros([0 if size is None else size for size in leaf.shape], leaf.dtype)

    return tf.nest.map_structure(zeros, structure)


def can_pack(spec: Any) -> bool:
    """Whether batches of `spec` can be put one behind the other in one tensor for each leaf."""
    leaves = tf.nest.flatten(spec)
    return all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves)


def pack(batches: list[Any], spec: Any) -> tuple[Any, ...]:
    """The arguments of `Steps.on_batches(spec, len(batches))`."""
    if len(batches) == 1:
        return (batches[0],)
    rows = []
    if can_pack(spec):
        rows = [int(tf.shape(tf.nest.flatten(batch)[0])[0]) for batch in batches]
        packed = tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *batches)
    else:
        packed = tuple(batches)
    return packed, tf.constant(rows, tf.int32)


def _packed_spec(spec: Any, count: int) -> Any:
    if not can_pack(spec):
        return (spec,) * count
    return tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), spec
    )


def _key(spec: Any) -> Any:
    leaves = tf.nest.flatten(spec)
    return str(tf.nest.map_structure(lambda leaf: 0, spec)), tuple(map(str, leaves))
