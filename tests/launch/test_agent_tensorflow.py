"""Jobs whose parent has really imported TensorFlow and Keras."""

from __future__ import annotations

import signal
import socket
import time

import pytest

pytestmark = pytest.mark.tensorflow
IMPORT = "import keras\nimport tensorflow as tf\n\ndef install():\n    pass\n"
THREADS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def tensorflow_jobs(jobs):
    (jobs.folder / "imports.py").write_text(IMPORT)
    return jobs


def test_forked_workers_train(tensorflow_jobs):
    result = tensorflow_jobs.run(
        """
        import time
        start = time.monotonic()
        import keras, numpy as np, tensorflow as tf
        imported = time.monotonic() - start
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.random.rand(64, 4)
        model.fit(x, x.sum(1), epochs=2, batch_size=16)
        print("trained; import", "fast" if imported < 0.5 else imported)
        """,
        preload="imports",
        env=THREADS,
        timeout_s=100,
    )
    assert result.code == 0, result.out
    assert result.out.count("trained; import fast") == 2
    assert result.out.count("Epoch 2/2") == 1
    assert result.out.count("4/4 ━━━") == 2  # one line an epoch, the chief's
    noise = [line for line in result.out.splitlines() if "cuda" in line.lower()]
    assert noise == []
    assert "Epoch 2/2" in result.log("worker-1")


def test_ctrl_c_while_tensorflow_is_imported(tensorflow_jobs):
    job = tensorflow_jobs.start(tensorflow_jobs.script("1"), preload="imports")
    time.sleep(1.5)
    job.family()
    sent = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    result = job.end(10)
    assert time.monotonic() - sent < 5
    assert result.code in (130, 0)  # 0 where the import and the script took no 1.5 s
    assert job.alive_after(0.5) == []


def test_nodes_whose_workers_end_at_different_times_end(tensorflow_jobs):
    address = f"127.0.0.1:{free_port()}"
    script = tensorflow_jobs.script(
        """
        import os, time
        import tensorflow as tf
        tf.distribute.MultiWorkerMirroredStrategy().extended.communicator.barrier()
        time.sleep(3 if os.environ["DRUMBEAT_RANK"] == "0" else 0)
        """
    )
    jobs = [
        tensorflow_jobs.start(
            script,
            options=("--nodes", "2", "--node-rank", str(rank), "--rendezvous", address),
            preload="drumbeat.training.unmodified",
            env={**THREADS, "DRUMBEAT_TOKEN": "secret"},
            run_dir=f"node{rank}",
        )
        for rank in range(2)
    ]
    assert [job.end(60).code for job in jobs] == [0, 0]
