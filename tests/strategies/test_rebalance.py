from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.data.shares import Shares
from drumbeat.strategies.rebalance import follow


@pytest.mark.parametrize(
    ("units", "busy_s", "expected"),
    [
        ((1, 1), [1.0, 1.0], [0.5, 0.5]),
        ((1, 1), [1.0, 1.04], [0.5, 0.5]),  # within the tolerance
        ((1, 1), [1.0, 3.0], [0.75, 0.25]),
        ((3, 1), [1.0, 1.0], [0.75, 0.25]),
        ((3, 1), [3.0, 1.0], [0.5, 0.5]),
        ((1, 1, 1), [1.0, 1.0, 2.0], [0.4, 0.4, 0.2]),
        ((1, 1), [1.0, 1000.0], [0.952, 0.048]),  # never nothing
        ((1, 1), [0.0, 1.0], [0.952, 0.048]),
    ],
)
def test_follow(units: tuple[int, ...], busy_s: list[float], expected: list[float]) -> None:
    shares = follow(Shares(units), busy_s)
    parts = [unit / sum(shares.units) for unit in shares.units]
    assert parts == pytest.approx(expected, abs=0.001)


def test_it_settles_where_all_are_busy_for_as_long() -> None:
    shares = Shares.equal(3)
    fixed_s, row_s = 0.2, [1.0, 2.0, 5.0]
    for _ in range(20):
        parts = [unit / sum(shares.units) for unit in shares.units]
        busy_s = [fixed_s + part * each for part, each in zip(parts, row_s, strict=True)]
        shares = follow(shares, busy_s)
    assert min(busy_s) > 0.94 * max(busy_s)


SCRIPT = """
    import json, os, sys, time
    import keras
    import numpy as np
    import tensorflow as tf

    rank = int(os.environ["DRUMBEAT_RANK"])
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    class Slow(keras.layers.Layer):
        "Takes three times as long for a row on worker 1."

        def call(self, x):
            def nap(v):
                time.sleep(len(v) * 2e-4 * (3 if rank else 1))
                return v

            y = tf.numpy_function(nap, [x], x.dtype)
            y.set_shape(x.shape)
            return x + tf.stop_gradient(y - x)

    x = np.random.default_rng(1).normal(size=(600, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), Slow(), keras.layers.Dense(1)])
        model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    history = model.fit(x, y, batch_size=64, epochs=8, verbose=0)
    loss = model.evaluate(x, y, batch_size=64, verbose=0)
    rows = len(model.predict(x, batch_size=64, verbose=0))
    if rank == 0:
        shares = strategy.extended.shares.units
        print(json.dumps([history.history["loss"], loss, rows, shares]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(120)
def test_a_slow_worker_takes_fewer_rows_and_the_curve_stays(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("\n".join(line[4:] for line in SCRIPT.splitlines()))
    found = {}
    for name, options in (("one", ["-n", "1"]), ("auto", ["-n", "2", "--shares", "auto"])):
        command = [sys.executable, "-m", "drumbeat", "run", "--run-dir", str(tmp_path / name)]
        done = subprocess.run(
            [*command, *options, str(script)], capture_output=True, text=True, timeout=100
        )
        lines = [line for line in done.stdout.splitlines() if "[[" in line]
        assert done.returncode == 0, done.stdout
        found[name] = json.loads(lines[0].partition("] ")[2])
    losses, loss, rows, _ = found["one"]
    assert found["auto"][0] == pytest.approx(losses, rel=1e-5)
    assert found["auto"][1] == pytest.approx(loss, rel=1e-5)
    assert found["auto"][2] == rows == 600
    first, second = found["auto"][3]
    assert 0.6 < first / (first + second) < 0.85
