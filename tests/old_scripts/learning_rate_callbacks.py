"""Callbacks that read and set optimizer.lr through the backend."""

import numpy as np
import tensorflow as tf
import tensorflow.keras.backend as K

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()


class WarmUp(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        K.set_value(self.model.optimizer.lr, 0.01 * (epoch + 1))
        print("rate", float(K.get_value(self.model.optimizer.lr)))


x = np.random.RandomState(18).rand(64, 3).astype("float32")
y = x.sum(axis=1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile(tf.keras.optimizers.SGD(lr=0.01, momentum=0.9, nesterov=True), "mse")
reduce = tf.keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1)
history = model.fit(x, y, batch_size=16, epochs=3, callbacks=[WarmUp(), reduce], verbose=0)
print(sorted(history.history))
K.clear_session()
print("weights", [float(np.sum(w)) for w in model.get_weights()])
