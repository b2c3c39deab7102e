"""Workers that hang, or end although others wait for them, in real jobs without TensorFlow."""

from __future__ import annotations

import json
import socket

import pytest

# A training loop as far as an agent can see it. After step 20 worker 0 waits for worker 1.
STEPS = """
    import os, signal, sys, time
    from drumbeat.state.progress import Activity, ProgressPage
    from drumbeat.state.waiting import WaitingNote

    page, waiting = ProgressPage.from_env(os.environ), WaitingNote.from_env(os.environ)

    def stop():
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(100)

    def spin():
        while True:
            pass

    for step in range(21):
        waiting.enter(step + 1, "all_reduce", "gradients")
        waiting.leave()
        page.update(Activity.TRAINING, step=step, epoch=0, slowest_step_s=0.02)
        time.sleep(0.02)
    if os.environ["DRUMBEAT_RANK"] == "0":
        waiting.enter(22, "all_reduce", "gradients")
        time.sleep(float(sys.argv[2]))
    else:
        {"stop": stop, "spin": spin, "end": sys.exit}[sys.argv[1]]()
"""
TENSORFLOW = ("--collectives", "tensorflow", "--max-restarts", "0")


@pytest.mark.parametrize(
    ("what", "told"), [("stop", "in stop\n    os.kill("), ("spin", "in spin\n")]
)
def test_a_worker_that_hangs_is_found(jobs, what, told):
    options = ("-n", "2", "--hang-timeout", "1", *TENSORFLOW)
    result = jobs.run(STEPS, what, "100", options=options)
    assert result.code == 1, result.out
    first, second, *_ = result.report.splitlines()
    assert first.startswith("worker 1 on ")
    assert first.endswith("made no progress for 1 s.")
    assert "worker 0 waits" in second
    assert "all_reduce 'gradients' #22" in second
    assert told in result.report
    assert ("is stopped (SIGSTOP)" in second) == (what == "stop")
    assert "[drumbeat] worker 0: after step 20 (epoch 1), waits in all_reduce" in result.out
    assert "[drumbeat] worker 1: after step 20 (epoch 1), trains" in result.out
    assert result.seconds < 15


def test_a_wait_that_ends_is_none_in_vain(jobs):
    result = jobs.run(STEPS, "end", "1.5", options=("-n", "2", *TENSORFLOW))
    assert result.code == 0, result.out


def test_a_worker_that_has_ended_is_found_by_the_node_where_others_wait(jobs):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    script = jobs.script(STEPS)
    nodes = [
        jobs.start(
            *(script, "end", "100"),
            options=("--nodes", "2", "--node-rank", str(n), "--rendezvous", address, *TENSORFLOW),
            env={"DRUMBEAT_TOKEN": "secret"},
            run_dir=f"node{n}",
        )
        for n in range(2)
    ]
    results = [job.end(20) for job in nodes]
    assert "[drumbeat] worker 0: after step 20 (epoch 1), waits in all_reduce" in results[0].out
    for result in results:
        assert result.code == 1, result.out
        assert result.report.startswith("worker 1 on ")
        assert "has ended, but worker 0 waits for it." in result.report
        assert "in all_reduce 'gradients' #22. Every worker must make the same" in result.report
        assert result.seconds < 20


SAYS = """
    import json
    import keras, numpy as np, tensorflow as tf
    from drumbeat.launch.hangs import place_of
    from drumbeat.training import journal

    page, said = journal.own().page, {}

    def note(where):
        progress = page.read()
        said.setdefault(where, set()).add(f"{progress.activity.name}, {place_of(progress).name}")

    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            note(f"step {min(batch, 1)}")
            if batch == 3:
                self.model.save("model.keras")
                note("after saving")

        def on_epoch_end(self, epoch, logs=None):
            note("end of epoch")

        def on_test_batch_end(self, batch, logs=None):
            note("evaluate")

        def on_predict_batch_end(self, batch, logs=None):
            note("predict")

    class Noting(keras.layers.Dense):
        def get_config(self):
            note("save")
            return super().get_config()

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.layers.Input((4,)), Noting(1)])
        model.compile("sgd", "mse")
    rows = np.ones([64, 4], "float32"), np.ones([64], "float32")
    known = tf.data.Dataset.from_tensor_slices(rows).batch(8)
    for data in (known, known.filter(lambda x, y: True)):
        note("script")
        model.fit(data, epochs=2, validation_data=known, verbose=0, callbacks=[Notes()])
        model.evaluate(known, verbose=0, callbacks=[Notes()])
        model.predict(rows[0], verbose=0, callbacks=[Notes()])
    print(json.dumps({where: sorted(what) for where, what in said.items()}))
"""


@pytest.mark.slow
@pytest.mark.tensorflow
def test_what_fit_says_it_is_doing(jobs):
    options = ("-n", "1", "--max-restarts", "0")
    threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    preload = "drumbeat.training.unmodified"
    result = jobs.run(SAYS, options=options, env=threads, preload=preload, timeout_s=100)
    assert result.code == 0, result.out
    (said,) = [line for line in result.out.splitlines() if line.startswith("[worker 0] {")]
    assert json.loads(said.removeprefix("[worker 0] ")) == {
        "script": ["SCRIPT, SCRIPT", "STARTING, SCRIPT"],
        "step 0": ["TRAINING, PHASE"],
        "step 1": ["TRAINING, STEPS"],
        "save": ["SAVING, PHASE"],
        "after saving": ["TRAINING, STEPS"],
        "evaluate": ["EVALUATING, PHASE"],
        "end of epoch": ["BETWEEN_EPOCHS, PHASE"],
        "predict": ["PREDICTING, PHASE"],
    }
