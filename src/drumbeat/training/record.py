"""Records the first optimizer steps of whatever a script trains, for `drumbeat check`.

All ways to train end in `BaseOptimizer.apply`: `fit`, a `train_step` of one's own, a
loop in Python or in a tf.function, several models. So that is where a step is
recorded, with the gradients that the workers have summed; the batch was noted when
`strategy.run` got it, the loss when a tape differentiated it. Nothing here acts
outside of a check.
"""

from __future__ import annotations

import atexit
import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.cluster.identity import Identity
from drumbeat.cluster.recording import Recording, StepRecord, VariableRecord
from drumbeat.collectives.bridge import Bridge
from drumbeat.data.rows import num_rows
from drumbeat.strategies.data_parallel import DataParallelExtended, DataParallelStrategy
from drumbeat.training import current
from drumbeat.training.facts import Facts, replace
from drumbeat.training.sketch import checksum, norm, ragged_rows, row_digests, sketch

# After the last step a worker waits for the others to record theirs, and then for its end:
# what the script does after that is of no interest. It goes on if they need it.
OTHERS_WAIT_S = 2.0
END_WAIT_S = 60.0
_POLL_S = 0.02
# Twice the distance of 1 to the next number.
_EPSILON = {tf.float64: 2.0**-51, tf.float32: 2.0**-22, tf.float16: 2.0**-9, tf.bfloat16: 2.0**-6}


def install(recording: Recording, identity: Identity) -> None:
    """Begin to record; to be called before `integrate`, so that gradients come in summed."""
    facts = Facts()
    facts.install(identity.world_size)
    recorder = Recorder(recording, facts, identity.rank, identity.world_size)
    touch.wrap(touch.OPTIMIZER_APPLY, recorder.around_apply)
    touch.wrap(touch.LOSS_SCALE_APPLY, recorder.around_apply)
    replace(tf.GradientTape, "gradient", recorder.around_gradient)
    replace(DataParallelExtended, "_call_for_each_replica", recorder.around_run)


class _Here(threading.local):
    """What the thread at hand is in the middle of."""

    def __init__(self) -> None:
        self.in_apply = False
        # Pairs of what was differentiated and by what.
        self.differentiated: collections.deque[tuple[Any, Any]] = collections.deque(maxlen=8)


class Recorder:
    """Writes a `StepRecord` for each of the first steps.

    Args:
        recording: What to record, and where.
        facts: What is known of the training otherwise.
        rank: This worker.
        world_size: How many workers there are.
    """

    def __init__(self, recording: Recording, facts: Facts, rank: int, world_size: int) -> None:
        self._recording = recording
        self._facts = facts
        self._rank = rank
        self._world_size = world_size
        self._steps = 0
        self._rows: tuple[str, ...] | None = None
        self._here = _Here()
        self._bridge = Bridge(on_device=False)

    def around_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Notes the rows that `strategy.run` hands to the replica."""

        def call(extended: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            self._note_batch((args, kwargs))
            return original(extended, fn, args, kwargs)

        return call

    def _note_batch(self, arguments: Any) -> None:
        rows = num_rows(arguments)
        if rows is None:
            return
        leaves = [_parts(leaf) for leaf in tf.nest.flatten(arguments) if _has_rows(leaf)]

        def note(*arrays: np.ndarray) -> list[Any]:
            if self._steps < self._recording.steps:
                rest = iter(arrays)
                columns = [_rows([next(rest) for _ in leaf]) for leaf in leaves]
                count = len(columns[0])
                self._rows = row_digests([c for c in columns if len(c) == count])
            return []

        self._bridge(note, [part for leaf in leaves for part in leaf], [])

    def around_gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Keeps what a tape differentiates: the loss."""

        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            self._here.differentiated.append((target, sources))
            return original(tape, target, sources, *args, **kwargs)

        return gradient

    def around_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Records the update that `apply` makes."""

        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if self._here.in_apply:  # the optimizer within a LossScaleOptimizer
                return original(optimizer, grads, trainable_variables)
            grads = list(grads)
            variables = list(trainable_variables or touch.trained_by(optimizer))
            before = [tf.identity(tf.convert_to_tensor(v)) for v in variables]
            loss = self._loss_of(optimizer, variables)
            numbers = (loss, _learning_rate(optimizer), _loss_scale(optimizer))
            self._here.in_apply = True
            try:
                result = original(optimizer, grads, trainable_variables)
            finally:
                self._here.in_apply = False
            self._record(optimizer, numbers, grads, variables, before)
            if self._recording.nudge:
                self._nudge(variables)
            return result

        return apply

    def _loss_of(self, optimizer: Any, variables: Sequence[Any]) -> Any:
        """The loss that was differentiated by them, a float32 scalar; None if it can't be told."""
        calls = list(self._here.differentiated)
        ids = {id(v) for v in variables}
        own = [target for target, by in calls if ids & {id(v) for v in tf.nest.flatten(by)}]
        own = own or [target for target, _ in calls]
        if not own or not all(_is_at_hand(part) for part in tf.nest.flatten(own[-1])):
            return None
        parts = [tf.reduce_sum(tf.cast(p, tf.float32)) for p in tf.nest.flatten(own[-1])]
        return tf.add_n(parts) / _loss_scale(optimizer)

    def _record(
        self,
        optimizer: Any,
        numbers: tuple[Any, Any, Any],
        grads: list[Any],
        variables: list[Any],
        before: list[Any],
    ) -> None:
        strategy = tf.distribute.get_strategy()
        in_scope = isinstance(strategy, DataParallelStrategy)
        together = current.in_replica() is not None
        self._facts.note_step(variables)
        loss, learning_rate, scale = numbers
        loss_is_known = loss is not None
        present = [index for index, grad in enumerate(grads) if grad is not None]
        after = [tf.convert_to_tensor(v) for v in variables]
        tensors = [loss if loss_is_known else tf.zeros([]), learning_rate, scale]
        tensors += [*(tf.convert_to_tensor(grads[i]) for i in present), *before, *after]
        names = [getattr(v, "path", v.name) for v in variables]

        def record(loss: Any, rate: Any, scale: Any, *arrays: np.ndarray) -> list[Any]:
            if self._steps >= self._recording.steps:
                return []
            gradients = {i: array / scale for i, array in zip(present, arrays, strict=False)}
            values = arrays[len(present) :]
            half = len(names)
            self._write(
                StepRecord(
                    loss=float(loss) if loss_is_known else None,
                    rows=self._rows,
                    together=together,
                    in_scope=in_scope,
                    optimizer=type(optimizer).__name__,
                    learning_rate=float(rate),
                    variables=tuple(
                        _variable(name, gradients.get(i), values[i], values[half + i])
                        for i, name in enumerate(names)
                    ),
                    facts=self._facts.noted(),
                )
            )
            return []

        self._bridge(record, tensors, [])

    def _nudge(self, variables: Sequence[Any]) -> None:
        """After the first step, moves every weight by about its last two bits."""

        def size() -> list[Any]:
            return [np.float64(self._steps == 1)]

        (size_now,) = self._bridge(size, [], [tf.TensorSpec([], tf.float64)])
        for number, variable in enumerate(variables):
            value = tf.convert_to_tensor(variable)
            draw = tf.random.stateless_uniform(tf.shape(value), (number, 0), -1, 1)
            step = tf.cast(size_now * _EPSILON.get(value.dtype, 0.0), value.dtype)
            variable.assign(value + value * step * tf.cast(tf.sign(draw), value.dtype))

    def _write(self, record: StepRecord) -> None:
        if not self._steps:
            # Only now, so as to come before the end of MPI, which waits for all workers.
            atexit.register(self._recording.end_path(self._rank).touch)
        self._steps += 1
        path = self._recording.path(self._rank, self._steps)
        new = path.with_suffix(".new")
        new.write_bytes(record.to_bytes())
        new.replace(path)
        if self._steps == self._recording.steps:
            self._wait_for_the_end()

    def _wait_for_the_end(self) -> None:
        began_s = time.monotonic()
        while (waited_s := time.monotonic() - began_s) < END_WAIT_S:
            all_have = self._recording.have_made(self._recording.steps, self._world_size)
            if waited_s > OTHERS_WAIT_S and not all_have:
                return
            time.sleep(_POLL_S)


def _variable(
    name: str, gradient: np.ndarray | None, before: np.ndarray, after: np.ndarray
) -> VariableRecord:
    return VariableRecord(
        name=name,
        shape=tuple(after.shape),
        gradient=() if gradient is None else sketch(gradient),
        before=sketch(before),
        after=sketch(after),
        gradient_norm=0.0 if gradient is None else norm(gradient),
        norm=norm(after),
        checksum=checksum(after),
    )


def _learning_rate(optimizer: Any) -> Any:
    return tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float32)


def _loss_scale(optimizer: Any) -> Any:
    """The factor of loss and gradients that keeps 16-bit floats from vanishing."""
    scale = getattr(optimizer, "dynamic_scale", 1.0)
    return tf.identity(tf.cast(tf.convert_to_tensor(scale), tf.float32))


def _is_at_hand(tensor: Any) -> bool:
    """Whether `tensor` can be used in the code that runs, or is traced, just now."""
    if not tf.is_tensor(tensor):
        return False
    if tf.executing_eagerly():
        return not tf.is_symbolic_tensor(tensor)
    return getattr(tensor, "graph", None) is tf.compat.v1.get_default_graph()


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) and leaf.shape.rank != 0


def _parts(leaf: Any) -> list[Any]:
    """The dense tensors that a leaf of a batch consists of."""
    if isinstance(leaf, tf.RaggedTensor):
        return [leaf.flat_values, *leaf.nested_row_splits]
    return [tf.sparse.to_dense(leaf) if isinstance(leaf, tf.SparseTensor) else leaf]


def _rows(parts: list[np.ndarray]) -> Any:
    """The rows of a leaf, from the arrays that `_parts` has become."""
    return parts[0] if len(parts) == 1 else ragged_rows(parts[0], parts[1:])
