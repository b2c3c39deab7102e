"""Steps that are under way: how many, and what Keras is handed."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import tensorflow as tf

from drumbeat.training.coordinated import failures, loops, steps
from drumbeat.training.coordinated.loops import AHEAD, Pass
from drumbeat.training.coordinated.window import Finished

pytestmark = pytest.mark.tensorflow


class OneAfterAnother:
    """A window whose functions end in the order in which they were put."""

    def __init__(self) -> None:
        self.flying: deque[tuple[int, int]] = deque()
        self.most = 0

    def __len__(self) -> int:
        return len(self.flying)

    def put(self, number: int, function: int, arguments: Any) -> None:
        self.flying.append((number, function))
        self.most = max(self.most, len(self.flying))

    def take(self) -> Finished:
        number, made = self.flying.popleft()
        return Finished(number, (number, 1.0, made))


class Counts:
    """Stands for the functions of a model: returns how many batches it was asked for."""

    def on_batches(self, spec: Any, count: int) -> int:
        return count

    def on_iterator(self, iterator: Any, spec: Any, count: int) -> int:
        return count


@pytest.mark.parametrize(
    ("batches", "total", "per_execution", "handed", "made"),
    [
        (10, 10, 1, 10, 10),
        (10, 10, 3, 4, 10),
        (10, 4, 1, 4, 4),
        (2, 2, 5, 1, 2),
        (7, None, 1, 7, 7),
        (7, None, 2, 4, 7),
    ],
)
def test_keras_gets_each_step_once(
    batches: int, total: int | None, per_execution: int, handed: int, made: int
) -> None:
    window = OneAfterAnother()
    begun = Pass(window, workers=2)  # type: ignore[arg-type]
    iterator = iter(tf.data.Dataset.range(batches).batch(1))
    asked = ((at, at + per_execution - 1, iterator) for at in range(0, 1000, per_execution))
    logs = []
    for begin, _, data in begun.around(asked, total, per_execution):
        if total is not None and begin >= total:
            break
        try:
            logs.append(begun.step(Counts(), data, per_execution))  # type: ignore[arg-type]
        except StopIteration:
            break
    assert logs == list(range(handed))
    assert begun.is_quiet, "nothing is under way behind the last step"
    assert (begun.steps, begun.late) == (made, handed)
    assert window.most <= 2 * AHEAD


def test_a_pass_that_drains_begins_nothing_new() -> None:
    window = OneAfterAnother()
    begun = Pass(window, workers=2)  # type: ignore[arg-type]
    begun.left = 100
    iterator = iter(tf.data.Dataset.range(100).batch(1))
    assert begun.step(Counts(), iterator, 1) == 0  # type: ignore[arg-type]
    under_way = len(window)
    assert under_way == 2 * AHEAD - 1
    begun.draining = True
    for number in range(1, under_way + 1):
        assert begun.step(Counts(), iterator, 1) == number  # type: ignore[arg-type]
    assert begun.is_quiet
    assert begun.step(Counts(), iterator, 1) == under_way + 1  # type: ignore[arg-type]
    assert not begun.is_quiet
    begun.finish()
    assert begun.is_quiet


class OfWorkers(tf.distribute.coordinator.PerWorkerValue):
    """Iterators on workers, by name only."""

    def __init__(self) -> None:
        pass


class TwoWorkers(OneAfterAnother):
    """Each function runs on one or the other in turn; each has so many batches."""

    def __init__(self, *batches: int) -> None:
        super().__init__()
        self.left = list(batches)
        self.turn = 0

    def take(self) -> Finished:
        number, asked = self.flying.popleft()
        self.turn = 1 - self.turn
        made = min(asked, self.left[self.turn])
        self.left[self.turn] -= made
        return Finished(number, (number, 0.0, made))


@pytest.mark.parametrize("batches", [(5, 5), (1, 9), (0, 6), (3, 4)])
@pytest.mark.parametrize("per_execution", [1, 3])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("drains", [True, False])
def test_workers_data_is_used_up_though_they_end_at_different_times(
    monkeypatch: pytest.MonkeyPatch,
    batches: tuple[int, int],
    per_execution: int,
    is_known: bool,
    drains: bool,
) -> None:
    monkeypatch.setattr(loops, "specs_of_iterators", lambda iterator: (None, None))
    begun = Pass(TwoWorkers(*batches), workers=2)  # type: ignore[arg-type]
    total = sum(batches) if is_known else None
    asked = ((at, at + per_execution - 1, OfWorkers()) for at in range(0, 1000, per_execution))
    for begin, _, iterator in begun.around(asked, total, per_execution):
        if total is not None and begin >= total:
            break
        begun.draining = drains  # as for a snapshot: what follows is begun all the same
        try:
            begun.step(Counts(), iterator, per_execution)  # type: ignore[arg-type]
        except StopIteration:
            break
    assert begun.steps == sum(batches)


def test_batches_put_together_are_taken_apart() -> None:
    spec = (tf.TensorSpec([None, 2]), {"y": tf.TensorSpec([None], tf.string)})
    batches = [(tf.ones([n, 2]) * n, {"y": tf.fill([n], str(n))}) for n in (3, 1, 2)]
    assert steps.can_pack(spec)
    packed, rows = steps.pack(batches, spec)
    assert rows.numpy().tolist() == [3, 1, 2]
    assert packed[1]["y"].numpy().tolist() == [b"3"] * 3 + [b"1"] + [b"2"] * 2
    assert not steps.can_pack((tf.TensorSpec([], tf.float32),))
    assert not steps.can_pack((tf.RaggedTensorSpec([None, None], tf.int32),))


DETECTED = "Graph execution error:\n\nDetected at node a/Gather defined at (most recent):\n  File "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f'{DETECTED}"x.py", line 1\n\nindices[0] = 9 is not in [0, 5)\n\t [[{{{{node a}}}}]]\n'
            "Additional GRPC error information from remote target /job:worker/replica:0/task:1",
            "A step failed on worker 1: indices[0] = 9 is not in [0, 5)",
        ),
        (
            "2 root error(s) found.\n  (0) INVALID_ARGUMENT:  bad rows\n\t [[{{node a}}]]\n"
            "  (1) CANCELLED: /job:worker/replica:0/task:0 went",
            "A step failed on worker 0: bad rows",
        ),
        ("plain", "A step failed on a worker: plain"),
    ],
)
def test_a_failure_of_a_worker_is_a_sentence(text: str, expected: str) -> None:
    told = failures.told(tf.errors.InvalidArgumentError(None, None, text))
    assert isinstance(told, tf.errors.InvalidArgumentError)
    assert str(told) == expected


def test_a_lost_server_is_no_failure_of_a_worker() -> None:
    text = "GRPC error information from remote target /job:ps/replica:0/task:1"
    told = failures.told(tf.errors.UnavailableError(None, None, text))
    assert isinstance(told, failures.ServerLost)
    assert "ps 1 is gone" in str(told)
