"""Weights in TensorFlow checkpoints: ModelCheckpoint, latest_checkpoint, load_weights."""

import os

import numpy as np
import tensorflow as tf

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
checkpoint_dir = "./training_checkpoints"
x = np.random.RandomState(13).rand(120, 4).astype("float32")
y = np.arange(120) % 3


def build():
    with strategy.scope():
        inputs = tf.keras.layers.Input(shape=(4,))
        hidden = tf.keras.layers.Dense(16, activation="tanh")(inputs)
        model = tf.keras.models.Model(inputs, tf.keras.layers.Dense(3)(hidden))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, optimizer=tf.keras.optimizers.Adam(lr=0.01), metrics=["accuracy"])
    return model


model = build()
prefix = os.path.join(checkpoint_dir, "ckpt_{epoch}")
callback = tf.keras.callbacks.ModelCheckpoint(prefix, save_weights_only=True, period=1)
model.fit(x, y, batch_size=40, epochs=2, callbacks=[callback])

again = build()
again.load_weights(tf.train.latest_checkpoint(checkpoint_dir)).expect_partial()
print(again.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0))
np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5)
print("weights", [float(np.sum(w)) for w in again.get_weights()])
