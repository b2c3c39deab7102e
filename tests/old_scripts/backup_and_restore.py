"""Fault tolerance as the tutorial of 2.3 had it: callbacks.experimental.BackupAndRestore."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.RandomState(12).rand(96, 5).astype("float32")
y = (x[:, 0] > x[:, 1]).astype("int32")
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.experimental.preprocessing.Rescaling(2.0, offset=-1.0),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.experimental.SyncBatchNormalization(),
            tf.keras.layers.Dense(2),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )
callbacks = [tf.keras.callbacks.experimental.BackupAndRestore(backup_dir="backup")]
model.fit(
    tf.data.Dataset.from_tensor_slices((x, y)).batch(32), epochs=3, callbacks=callbacks, verbose=2
)
print("weights", [float(np.sum(w)) for w in model.get_weights()])
