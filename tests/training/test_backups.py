"""Trainings that are stopped or killed and started again as a user would: the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.tensorflow
DRUMBEAT = (sys.executable, "-m", "drumbeat", "run", "-n", "2")
LIFE_S = 100

COMMON = """
    import hashlib, os, signal, sys, time
    import keras, numpy as np, tensorflow as tf

    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(-1)

    def data():
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(16)

    def model(*layers):
        layers += (keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.3))
        made = keras.Sequential([*layers, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile("adam", loss, metrics=["accuracy"])
        return made

    def outcome(model, history):
        variables = [*model.variables, *model.optimizer.variables]
        digest = hashlib.sha256(b"".join(v.numpy().tobytes() for v in variables)).hexdigest()
        return digest, history.epoch, history.history["loss"]

    class Told(keras.callbacks.Callback):
        # Tells the test where it is, and waits a moment for what the test then does.
        def __init__(self, pause_s):
            super().__init__()
            self.pause_s, self.steps = pause_s, 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.pause_s:
                print("step", self.steps, flush=True)
                time.sleep(self.pause_s)
"""
SEVERAL = (
    COMMON
    + """
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def train(epochs, pause_s):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            trained = model(keras.Input((6,)))
        first = trained.fit(data(), epochs=1, verbose=0)
        second = trained.fit(data(), epochs=epochs, verbose=0, callbacks=[Told(pause_s)])
        return outcome(trained, first), outcome(trained, second)

    disturbed = train(3, float(sys.argv[1]))
    assert disturbed == train(3, 0), "not as if nothing had happened"
    print("the same", flush=True)
"""
)


class Lives:
    """The lives of one job in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[str]] = []

    def script(self, text: str) -> str:
        (self.folder / "train.py").write_text(textwrap.dedent(text))
        return "train.py"

    def start(self, *command: str, until: str = "") -> subprocess.Popen[str]:
        """Starts the job, and returns when it has written `until`."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        self.running.append(process)
        assert process.stdout is not None
        for line in process.stdout if until else ():
            if line.rstrip().endswith(until):
                break
        return process

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        out, _ = process.communicate(timeout=LIFE_S)
        return process.returncode, out

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path)
    yield made
    made.close()


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The workers of an agent, by rank."""
    below = psutil.Process(process.pid).children(recursive=True)
    return sorted(
        (each for each in below if "drumbeat.launch.parent" in " ".join(each.cmdline())),
        key=lambda each: each.create_time(),
    )[1:]


def tell_agent(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


def tell_one_worker(process: subprocess.Popen[str]) -> None:
    workers(process)[1].terminate()


def kill_all(process: subprocess.Popen[str]) -> None:
    time.sleep(1)  # backups are made every 0.3 s
    process.kill()


@pytest.mark.timeout(2 * LIFE_S)
@pytest.mark.parametrize(
    ("disturb", "code"),
    [
        (tell_one_worker, 75),
        pytest.param(tell_agent, 75, marks=pytest.mark.slow),
        pytest.param(kill_all, -signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_job_goes_on_as_if_nothing_had_happened(
    lives: Lives, disturb: Callable[[subprocess.Popen[str]], None], code: int
) -> None:
    every = "0.3" if disturb is kill_all else "600"
    command = [*DRUMBEAT, "--backup-dir", "backups", "--backup-every", every]
    command += [lives.script(SEVERAL), "0.1"]
    first = lives.start(*command, until="step 8")
    disturb(first)
    assert lives.end(first)[0] == code
    code, out = lives.end(lives.start(*command))
    assert code == 0, out
    assert "Going on from step" in out
    assert "step 7\n" not in out
    assert out.count("the same") == 2


@pytest.mark.slow
@pytest.mark.timeout(3 * LIFE_S)
def test_a_finished_job_runs_the_rest_of_its_script_only(lives: Lives) -> None:
    command = [*DRUMBEAT, "--backup-dir", "backups", lives.script(SEVERAL), "0.01"]
    assert lives.end(lives.start(*command))[0] == 0
    code, out = lives.end(lives.start(*command))
    assert code == 0, out
    assert "Trainings of the script that were finished are passed over: 4." in out
    assert "step 1" not in out
    assert out.count("the same") == 2
    (lives.folder / "train.py").write_text(
        (lives.folder / "train.py").read_text().replace("Dense(8", "Dense(9")
    )
    code, out = lives.end(lives.start(*command))
    assert code == 2
    assert "train.py has been edited since" in out
    (lives.folder / "backups" / "drumbeat-ended.json").unlink()
    code, out = lives.end(lives.start(*command))
    assert code == 1
    assert "sequential/dense/kernel with float32 of shape [6, 8] where there is" in out
    assert f"The state came from the backups in {lives.folder / 'backups'}" in out


# keras#14862, tf#50516: patience was lost on a restart. keras#20712: a model that isn't built
# yet was refused. keras#19179: all epochs were repeated.
ALONE = (
    COMMON
    + """
    from drumbeat.callbacks import BackupAndRestore
    from drumbeat.training import journal

    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            print("epoch", epoch, flush=True)
            if epoch == 4 and sys.argv[1] == "dies":
                journal.own().backups.flush()
                os.kill(os.getpid(), signal.SIGKILL)

    def train(*more):
        keras.utils.set_random_seed(3)
        trained = model()
        stops = keras.callbacks.EarlyStopping("loss", min_delta=100, patience=4)
        history = trained.fit(data(), epochs=20, verbose=0, callbacks=[stops, *more])
        return outcome(trained, history)

    disturbed = train(Dies(), BackupAndRestore("backups", every="epoch", keep=2))
    print("epochs", disturbed[1])
    assert disturbed == train(), "not as if nothing had happened"
    print("the same")
"""
)


@pytest.mark.slow
@pytest.mark.timeout(3 * LIFE_S)
def test_the_callback_without_drumbeat_run(lives: Lives) -> None:
    command = [sys.executable, lives.script(ALONE)]
    assert lives.end(lives.start(*command, "dies"))[0] == -signal.SIGKILL
    backups = lives.folder / "backups"
    assert len(list(backups.glob("*.json"))) == 2
    code, out = lives.end(lives.start(*command, "goes on"))
    assert code == 0, out
    assert [line for line in out.splitlines() if line.startswith("epoch ")] == ["epoch 4"]
    assert "epochs [0, 1, 2, 3, 4]" in out
    assert "the same" in out
    # Its last backup is damaged: the one before goes on from the last epoch's beginning.
    newest = max(backups.glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-1])
    code, out = lives.end(lives.start(*command, "goes on"))
    assert code == 0, out
    assert f"{newest.name} in {backups} is damaged" in out
    assert "the same" in out


# keras's own callbacks write files of their own, and a restarted worker finds them.
STOCK = (
    COMMON
    + """
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = strategy.extended.communicator.rank

    class Dies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if rank == int(sys.argv[1]) and batch == 3 and self.params["epochs"] == 4:
                mark = f"died-{self.model.optimizer.iterations.numpy()}"
                if not os.path.exists(mark):
                    open(mark, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)

    def train(folder, *more):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            trained = model(keras.Input((6,)))
        callbacks = [
            keras.callbacks.BackupAndRestore(f"{folder}/stock"),
            keras.callbacks.ModelCheckpoint(folder + "/{epoch}.keras"),
        ]
        history = trained.fit(data(), epochs=4, verbose=0, callbacks=[*callbacks, *more])
        return outcome(trained, history), sorted(os.listdir(folder))

    disturbed = train("one", Dies())
    assert disturbed == train("other"), (disturbed, "not as if nothing had happened")
    print("the same", disturbed[1], flush=True)
"""
)


@pytest.mark.slow
@pytest.mark.timeout(2 * LIFE_S)
@pytest.mark.parametrize("rank", [0, 1])
def test_stock_callbacks_over_restarts(lives: Lives, rank: int) -> None:
    code, out = lives.end(lives.start(*DRUMBEAT, lives.script(STOCK), str(rank)))
    assert code == 0, out
    assert len(list(lives.folder.glob("died-*"))) == 4
    files = "['1.keras', '2.keras', '3.keras', '4.keras']"
    assert out.count(f"the same {files}") == 2
