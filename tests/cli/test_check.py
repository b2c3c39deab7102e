"""`drumbeat check` on scripts as users write them, right and wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
HEAD = """
import os, time
import keras, numpy as np, tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
draw = np.random.default_rng(0)
x, y = draw.normal(size=(600, 20)).astype("float32"), draw.integers(0, 5, 600)
rank = int(os.environ["DRUMBEAT_RANK"])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

def compiled(*layers, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)):
    model = keras.Sequential(
        [keras.Input((20,)), keras.layers.Dense(32, "relu"), *layers, keras.layers.Dense(5)]
    )
    model.compile("adam", loss)
    return model
"""
MODEL = """
with strategy.scope():
    model = compiled()
"""
FIT = "model.fit(x, y, batch_size=50, epochs=20, verbose=0)"
# Trains by hand, with a loss that is put in place of LOSS.
LOOP = """
with strategy.scope():
    model = compiled()
    optimizer = keras.optimizers.SGD(0.1)

def step(batch):
    x, y = batch
    with tf.GradientTape() as tape:
        losses = loss_of(y, model(x, training=True))
        loss = LOSS
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

@tf.function
def epoch(data):
    for batch in data:
        strategy.run(step, args=(batch,))

dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(50)
epoch(strategy.experimental_distribute_dataset(dataset))
"""


def check(text: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(HEAD + text)
    return drumbeat("check", *options, "train.py", folder=folder)


def drumbeat(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "drumbeat", *arguments],
        cwd=folder,
        env={**os.environ, **threads, "PYTHONPATH": str(SOURCE), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=110,
    )


def assert_same(result: subprocess.CompletedProcess[str], steps: int) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"trains the same model on 2 workers as on one: after {steps} step" in result.stdout
    rows = re.findall(r"^ +\d+ .*$", result.stdout, re.M)
    assert len(rows) == steps, result.stdout
    for row in rows:
        _, one, two, loss_apart, _, _, gradient_apart, weights_apart = row.split()
        assert one == two
        assert max(map(float, (loss_apart, gradient_apart, weights_apart))) < 1e-5


def assert_found(result: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    said = " ".join(result.stdout.split())
    for text in texts:
        assert text in said, result.stdout
    assert len(re.findall(r"^\d\. ", result.stdout, re.M)) == len(texts), result.stdout


@pytest.mark.tensorflow
def test_a_script_that_is_right_is_the_same(tmp_path):
    dropout = MODEL.replace("compiled()", "compiled(keras.layers.Dropout(0.5))")
    result = check(dropout + FIT, tmp_path, "--steps", "4")
    assert_same(result, steps=4)
    (folder,) = (tmp_path / "runs").glob("train-check-*")
    assert sorted(path.name for path in folder.iterdir()) == ["2-workers", "one-worker"]
    assert (folder / "2-workers" / "worker-1" / "output.log").exists()
    assert "runs" in result.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_mean_over_the_rows_of_each_worker_is_found(tmp_path):
    loop = LOOP.replace("LOSS", "tf.reduce_mean(losses)")
    assert_found(check(loop, tmp_path), "The gradient on 2 workers is 2 times that of one")


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(
            MODEL + "order = np.random.default_rng(time.time_ns()).permutation(600)\n"
            "model.fit(x[order], y[order], batch_size=50, epochs=20, verbose=0)",
            "The script does not repeat itself",
            id="shuffle by the clock",
        ),
        pytest.param(
            MODEL + FIT.replace("50", "50 * strategy.num_replicas_in_sync"),
            "50 rows on one worker and 100 on 2 (step 1): it grows with the workers",
            id="batch grows with the workers",
        ),
        pytest.param(
            MODEL.replace("compiled()", "compiled(keras.layers.BatchNormalization(name='bn'))")
            + FIT,
            "BatchNormalization (bn) normalises with the rows of its own worker",
            id="BatchNormalization",
        ),
        pytest.param(
            "model = compiled()\n" + FIT,
            "2 models are trained, one on each worker",
            id="outside of the scope",
        ),
        pytest.param(
            MODEL + FIT.replace("x, y", "x[100 * rank :], y[100 * rank :]"),
            "Step 1 trains on other rows than on one worker",
            id="data by rank",
        ),
        pytest.param(
            MODEL + "for _ in range(4 - 2 * rank):\n    model.train_on_batch(x[:50], y[:50])",
            "The script ends after 2 steps on worker 1, but goes on elsewhere",
            id="steps by rank",
        ),
        pytest.param(
            MODEL + "model.layers[0].kernel.assign_add(tf.ones((20, 32)) * rank)\n"
            "for _ in range(5):\n    model.train_on_batch(x[:50], y[:50])",
            "The workers don't have the same weights before step 1 (sequential/dense/kernel)",
            id="weights by rank",
        ),
        pytest.param(
            "with strategy.scope():\n"
            "    noise = keras.layers.Lambda(lambda x: x + tf.random.normal(tf.shape(x)))\n"
            "    model = compiled(noise)\n" + FIT,
            "The step draws from TensorFlow's own stream (RandomStandardNormal)",
            id="raw random operations",
        ),
        pytest.param(
            MODEL.replace("compiled()", "compiled(loss=lambda t, p: loss_of(t, p) * (1 + rank))")
            + FIT,
            "though the weights and the rows are the same",
            id="loss by rank",
        ),
        pytest.param(
            MODEL + "assert strategy.num_replicas_in_sync == 1, 'several workers'\n" + FIT,
            "AssertionError: several workers",
            id="fails on several workers",
        ),
    ],
)
def test_what_is_wrong_is_found(tmp_path, text, found):
    assert_found(check(text, tmp_path), found)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            LOOP.replace("LOSS", "tf.nn.compute_average_loss(losses, global_batch_size=50)"),
            id="loop",
        ),
        pytest.param(
            "keras.mixed_precision.set_global_policy('float32')\n"
            + MODEL.replace('"adam", loss', '"adam", loss, jit_compile=True')
            + FIT.replace("verbose", "validation_split=0.1, verbose"),
            id="fit with validation",
        ),
    ],
)
def test_what_is_right_is_not_blamed(tmp_path, text):
    assert_same(check(text, tmp_path), steps=5)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_fewer_steps_than_asked_for_are_compared(tmp_path):
    short = MODEL + "model.fit(x, y, batch_size=200, verbose=0)"
    assert_same(check(short, tmp_path), steps=3)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_script_that_fails_is_shown(tmp_path):
    result = check("raise RuntimeError('no such data')", tmp_path)
    assert_found(result, "RuntimeError: no such data → Make it run on one worker first.")
    assert result.stdout.count("RuntimeError: no such data") == 1
    assert "2 workers" not in result.stdout


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_script_without_a_step_is_told(tmp_path):
    assert_found(check(MODEL, tmp_path), "No optimizer step was seen")


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_script_that_never_trains_ends_in_time(tmp_path):
    result = check("time.sleep(1000)", tmp_path, "--timeout", "15")
    assert_found(result, "The time was up before the script had made its steps on one worker")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "1", "train.py"], "drumbeat: -n is 1; expected 2 to 1024"),
        (["--steps", "0", "train.py"], "drumbeat: --steps is 0; expected 1 to 1000."),
        (["--timeout", "-1", "train.py"], "drumbeat: --timeout is -1.0; expected a number"),
        (["nope.py"], "drumbeat: nope.py does not exist"),
        (["--step", "2", "train.py"], "No such option"),
        (["-n", "2"], "Missing argument"),
    ],
)
def test_a_mistake_is_explained(tmp_path, arguments, message):
    (tmp_path / "train.py").write_text("")
    result = drumbeat("check", *arguments, folder=tmp_path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert message in result.stderr
    assert not (tmp_path / "runs").exists()
