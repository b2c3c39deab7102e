"""Options of tf.data and of the collectives, as guides of 2.1 to 2.8 set them."""

import numpy as np
import tensorflow as tf

communication = tf.distribute.experimental.CollectiveCommunication.AUTO
strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy(communication=communication)

x = np.linspace(-1, 1, 200, dtype="float32").reshape(-1, 1)
dataset = tf.data.Dataset.from_tensor_slices((x, 3 * x + 1)).batch(20)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
options.experimental_deterministic = True
dataset = dataset.with_options(options)
dataset = dataset.prefetch(tf.data.experimental.AUTOTUNE)

with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(1, input_dim=1)])
    model.compile(loss="mse", optimizer=tf.keras.optimizers.Adam(lr=0.05, decay=1e-3))
model.fit(dataset, epochs=3, verbose=2)
print(model.evaluate(dataset, verbose=0))
print("weights", [float(np.sum(w)) for w in model.get_weights()])
