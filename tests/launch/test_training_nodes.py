"""Training with Keras on two nodes that only a network joins: one agent in each namespace."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.tensorflow]
TOKEN = {"DRUMBEAT_TOKEN": "0123456789abcdef" * 2}
THREADS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
ONCE = ("--max-restarts", "0")
PRELOAD = "drumbeat.training.unmodified"
PORT = 2222
# Nothing but TensorFlow's and Keras's own API.
TRAIN = """
    import hashlib
    import sys
    import keras
    import numpy as np
    import tensorflow as tf

    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                print("\\nin training", flush=True)

    epochs = int(sys.argv[1])
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x = np.random.default_rng(1).normal(size=(100, 8)).astype("float32")
    y = x.sum(axis=1) > 0
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100, seed=1).batch(32)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
        )
        model.compile(
            "adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"]
        )
    model.fit(batches, validation_data=batches, epochs=epochs, callbacks=[Tell()], verbose=0)
    loss, accuracy = model.evaluate(batches, verbose=0)
    scores = model.predict(batches, verbose=0)
    model.save(f"{sys.argv[2]}.keras")
    digest = hashlib.sha256()
    for array in [*model.get_weights(), scores]:
        digest.update(array.tobytes())
    print("trained", strategy.num_replicas_in_sync, loss, accuracy, digest.hexdigest(), flush=True)
"""


class Nodes:
    """Starts the script once in each namespace."""

    def __init__(self, jobs, namespaces) -> None:
        self.jobs = jobs
        self.namespaces = namespaces

    def by_options(self, collectives: str, epochs: int = 2):
        """With nothing in the environment but the token."""
        meeting = ("--nodes", "2", "--rendezvous", f"{self.namespaces[0][1]}:{PORT}")
        script = self.jobs.script(TRAIN)
        return [
            self._start(
                rank,
                script,
                epochs,
                ("-n", "1", *meeting, "--node-rank", str(rank), "--collectives", collectives),
                {},
            )
            for rank in (1, 0)
        ][::-1]

    def by_tf_config(self, collectives: str, epochs: int = 2, options: tuple[str, ...] = ()):
        """As a platform that sets TF_CONFIG starts it."""
        script = self.jobs.script(TRAIN)
        workers = [f"{address}:{PORT}" for _, address in self.namespaces]
        started = []
        for rank in (1, 0):
            config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            env = {"TF_CONFIG": json.dumps(config)}
            chosen = () if collectives == "auto" else ("--collectives", collectives)
            started.append(self._start(rank, script, epochs, (*chosen, *options), env))
        return started[::-1]

    def _start(self, rank: int, script: str, epochs: int, options, env):
        return self.jobs.start(
            script,
            str(epochs),
            f"model-{rank}",
            options=options,
            env={**TOKEN, **THREADS, **env},
            preload=PRELOAD,
            prefix=("ip", "netns", "exec", self.namespaces[rank][0]),
            run_dir=f"node{rank}",
        )


@pytest.fixture
def nodes(jobs, namespaces) -> Nodes:
    return Nodes(jobs, namespaces)


def outcome(job, rank: int) -> list[str]:
    """What the worker of a node said of its trained model."""
    result = job.end(100)
    assert result.code == 0, result.out
    (line,) = [line for line in result.out.splitlines() if "] trained " in line]
    assert line.startswith(f"[worker {rank}] ")
    return line.split(" trained ")[1].split()


def assert_trained_together(jobs) -> None:
    first, second = [outcome(job, rank) for rank, job in enumerate(jobs)]
    assert first[0] == "2"  # replicas in sync
    assert first == second  # loss, accuracy, and all bits of the weights and the predictions
    for rank, job in enumerate(jobs):
        assert job.alive_after(0.5) == []
        assert (job.run_dir.parent / f"model-{rank}.keras").exists()


@pytest.mark.parametrize("collectives", ["mpi", "tensorflow"])
def test_two_nodes_train_one_model(nodes, collectives):
    assert_trained_together(nodes.by_options(collectives))


@pytest.mark.parametrize(
    "collectives", ["auto", pytest.param("tensorflow", marks=pytest.mark.slow)]
)
def test_a_platforms_tf_config_is_enough_to_train_one_model(nodes, collectives):
    assert_trained_together(nodes.by_tf_config(collectives))


@pytest.mark.parametrize(
    ("collectives", "lost"), [("mpi", 0), pytest.param("tensorflow", 1, marks=pytest.mark.slow)]
)
def test_a_node_that_is_lost_in_training_is_named_by_the_other(nodes, collectives, lost):
    jobs = nodes.by_tf_config(collectives, epochs=100_000, options=ONCE)
    for rank, job in enumerate(jobs):
        job.wait_for_output(f"worker-{rank}", "in training", timeout_s=90)
    began = time.monotonic()
    jobs[lost].process.send_signal(signal.SIGKILL)
    result = jobs[1 - lost].end(20)
    assert time.monotonic() - began < 5
    assert result.code == 1
    assert result.report.startswith(f"node {lost} on {nodes.namespaces[lost][1]} dropped out")
    assert jobs[lost].alive_after(3) == jobs[1 - lost].alive_after(0.5) == []


@pytest.mark.slow
def test_a_cut_cable_ends_the_training_on_both_sides(nodes):
    jobs = nodes.by_tf_config("mpi", epochs=100_000, options=ONCE)
    for rank, job in enumerate(jobs):
        job.wait_for_output(f"worker-{rank}", "in training", timeout_s=90)
    cut = ["ip", "-n", nodes.namespaces[1][0], "link", "set", "v0", "down"]
    subprocess.run(cut, check=True, timeout=20)
    for rank, job in enumerate(jobs):
        result = job.end(30)
        assert result.code == 1
        assert result.report.startswith(f"node {1 - rank} on {nodes.namespaces[1 - rank][1]}")
        assert "for 10 s" in result.report
        assert job.alive_after(0.5) == []
