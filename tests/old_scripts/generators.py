"""fit_generator and its like, with a keras.utils.Sequence."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()


class Rows(keras.utils.Sequence):
    def __init__(self, count, batch_size):
        self.x = np.random.RandomState(15).rand(count, 4).astype("float32")
        self.y = (self.x.mean(axis=1) > 0.5).astype("float32")
        self.batch_size = batch_size

    def __len__(self):
        return int(np.ceil(len(self.x) / self.batch_size))

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.x[rows], self.y[rows]


with strategy.scope():
    model = keras.models.Sequential()
    model.add(keras.layers.Dense(8, activation="relu", input_dim=4))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    model.compile(keras.optimizers.RMSprop(lr=1e-2), "binary_crossentropy", metrics=["acc"])
rows = Rows(100, 16)
history = model.fit_generator(rows, epochs=2, workers=2, max_queue_size=4, shuffle=False)
print(model.evaluate_generator(rows, verbose=0))
print(model.predict_generator(rows, verbose=0).shape, sorted(history.history))
print("weights", [float(np.sum(w)) for w in model.get_weights()])
