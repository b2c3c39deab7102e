"""What Keras's loops call for a step, with parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.errors import ConfigError
from drumbeat.training.coordinated.fit import loops_of, strategy_of
from drumbeat.training.coordinated.loops import is_of_workers, without_optionals
from drumbeat.training.coordinated.steps import Steps


def integrate() -> None:
    """Put this in the place of Keras's functions, and of what is around them."""
    touch.wrap(touch.STEP_FUNCTION, _make_function)


def _make_function(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_function(self: Any, step_function: Callable[..., Any]) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return original(self, step_function)
        steps = Steps(self, step_function, strategy, trains=step_function == self.train_step)
        loops = loops_of(self)

        def function(iterator: Any) -> Any:
            if self.run_eagerly:
                return _eagerly(self, steps, iterator)
            return loops.now.step(steps, iterator, self.steps_per_execution)

        return function

    return make_function


def _eagerly(model: Any, steps: Steps, iterator: Any) -> Any:
    """The step in the chief's process, to look into it."""
    if is_of_workers(iterator):
        raise ConfigError(
            "run_eagerly=True runs each step in the chief's process, where a dataset function's "
            "batches aren't. Give fit a dataset, or leave out run_eagerly."
        )
    logs: Any = {}
    for _ in range(model.steps_per_execution):
        try:
            batch = next(iterator)
        except tf.errors.OutOfRangeError:
            raise StopIteration from None
        logs, _, _ = steps.eagerly(without_optionals(batch))
    return logs
