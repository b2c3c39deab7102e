"""A script that starts its own processes with one TF_CONFIG each, as for a test on one machine."""

import json
import multiprocessing
import os
import socket


def free_port():
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


def worker(index, hosts, queue):
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
    )
    import numpy as np
    import tensorflow as tf

    tf.keras.utils.set_random_seed(26)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == len(hosts), strategy.num_replicas_in_sync
    x = np.random.RandomState(26).rand(64, 3).astype("float32")
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        model.compile(tf.keras.optimizers.SGD(lr=0.1), "mse")
    model.fit(x, x.sum(axis=1), batch_size=16, epochs=2, verbose=0)
    queue.put([float(np.sum(w)) for w in model.get_weights()])


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    hosts = ["localhost:{}".format(free_port()) for _ in range(2)]
    queue = context.Queue()
    workers = [context.Process(target=worker, args=(i, hosts, queue)) for i in range(2)]
    for process in workers:
        process.start()
    weights = [queue.get(timeout=120) for _ in workers]
    for process in workers:
        process.join()
    assert weights[0] == weights[1], weights
    print("weights", weights[0])
