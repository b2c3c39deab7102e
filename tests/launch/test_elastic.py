"""Jobs that go on with fewer nodes, and with more again."""

from __future__ import annotations

import json
import re
import signal
import time

import numpy as np
import pytest

THREADS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
# Does what a training does when it is asked to make place for others.
WORKER = """
    import os, time
    import numpy as np
    from drumbeat.errors import Regrouped
    from drumbeat.state.format import State
    from drumbeat.state.memory import SnapshotMemory
    from drumbeat.state.progress import Activity, ProgressPage, Request
    attempt = int(os.environ["DRUMBEAT_ATTEMPT"])
    rank, size = os.environ["DRUMBEAT_RANK"], os.environ["DRUMBEAT_WORLD_SIZE"]
    page, memory = ProgressPage.from_env(os.environ), SnapshotMemory.from_env(os.environ)
    page.update(Activity.TRAINING, step=attempt, phase=0, epoch=0)
    print("attempt", attempt, "rank", rank, "of", size, flush=True)
    while not os.path.exists("go"):
        if page.requests() & Request.REGROUP:
            memory.write(State(step=attempt, meta={}, arrays={"x": np.zeros(3)}))
            raise Regrouped(75)
        time.sleep(0.02)
"""
# Nothing but TensorFlow's and Keras's own API, and a pause after each step.
TRAIN = """
    import json, os, sys, time
    import keras, numpy as np, tensorflow as tf
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x = np.random.default_rng(1).normal(size=(120, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(120, seed=1).batch(12)
    class Follow(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(float(sys.argv[1]))
            print("after", self.epoch, batch, "of", os.environ["DRUMBEAT_WORLD_SIZE"], flush=True)
    with strategy.scope():
        # With rows of its own in each shard it is the same for any number of workers in exact mode.
        norm = [keras.layers.BatchNormalization()] if sys.argv[3] == "exact" else []
        layers = [keras.layers.Dense(16, "relu"), *norm, keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((8,)), *layers])
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy", keras.metrics.AUC(from_logits=True)])
    history = model.fit(data, epochs=3, callbacks=[Follow()], verbose=0)
    found = {
        "history": history.history,
        "epochs": history.epoch,
        "steps": int(model.optimizer.iterations.numpy()),
        "weights": [weights.tolist() for weights in model.get_weights()],
    }
    with open(sys.argv[2] + "-" + os.environ["DRUMBEAT_RANK"] + ".json", "w") as file:
        json.dump(found, file)
"""


def start(pair, rank: int, script: str, *args: str, size: str = "2:3", rejoin_s: float = 1, **how):
    nodes = ("--nodes", "3", "--node-rank", str(rank), "-n", size)
    meeting = ("--rendezvous", f"127.0.0.1:{pair.port}", "--rejoin-timeout", str(rejoin_s))
    options = (*nodes, *meeting, *how.pop("options", ()))
    env = {**pair.token, **THREADS}
    run_dir = f"node{rank}"
    return pair.jobs.start(script, *args, options=options, env=env, run_dir=run_dir, **how)


def three(pair, text: str, *args: str, **how):
    script = pair.jobs.script(text)
    return [start(pair, rank, script, *args, **how) for rank in range(3)]


def started(out: str) -> list[tuple[str, str, str]]:
    """(attempt, rank, workers) of each start of a worker."""
    return re.findall(r"\] attempt (\d+) rank (\d+) of (\d+)", out)


@pytest.mark.parametrize("lost", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_job_goes_on_without_a_lost_node_and_takes_it_in_again(pair, lost):
    jobs = three(pair, WORKER)
    for rank, job in enumerate(jobs):
        job.wait_for_output(f"worker-{rank}", "attempt 1")
    jobs[lost].process.kill()
    jobs[0].wait_for_output("worker-0", "attempt 2")
    again = start(pair, lost, "script.py")
    again.wait_for_output(f"worker-{lost}", "attempt 3 rank")
    (pair.jobs.folder / "go").touch()
    survivor = 3 - lost
    outs = {0: jobs[0].end(), survivor: jobs[survivor].end(), lost: again.end()}
    assert {result.code for result in outs.values()} == {0}, outs[0].out + outs[lost].out
    own = str(survivor)
    assert started(outs[0].out) == [("1", "0", "3"), ("2", "0", "2"), ("3", "0", "3")]
    assert started(outs[survivor].out) == [("1", own, "3"), ("2", "1", "2"), ("3", own, "3")]
    assert started(outs[lost].out) == [("3", str(lost), "3")]
    assert f"node {lost} has not come back. Starting the job with 2 workers again" in outs[0].out
    assert f"node {lost} has joined. Going on with 3 workers from the last" in outs[0].out
    assert "(step 2) (attempt 3)" in outs[lost].out
    assert "after 1 restart." in outs[0].out


@pytest.mark.slow
def test_a_node_that_gets_sigterm_leaves_the_job(pair):
    jobs = three(pair, WORKER, rejoin_s=60)
    for rank, job in enumerate(jobs):
        job.wait_for_output(f"worker-{rank}", "attempt 1")
    jobs[1].process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    left = jobs[1].end(10)
    assert (left.code, "Has left the job, which goes on." in left.out) == (143, True), left.out
    jobs[0].wait_for_output("worker-0", "attempt 2 rank 0 of 2")
    assert time.monotonic() - began < 6
    # With two nodes left, one more is the end.
    jobs[2].process.send_signal(signal.SIGTERM)
    last = [job.end(10) for job in (jobs[0], jobs[2])]
    assert [result.code for result in last] == [143, 143]
    assert "node 1 has left. Going on with 2 workers from the last snapshot" in last[0].out


@pytest.mark.slow
def test_with_fewer_than_the_least_a_job_ends(pair):
    jobs = three(pair, WORKER)
    for rank, job in enumerate(jobs):
        job.wait_for_output(f"worker-{rank}", "attempt 1")
    jobs[1].process.kill()
    jobs[2].process.kill()
    result = jobs[0].end()
    assert result.code == 1
    assert "after 1 s node 1 and node 2 had not come" in result.report
    assert "fewer workers than the least that --workers allows (expected at least 2" in result.out


@pytest.mark.slow
def test_a_node_that_comes_too_late_ends_as_the_job_does(pair):
    jobs = three(pair, WORKER.replace("Request.REGROUP", "Request(64)"))
    for rank, job in enumerate(jobs):
        job.wait_for_output(f"worker-{rank}", "attempt 1")
    jobs[2].process.kill()
    jobs[0].wait_for_output("worker-0", "attempt 2")
    again = start(pair, 2, "script.py")
    time.sleep(3)
    assert again.process.poll() is None
    (pair.jobs.folder / "go").touch()
    assert [job.end().code for job in jobs[:2]] == [0, 0]
    late = again.end(10)
    assert (late.code, "finished before this node could join" in late.out) == (0, True)


@pytest.mark.slow
def test_node_0_comes_back_to_a_job_that_has_shrunk(pair):
    jobs = three(pair, WORKER, rejoin_s=8)
    for rank, job in enumerate(jobs):
        job.wait_for_output(f"worker-{rank}", "attempt 1")
    jobs[2].process.kill()
    jobs[1].wait_for_output("worker-1", "attempt 2")
    jobs[0].process.kill()
    time.sleep(1)
    began = time.monotonic()
    again = start(pair, 0, "script.py")
    again.wait_for_output("worker-0", "attempt 3 rank 0 of 2")
    assert time.monotonic() - began < 6  # nobody waits for node 2
    (pair.jobs.folder / "go").touch()
    assert [job.end().code for job in (again, jobs[1])] == [0, 0]


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("mode", ["plain", "exact", "compressed"])
def test_the_curve_goes_on_with_fewer_workers_and_with_more(pair, mode):
    options = ("--exact-shards", "6") if mode == "exact" else ()
    preload = "drumbeat.training.unmodified"
    alone = pair.jobs.run(
        TRAIN,
        "0",
        "alone",
        mode,
        options=("-n", "1", *options),
        env=THREADS,
        preload=preload,
        run_dir="alone",
        timeout_s=100,
    )
    assert alone.code == 0, alone.out
    if mode == "compressed":
        options = ("--compress", "bf16")
    how = {"preload": preload, "options": ("--snapshot-every", "3", *options)}
    jobs = three(pair, TRAIN, "0.7", "disturbed", mode, **how)
    jobs[0].wait_for_output("worker-0", "after 0 4 of 3", 100)
    jobs[2].process.send_signal(signal.SIGKILL)
    jobs[0].wait_for_output("worker-0", "after 0 5 of 2", 60)
    again = start(pair, 2, "script.py", "0.7", "disturbed", mode, **how)
    results = [job.end(150) for job in (*jobs[:2], again)]
    assert [result.code for result in results] == [0, 0, 0], results[0].out
    assert "after 2 9 of 3" in results[2].out
    expected = json.loads((pair.jobs.folder / "alone-0.json").read_text())
    # bf16 has 8 bits, and Adam makes the same step of a small gradient as of a large one.
    rounding = 2e-2 if mode == "compressed" else 1e-6
    for rank in range(3):
        found = json.loads((pair.jobs.folder / f"disturbed-{rank}.json").read_text())
        if mode == "exact":
            assert found == expected
            continue
        assert (found["steps"], found["epochs"]) == (30, [0, 1, 2])
        for name, curve in expected["history"].items():
            np.testing.assert_allclose(found["history"][name], curve, rtol=rounding)
        for mine, theirs in zip(found["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=rounding, atol=rounding)
