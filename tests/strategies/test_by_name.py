"""The same script under every strategy, with only --strategy changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from drumbeat.cluster.strategy_names import NAMES

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SOURCE = Path(__file__).parents[2] / "src"
SCRIPT = """
import keras, numpy as np, tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
rng = np.random.default_rng(0)
x = rng.normal(size=(500, 8)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
curve = model.fit(x, y, batch_size=32, epochs=3, verbose=0).history["loss"]
print(type(strategy).__name__, "curve", *curve)
"""


def curve(name: str, folder: Path) -> tuple[str, np.ndarray]:
    """The class of the strategy that trained, and the losses of its epochs."""
    options = ["-n", "2", "--ps", "1", "--strategy", name, "--seed", "7", "--run-dir", name]
    done = subprocess.run(
        [sys.executable, "-m", "drumbeat", "run", *options, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    found = re.search(r"0\] (\w+) curve ([\d. ]+)", done.stdout)
    assert found, done.stdout
    return found[1], np.array(found[2].split(), float)


def test_the_same_file_trains_under_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    found = {name: curve(name, tmp_path) for name in NAMES}
    assert {name: kind for name, (kind, _) in found.items()} == {
        "one-device": "_DefaultDistributionStrategy",
        "mirrored": "MirroredStrategy",
        "central-storage": "CentralStorageStrategy",
        "multi-worker": "DataParallelStrategy",
        "parameter-server": "ParameterServerStrategy",
    }
    alone = found["one-device"][1]
    for name in ("mirrored", "central-storage", "multi-worker"):
        np.testing.assert_allclose(found[name][1], alone, rtol=1e-4, err_msg=name)
    # Gradients of weights that are a step old.
    np.testing.assert_allclose(found["parameter-server"][1], alone, rtol=0.1)
    assert alone[-1] < 0.9 * alone[0]
