"""mpi4py: the script asks MPI who it is, and makes TF_CONFIG of it."""

import json
import os

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
hosts = comm.allgather("localhost:{}".format(24000 + rank))
if size > 1:
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": rank}}
    )

import numpy as np
import tensorflow as tf

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
x = np.random.RandomState(10).rand(60, 3).astype("float32")
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse")
model.fit(x, x.sum(axis=1), batch_size=20, epochs=2, verbose=2 if rank == 0 else 0)
comm.Barrier()
print("weights", [float(np.sum(w)) for w in model.get_weights()])
