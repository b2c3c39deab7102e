"""A model saved to a folder, loaded, and trained on."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.RandomState(14).rand(64, 3).astype("float32")
y = x @ np.ones((3, 1), "float32")
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile(loss="mean_squared_error", optimizer="rmsprop")
model.fit(x, y, batch_size=16, epochs=1)
tf.keras.models.save_model(model, "saved", save_format="tf")

with strategy.scope():
    restored = tf.keras.models.load_model("saved")
np.testing.assert_allclose(restored.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5)
restored.fit(x, y, batch_size=16, epochs=1)
serving = tf.saved_model.load("saved").signatures["serving_default"]
print("serves", list(serving.structured_input_signature[1]))
print("weights", [float(np.sum(w)) for w in restored.get_weights()])
