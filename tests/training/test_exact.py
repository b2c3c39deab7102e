"""Exact mode: the same bytes however the virtual shards are spread over workers.

`make guarantees` does this for 1, 2, 4 and 8 workers and whole models; here are
the ways to train (fit, loops of one's own, several optimizers, states of layers).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("scenarios.py")
NAMES = (
    "batch_norm_is_alike_on_all_workers",
    "batch_norm_synchronized",
    "custom_loop",
    "custom_train_step",
    "embedding_sparse_gradients",
    "last_batch_of_one",
    "masked_sequence_loss",
    "metric_results_in_a_custom_loop",
    "on_batch",
    "overflow_skips_the_step_everywhere",
    "random_layers_train_as_on_one_worker",
    "run_eagerly",
    "two_optimizers",
)
# Each way that a collective is used in.
OVER_TENSORFLOW = NAMES[1:6]
RUNS = {
    "one": (NAMES, "-n", "1"),
    "two": (NAMES, "-n", "2"),
    "two-tensorflow": (OVER_TENSORFLOW, "-n", "2", "--collectives", "tensorflow"),
}


class Outcomes:
    """What the scenarios have come to in each of `RUNS`, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, run: str) -> Path:
        own = self._folder / run
        if not own.exists():
            own.mkdir()
            scenarios, *options = RUNS[run]
            command = [sys.executable, "-m", "drumbeat", "run", "--exact-shards", "2", *options]
            command += ["--run-dir", str(self._folder / f"run-{run}"), str(SCRIPT), str(own)]
            done = subprocess.run(
                [*command, *scenarios], capture_output=True, text=True, timeout=250
            )
            assert done.returncode == 0, done.stdout[-4000:]
        return own


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return Outcomes(tmp_path_factory.mktemp("exact"))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        *((name, "two") for name in NAMES),
        *(pytest.param(name, "two-tensorflow", marks=pytest.mark.slow) for name in OVER_TENSORFLOW),
    ],
)
def test_same_bytes_on_one_worker_and_on_two(outcomes: Outcomes, name: str, run: str) -> None:
    one, two = (load(outcomes.of(which), name, 0) for which in ("one", run))
    assert one.keys() == two.keys()
    # What depends on the number of workers, but not on that of virtual shards.
    exact = {key for key in one if key.startswith("per_size_exact_")}
    compared = [key for key in one if key in exact or not key.startswith(("own_", "per_size_"))]
    assert compared
    for key in compared:
        np.testing.assert_array_equal(two[key], one[key], err_msg=key)


def load(folder: Path, name: str, rank: int) -> dict[str, np.ndarray]:
    trouble = folder / f"{name}.2.{rank}.txt"
    assert not trouble.exists(), trouble.read_text()
    with np.load(folder / f"{name}.2.{rank}.npz") as arrays:
        return dict(arrays)


DIFFERENT = """
import keras, numpy as np, tensorflow as tf, drumbeat
keras.utils.set_random_seed(1)
strategy = drumbeat.strategy(exact=4)
assert strategy.num_replicas_in_sync == 4
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.arange(40, dtype="float32").reshape(10, 4)
model.fit(x, x[:, :1], batch_size=5, epochs=2, verbose=0)
batches = tf.data.Dataset.from_tensor_slices(x).batch(5)
@tf.function(input_signature=[tf.TensorSpec([None, 4]), tf.TensorSpec([4])])
def totals(rows, scale):
    return strategy.run(weigh, args=(rows,), kwargs={"scale": scale})
def weigh(rows, scale):
    return tf.reduce_sum(rows * scale)
scale = tf.constant([1.0, 2.0, 3.0, 4.0])
for rows in strategy.experimental_distribute_dataset(batches):
    total = strategy.reduce("SUM", totals(rows, scale), axis=None)
assert float(total) == float(tf.reduce_sum(x[5:] * scale)), total
print("weights", model.get_weights()[0].tobytes().hex())
"""


@pytest.mark.slow
def test_without_drumbeat_run_it_is_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DIFFERENT)
    alone = [sys.executable, str(script)]
    onednn = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"}  # as `drumbeat run` sets it
    two = [sys.executable, "-m", "drumbeat", "run", "-n", "2", "--run-dir", str(tmp_path / "run")]
    said = [
        subprocess.run(command, capture_output=True, text=True, timeout=100, env=onednn).stdout
        for command in (alone, [*two, str(script)])
    ]
    digests = {part for text in said for part in text.split() if len(part) == 32}
    assert len(digests) == 1, said
