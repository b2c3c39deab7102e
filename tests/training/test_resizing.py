"""States of some workers, put back on more or fewer of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from drumbeat.state.format import State, pack
from drumbeat.training import holdings, snapshots
from drumbeat.training.holdings import Kind
from drumbeat.training.integrate import integrate
from drumbeat.training.resizing import names_of

pytestmark = pytest.mark.tensorflow


class Best(keras.metrics.Metric):
    """Counts from 1 on, and as Keras 2 merges by a method."""

    def __init__(self, **how) -> None:
        super().__init__(**how)
        self.value = self.add_variable((), "ones", name="value")

    def merge_state(self, metrics) -> None:
        for metric in metrics:
            self.value.assign(tf.maximum(self.value, metric.value))

    def result(self):
        return self.value


class Ones(keras.metrics.Metric):
    """Adds up from 1 on."""

    def __init__(self, aggregation="sum", **how) -> None:
        super().__init__(**how)
        self.value = self.add_variable((), "ones", aggregation=aggregation, name="value")

    def result(self):
        return self.value


@pytest.fixture(scope="module", autouse=True)
def integrated() -> None:
    integrate()


def state_of(held, workers, *, shards=1, units=None) -> State:
    """Each worker's values, for each of `held` in turn; those that are alike once."""
    names, arrays = names_of(held), {}
    for rank, values in enumerate(workers):
        pairs = zip(held, names, values, strict=True)
        own = {name: np.full_like(each.view, value) for each, name, value in pairs}
        alike = {name for i, name in enumerate(names) if len({w[i] for w in workers}) == 1}
        arrays |= {name: own[name] for name in alike}
        own = {name: value for name, value in own.items() if name not in alike}
        arrays[f"own{rank}"] = np.frombuffer(pack(State(3, {}, own)), np.uint8)
    meta = {
        "paths": [each.path for each in held if not each.shard],
        "workers": len(workers),
        "shards": shards,
        "units": units or [1] * len(workers),
    }
    return State(3, meta, arrays)


def put_back(state, found, size) -> list[list[float]]:
    """What each of `size` workers has then."""
    after = []
    for rank in range(size):
        snapshots.put_back(state, found, rank, size)
        after.append([each.view.item() for each in found.held])
    return after


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        (lambda: keras.metrics.Sum(), [4, 6], 10),
        (lambda: keras.metrics.Sum(), [4, 4], 8),
        (lambda: Ones(), [3, 4], 6),
        (lambda: Ones("only_first_replica"), [3, 4], (3, 3, 3)),
        (lambda: Ones("mean"), [3, 4], (3.5, 3.5, 3.5)),
        (lambda: Best(), [3, 7], 7),
    ],
    ids=["sum", "alike", "not from zero", "only_first_replica", "mean", "merge_state"],
)
@pytest.mark.parametrize("size", [1, 3])
def test_metrics_go_on_with_what_all_had_counted(make, before, after, size):
    metric = make()
    start = float(metric.variables[0].value)
    found = holdings.of([metric])
    state = state_of(found.held, [[value] for value in before])
    expected = after if isinstance(after, tuple) else (after, start, start)
    assert put_back(state, found, size) == [[value] for value in expected[:size]]


def test_moving_statistics_become_their_mean_by_shares_and_own_variables_stay():
    layer = keras.layers.BatchNormalization(scale=False, center=False)
    layer.build((None, 1))
    own = tf.Variable(0.0)
    found = holdings.of([layer, [own]])
    assert [each.kind for each in found.held] == [Kind.STATISTIC, Kind.STATISTIC, Kind.OTHER]
    state = state_of(found.held, [[1, 5, 7], [4, 5, 8]], units=[2, 1])
    assert put_back(state, found, 3) == [[2, 5, 7], [2, 5, 8], [2, 5, 7]]


def test_in_exact_mode_each_virtual_shard_keeps_what_it_counted():
    metric = keras.metrics.Sum()
    counts = [3, 1, 4, 1, 5, 9]
    before = holdings.of([keras.metrics.Sum()], shards=3)
    state = state_of(before.held, [counts[:3], counts[3:]], shards=3)
    found = holdings.of([metric], shards=2)
    assert put_back(state, found, 3) == [counts[:2], counts[2:4], counts[4:]]
