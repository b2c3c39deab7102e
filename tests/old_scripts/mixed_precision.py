"""Mixed precision as of 2.1 to 2.3, and the rewrite of graphs."""

import numpy as np
import tensorflow as tf
from tensorflow.keras.mixed_precision import experimental as mixed_precision

policy = mixed_precision.Policy("float32")
mixed_precision.set_policy(policy)
print("Compute dtype:", policy.compute_dtype, "variable dtype:", policy.variable_dtype)

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
with strategy.scope():
    inputs = tf.keras.Input(shape=(4,), name="rows")
    x = tf.keras.layers.Dense(8, activation="relu", name="dense_1")(inputs)
    outputs = tf.keras.layers.Dense(2, dtype="float32", name="predictions")(x)
    model = tf.keras.Model(inputs=inputs, outputs=outputs)
    opt = tf.keras.optimizers.SGD(0.01)
    opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="auto"),
        optimizer=opt,
        metrics=["accuracy"],
        experimental_run_tf_function=False,
    )
x = np.random.RandomState(16).rand(64, 4).astype("float32")
y = np.arange(64) % 2
model.fit(x, y, batch_size=32, epochs=2)
print("weights", [float(np.sum(w)) for w in model.get_weights()])
