"""Where a step is cut into parts, and how the wait for a batch is seen inside of a graph."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from drumbeat.collectives.times import CollectiveTimes
from drumbeat.state.step_times import StepTimes

pytestmark = pytest.mark.tensorflow


class Machine:
    """A clock, and collectives and input that take what they are told to."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.collectives = CollectiveTimes()
        self.input_s = 5.0

    def work(self, seconds: float) -> None:
        self.now_s += seconds

    def wait_for_batch(self, seconds: float) -> None:
        self.now_s += seconds
        self.input_s += seconds

    def exchange(self, waiting_s: float, transfer_s: float) -> None:
        self.now_s += waiting_s + transfer_s
        self.collectives.waiting_s += waiting_s
        self.collectives.transfer_s += transfer_s


def test_each_part_of_a_step_is_counted_once():
    from drumbeat.training.step_clock import StepClock

    machine = Machine()
    clock = StepClock(machine.collectives, lambda: machine.input_s, lambda: machine.now_s)

    def step(number: int) -> None:
        machine.wait_for_batch(2.0)
        machine.work(8.0 if number else 1000.0)
        machine.exchange(3.0, 1.0)

    function = clock.timed(step)

    def generator() -> Iterator[int]:
        for number in range(3):
            yield number
            machine.work(0.5)  # snapshots
            machine.exchange(0.25, 0.0)
            clock.made(2)

    for number in clock.around(generator()):
        machine.work(0.125)
        function(number)
        machine.work(0.25)
        machine.exchange(0.0, 0.125)
    # Between epochs: a collective that belongs to no step.
    machine.exchange(50.0, 50.0)
    machine.work(70.0)

    # The first execution, of two steps, is left out; the last one's way back is not over.
    assert clock.read() == StepTimes(
        steps=4,
        input_s=4.0,
        compute_s=16.0,
        communication_s=2.25,
        waiting_s=6.25,
        callbacks_s=0.75,
        other_s=0.5,
    )


def test_a_function_that_is_not_known_is_the_step():
    from drumbeat.training.step_clock import StepClock

    machine = Machine()
    clock = StepClock(machine.collectives, lambda: machine.input_s, lambda: machine.now_s)
    for _ in clock.around(iter(range(3))):
        machine.work(4.0)
        clock.made(1)
    assert clock.read().compute_s == 8.0
    assert clock.read().callbacks_s == 0.0


@pytest.mark.parametrize("optional", [False, True])
def test_the_wait_for_a_batch_is_seen_in_a_graph(monkeypatch, optional):
    import tensorflow as tf

    from drumbeat.tf_internals import OwnedIterator, wrap_next
    from drumbeat.training.input_times import InputTimes

    for name in ("_next_internal", "get_next_as_optional"):
        monkeypatch.setattr(OwnedIterator, name, getattr(OwnedIterator, name))
    times = InputTimes()
    wrap_next(times.fetch)

    def slow(x):
        time.sleep(0.02)
        return x

    options = tf.data.Options()
    options.autotune.enabled = False  # or TensorFlow puts a prefetch at the end
    data = tf.data.Dataset.range(9).with_options(options)
    data = data.map(lambda x: tf.ensure_shape(tf.py_function(slow, [x], x.dtype), []))
    taken = tf.constant(0, tf.int64)

    @tf.function
    def step(iterator, seen):
        if optional:
            return seen + iterator.get_next_as_optional().get_value()
        return seen + iterator.get_next()

    iterator = iter(data)
    taken = step(iterator, taken)  # not listened to
    assert times.total_s == 0.0
    step = tf.function(step.python_function)
    for _ in range(5):
        with times.listening():
            taken = step(iterator, taken)
    assert int(taken) == 15
    in_graph_s = times.total_s
    assert in_graph_s >= 5 * 0.02
    with times.listening():
        assert int(next(iterator)) == 6
    assert times.total_s >= in_graph_s + 0.02


def test_which_callback_takes_how_long():
    import keras

    from drumbeat.training import callback_times

    class Slow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.02)

    class Adds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            together.callbacks.append(Slow())

    together = keras.callbacks.CallbackList([Slow(), Adds()])
    before = list(together.callbacks)
    spent_s: dict[str, float] = {}
    callback_times._call(lambda: together.on_epoch_end(0), together, spent_s)
    assert spent_s["Slow"] >= 0.02
    assert set(spent_s) == {"Slow", "Adds"}
    # The list is as it was, with what a hook has added.
    assert together.callbacks[: len(before)] == before
    assert [type(c).__name__ for c in together.callbacks] == ["Slow", "Adds", "Slow"]
