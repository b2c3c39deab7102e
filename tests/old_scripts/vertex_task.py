"""A Vertex AI sample: chief by the resolver's task type, writes for all, tf.io.gfile."""

import os

import numpy as np
import tensorflow as tf

PER_REPLICA_BATCH = 16


def _is_chief(task_type, task_id):
    return task_type == "chief" or (task_type == "worker" and task_id == 0) or task_type is None


def _get_temp_dir(dirpath, task_id):
    temp_dir = os.path.join(dirpath, "workertemp_" + str(task_id))
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir


def write_filepath(filepath, task_type, task_id):
    dirpath = os.path.dirname(filepath)
    base = os.path.basename(filepath)
    if not _is_chief(task_type, task_id):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, base)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
task_type = strategy.cluster_resolver.task_type
task_id = strategy.cluster_resolver.task_id
print("cluster:", strategy.cluster_resolver.cluster_spec().as_dict())

x = np.random.RandomState(5).rand(128, 6).astype("float32")
y = x @ np.arange(6, dtype="float32")[:, None]
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(128)
data = data.batch(PER_REPLICA_BATCH * strategy.num_replicas_in_sync)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(6,))])
    model.compile(optimizer=tf.keras.optimizers.Adam(learning_rate=0.01), loss="mse")
model.fit(data, epochs=2)

model_path = os.path.join(os.environ.get("AIP_MODEL_DIR", "model_dir"), "final")
write_model_path = write_filepath(model_path, task_type, task_id)
model.save(write_model_path)
if not _is_chief(task_type, task_id):
    tf.io.gfile.rmtree(os.path.dirname(write_model_path))
print("weights", [float(np.sum(w)) for w in model.get_weights()])
