"""Jobs whose data, secret, backups and results are on s3:// and gs://, at stand-ins of both.

moto's server and the emulator of gcp-storage-emulator, over HTTP, with the drivers that a job has.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import numpy as np
import pytest

from drumbeat.platforms import token_file

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(900)]

TIMEOUT_S = 400
TRAIN = """
import io, json, os, sys, time
import fsspec, keras, numpy as np, tensorflow as tf
import drumbeat.data

data, out, pause_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
keras.utils.set_random_seed(7)
if data.endswith(".npz"):
    with fsspec.open(data) as file:
        arrays = np.load(io.BytesIO(file.read()))
    rows = tf.data.Dataset.from_tensor_slices((arrays["x"], arrays["y"])).batch(32)
else:
    def parse(record):
        row = tf.io.decode_raw(record, tf.float32)
        row = tf.ensure_shape(row, [9])
        return row[:8], row[8]
    rows = drumbeat.data.tfrecords(data, batch_size=32, map=parse, shuffle=1)

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause_s)

with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"),
        keras.layers.Dense(1)])
    model.compile("adam", "mse")
history = model.fit(rows, epochs=6, verbose=0, callbacks=[Slow()])
if int(os.environ["DRUMBEAT_RANK"]) == 0:
    said = {"loss": history.history["loss"][-1],
        "weights": [w.astype("float64").sum() for w in model.get_weights()]}
    with fsspec.open(f"{out}/result.json", "w") as file:
        json.dump(said, file)
print("finished", flush=True)
"""


@dataclass(frozen=True)
class Store:
    """A bucket.

    Attributes:
        url: Its URL.
        env: By which drivers find the stand-in.
    """

    url: str
    env: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, data: bytes) -> str:
        driver, path = fsspec.core.url_to_fs(f"{self.url}/{name}")
        driver.pipe_file(path, data)
        return f"{self.url}/{name}"

    def get(self, name: str) -> bytes:
        driver, path = fsspec.core.url_to_fs(f"{self.url}/{name}")
        driver.invalidate_cache()
        return driver.cat_file(path)

    def names(self, folder: str) -> list[str]:
        driver, path = fsspec.core.url_to_fs(f"{self.url}/{folder}")
        driver.invalidate_cache()
        try:
            return [each.rpartition("/")[2] for each in driver.ls(path, detail=False)]
        except FileNotFoundError:
            return []


@pytest.fixture
def s3(monkeypatch, tmp_path) -> Iterator[Store]:
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    moto = pytest.importorskip("moto.server", reason="moto's server is not installed")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    env = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    boto3.Session().client("s3").create_bucket(Bucket="team")
    fsspec.filesystem("s3").clear_instance_cache()
    yield Store("s3://team", env)
    fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


@pytest.fixture
def gs(monkeypatch) -> Iterator[Store]:
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed"
    )
    gcsfs = pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    port = free_port()
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="team")
    server.start()
    env = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}
    monkeypatch.setenv(*next(iter(env.items())))
    gcsfs.GCSFileSystem.clear_instance_cache()
    yield Store("gs://team", env)
    gcsfs.GCSFileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(params=["s3", "gs"])
def store(request) -> Store:
    return request.getfixturevalue(request.param)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def rows() -> np.ndarray:
    """640 examples of 8 numbers and what to learn of them: float32, [640, 9]."""
    x = np.random.default_rng(1).normal(size=(640, 8)).astype("float32")
    return np.concatenate([x, x.sum(axis=1, keepdims=True)], axis=1)


def put_records(store: Store, folder: Path) -> str:
    """The rows as two TFRecord files; a pattern for both."""
    import tensorflow as tf

    for number, part in enumerate(np.split(rows(), 2)):
        path = folder / f"part-{number}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in part:
                writer.write(row.tobytes())
        store.put(f"data/{path.name}", path.read_bytes())
    return f"{store.url}/data/part-*"


def put_arrays(store: Store) -> str:
    """The rows as one npz file; its URL."""
    stream, made = io.BytesIO(), rows()
    np.savez(stream, x=made[:, :8], y=made[:, 8])
    return store.put("data/rows.npz", stream.getvalue())


@contextmanager
def job(store: Store, folder: Path, data: str, out: str, pause_s: float) -> Iterator[list]:
    """Two agents with a worker each, as two machines would run them."""
    (folder / "train.py").write_text(TRAIN)
    rendezvous = f"127.0.0.1:{free_port()}"
    url = f"{store.url}/{out}"
    agents = []
    for rank in range(2):
        env = {
            **os.environ,
            **store.env,
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "DRUMBEAT_NODES": "2",
            "DRUMBEAT_NODE_RANK": str(rank),
            "DRUMBEAT_RENDEZVOUS": rendezvous,
            "DRUMBEAT_TOKEN_FILE": token_file.url(url),
        }
        env.pop("DRUMBEAT_TOKEN", None)
        words = ["run", "--backup-dir", f"{url}/backups", "--backup-every", "1", "--seed", "5"]
        log = (folder / f"{out}-{rank}.log").open("ab")
        agents.append(
            subprocess.Popen(
                [sys.executable, "-m", "drumbeat", *words, "train.py", data, url, str(pause_s)],
                cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )
        )  # fmt: skip
        log.close()
    try:
        yield agents
    finally:
        kill(agents)


def kill(agents: list) -> None:
    """Ends the agents as a machine that is taken away does, and with them their workers."""
    for agent in agents:
        if agent.poll() is None:
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait(30)


def wait_for(what, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)


def finish(agents: list, folder: Path, out: str) -> str:
    """The first agent's output, once both have ended well."""
    codes = [agent.wait(TIMEOUT_S) for agent in agents]
    logs = [(folder / f"{out}-{rank}.log").read_text() for rank in range(2)]
    assert codes == [0, 0], "\n".join(logs)
    return logs[0]


def backups(store: Store, out: str) -> list[str]:
    return [name for name in store.names(f"{out}/backups") if name.endswith(".json")]


def test_a_job_lives_on_an_object_store(store, tmp_path):
    """Reads its data and secret there, is killed, goes on from a backup there, and leaves what a
    job that was never killed leaves.
    """
    is_s3 = store.url.startswith("s3")
    # TensorFlow's own gs:// knows no emulator; drumbeat.data reads s3:// by fsspec's driver.
    data = put_records(store, tmp_path) if is_s3 else put_arrays(store)
    for out in ("whole", "killed"):
        token_file.put(token_file.url(f"{store.url}/{out}"))
    with job(store, tmp_path, data, "whole", 0) as agents:
        assert "finished" in finish(agents, tmp_path, "whole")
    with job(store, tmp_path, data, "killed", 0.2) as agents:
        wait_for(lambda: backups(store, "killed") or any(a.poll() is not None for a in agents))
        assert backups(store, "killed"), (tmp_path / "killed-0.log").read_text()
    assert "finished" not in (tmp_path / "killed-0.log").read_text()
    with job(store, tmp_path, data, "killed", 0) as agents:
        said = finish(agents, tmp_path, "killed")
    assert "Going on from step" in said
    assert f"{store.url}/killed/backups" in said
    whole, killed = (json.loads(store.get(f"{out}/result.json")) for out in ("whole", "killed"))
    assert killed == whole


def test_a_secret_that_is_not_there_is_explained(store, tmp_path):
    with job(store, tmp_path, "none.npz", "nothing", 0) as agents:
        codes = [agent.wait(TIMEOUT_S) for agent in agents]
    assert codes == [2, 2]
    said = (tmp_path / "nothing-0.log").read_text()
    assert "DRUMBEAT_TOKEN_FILE is" in said
    assert "Traceback" not in said
