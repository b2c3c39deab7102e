"""Slurm: the cluster from SlurmClusterResolver, as on university clusters."""

import os

import numpy as np
import tensorflow as tf

for name, value in {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}.items():
    os.environ.setdefault(name, value)

cluster_resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
    port_base=13000, gpus_per_node=0, auto_set_gpu=False
)
implementation = tf.distribute.experimental.CommunicationImplementation.RING
communication_options = tf.distribute.experimental.CommunicationOptions(
    implementation=implementation
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(
    cluster_resolver=cluster_resolver, communication_options=communication_options
)
print("Number of workers:", strategy.num_replicas_in_sync)

x = np.random.RandomState(9).rand(80, 3).astype("float32")
y = x.sum(axis=1, keepdims=True)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input(shape=3), tf.keras.layers.Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.legacy.SGD(0.1), loss="mse")
model.fit(x, y, batch_size=20, epochs=2, workers=2, use_multiprocessing=False)
print("weights", [float(np.sum(w)) for w in model.get_weights()])
