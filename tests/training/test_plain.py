"""Scripts that name no strategy: all workers train their models, as one worker would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "plain.py"
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]


def run(script: Path, *options: str, arguments: tuple[str, ...] = ()) -> str:
    command = [sys.executable, "-m", "drumbeat", "run", "--seed", "5", *options]
    done = subprocess.run(
        [*command, str(script), *arguments],
        cwd=script.parent, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def outcome(
    folder: Path, name: str, *options: str, cases: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    path = folder / f"{name}.npz"
    text = run(SCRIPT, *options, "--run-dir", str(folder / name), arguments=(str(path), *cases))
    assert "own copy" not in text
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def of_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return outcome(tmp_path_factory.mktemp("one"), "one")


@pytest.fixture(scope="module")
def of_one_with_keras_2(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return outcome(tmp_path_factory.mktemp("one"), "one", "--keras", "2")


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    assert len(got) > 20
    for key, value in expected.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "options",
    [
        ("-n", "2"),
        pytest.param(("-n", "3"), marks=SLOW),
        pytest.param(("--devices-per-worker", "2"), marks=SLOW),
    ],
    ids=" ".join,
)
def test_the_model_is_that_of_one_worker(of_one, tmp_path, options):
    assert_same(outcome(tmp_path, "several", *options), of_one)


@SLOW
def test_it_is_so_with_keras_2(of_one_with_keras_2, tmp_path):
    assert_same(outcome(tmp_path, "two", "-n", "2", "--keras", "2"), of_one_with_keras_2)


@SLOW
def test_exact_mode_gives_the_same_bytes(tmp_path):
    one, two = (
        outcome(tmp_path, name, "-n", count, "--exact", cases=("arrays", "subclassed"))
        for name, count in (("one", "1"), ("two", "2"))
    )
    for key, value in one.items():
        np.testing.assert_array_equal(two[key], value, err_msg=key)


@SLOW
def test_what_a_loss_remembers_moves_once_a_step(tmp_path):
    one, two = (
        outcome(tmp_path, name, "-n", count, cases=("loss_with_a_state",))
        for name, count in (("one", "1"), ("two", "2"))
    )
    for key, value in one.items():
        np.testing.assert_allclose(two[key], value, rtol=1e-5, err_msg=key)


MODEL = """
import keras, numpy as np, tensorflow as tf
x = np.ones((8, 2), "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""
LOOP = """
optimizer = keras.optimizers.SGD(0.1)
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""


MIXED = """
import keras, numpy as np, tensorflow as tf
from drumbeat.errors import DataError
x = np.arange(40, dtype="float32").reshape(10, 4) / 40
class Mixed(keras.Model):
    def __init__(self, how):
        super().__init__()
        self.dense, self.how = keras.layers.Dense(3), how
    def call(self, x):
        return self.how(self.dense(x), self.dense(-x))
def loss(_, scores):
    return tf.sqrt(tf.reduce_mean(tf.square(scores)))
for how in (lambda a, b: tf.concat([a, b], 0), lambda a, b: a @ tf.transpose(b)):
    for eager in (False, True):
        model = Mixed(how)
        model.compile("sgd", loss, run_eagerly=eager)
        try:
            model.fit(x, x, batch_size=10, verbose=0)
        except DataError as error:
            print("refused:", error)
"""


@SLOW
def test_outputs_whose_rows_cannot_be_told_are_refused_by_all_workers(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(MIXED)
    said = run(script, "-n", "2")
    behind = "with 10 entries along its first axis for 5 rows of this worker; expected one"
    assert said.count(behind) == 4
    assert said.count("drumbeat run -n 1.\n") == 4
    assert said.count("Without run_eagerly a reshape would be seen.") == 2
    assert said.count("refused: an output of the model has shape [rows, rows]") == 2


@SLOW
def test_with_parameter_servers_it_is_said_that_the_chief_trains_alone(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(MODEL + "model.fit(x, x[:, :1], verbose=0)")
    assert run(script, "--ps", "1").count("so the chief trains it alone") == 1


@SLOW
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (LOOP, "This training loop uses no strategy, so each of the 2 workers trains its own"),
        (
            "tf.distribute.MultiWorkerMirroredStrategy()\nmodel.fit(x, x[:, :1], verbose=0)",
            "This model was made outside of strategy.scope(), so each of the 2 workers",
        ),
        (
            "class Own(keras.Sequential):\n"
            "    def train_step(self, data):\n"
            "        return super().train_step(data)\n"
            "own = Own([keras.Input((2,)), keras.layers.Dense(1)])\n"
            "own.compile('sgd', 'mse')\n"
            "own.fit(x, x[:, :1], verbose=0)",
            "This model has a train_step of its own, whose loss may be one over the rows",
        ),
        (
            "x = np.ones((8, 2, 1), 'float32')\n"
            "layers = [keras.Input(batch_shape=(8, 2, 1)), keras.layers.LSTM(1, stateful=True)]\n"
            "model = keras.Sequential(layers)\n"
            "model.compile('sgd', 'mse')\n"
            "model.fit(x, x[:, 0], batch_size=8, verbose=0)",
            "This model has a stateful layer (lstm), which keeps a state for each row of a batch",
        ),
        (
            "class Loss(keras.losses.Loss):\n"
            "    def __call__(self, y_true, y_pred, sample_weight=None):\n"
            "        return tf.reduce_mean((y_true - y_pred) ** 2)\n"
            "model.fit(x, x[:, :1], verbose=0)\n"
            "model.compile(model.optimizer, Loss())\n"
            "model.train_on_batch(x, x[:, :1])\n"
            "model.fit(x, x[:, :1], verbose=0)\n",
            "This model has a loss (Loss) with a __call__ of its own",
        ),
        (
            "x = np.arange(16.0).reshape(8, 2)\n"
            "norm = keras.layers.BatchNormalization()\n"
            "model = keras.Sequential([keras.Input((2,)), norm, keras.layers.Dense(1)])\n"
            "model.compile('sgd', 'mse')\n"
            "model.fit(x, x[:, :1], epochs=2, verbose=0)",
            "moving_mean (and 1 more) is worked out from each worker's own rows",
        ),
        (
            "class Adds(keras.layers.Layer):\n"
            "    def call(self, z):\n"
            "        self.add_loss(tf.norm(z + tf.random.normal([2])))\n"
            "        return z\n"
            "model = keras.Sequential([Adds(name='own'), keras.layers.Dense(1)])\n"
            "model.compile('sgd', 'mse')\n"
            "model.fit(x, x[:, :1], epochs=2, verbose=0)\n"
            "model.compile('sgd', 'mse', run_eagerly=True)\n"
            "model.fit(x, x[:, :1], epochs=2, verbose=0)",
            "Whether what the layer own adds to the loss is a mean over the rows",
        ),
    ],
    ids=[
        "a loop",
        "a strategy that is not used",
        "a step of its own",
        "a stateful layer",
        "compiled anew",
        "moving statistics",
        "added losses",
    ],
)
def test_what_each_worker_trains_for_itself_is_said_once(tmp_path, body, said):
    script = tmp_path / "train.py"
    script.write_text(MODEL + body)
    assert run(script, "-n", "2").count(said) == 1
