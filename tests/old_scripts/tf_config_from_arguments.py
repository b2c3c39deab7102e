"""Arguments that name the machines: the script makes TF_CONFIG of them."""

import argparse
import json
import os

parser = argparse.ArgumentParser()
parser.add_argument("--worker_hosts", default="localhost:22223,localhost:22224")
parser.add_argument("--task_index", type=int, default=None)
args = parser.parse_args()
if args.task_index is None:
    # Started by something that has told us already.
    given = json.loads(os.environ.get("TF_CONFIG") or "{}")
    args.task_index = given.get("task", {}).get("index", 0)
    args.worker_hosts = ",".join(
        given.get("cluster", {}).get("worker", args.worker_hosts.split(",")[:1])
    )
os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {"worker": args.worker_hosts.split(",")},
        "task": {"type": "worker", "index": args.task_index},
    }
)

import numpy as np
import tensorflow as tf

print("TensorFlow", tf.__version__)
warm_up = tf.reduce_sum(tf.ones((2, 2)))  # a tensor before the strategy
strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile(tf.keras.optimizers.Adagrad(lr=0.1), "mse")
x = np.random.RandomState(11).rand(64, 2).astype("float32")
model.fit(x, x[:, 0] - x[:, 1], batch_size=16, epochs=2)
print("weights", [float(np.sum(w)) for w in model.get_weights()])
