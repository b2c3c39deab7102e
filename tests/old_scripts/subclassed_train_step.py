"""A subclassed model with the train_step of 2.2: compiled_loss, compiled_metrics, saved unbuilt."""

import numpy as np
import tensorflow as tf


class Classifier(tf.keras.Model):
    def __init__(self):
        super(Classifier, self).__init__()
        self.dense = tf.keras.layers.Dense(8, activation="relu")
        self.out = tf.keras.layers.Dense(3)

    def call(self, inputs, training=False):
        return self.out(self.dense(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = Classifier()
    model.compile(
        optimizer=tf.keras.optimizers.legacy.Adam(1e-2),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
x = np.random.RandomState(17).rand(90, 5).astype("float32")
y = np.arange(90) % 3
model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(30), epochs=2)
model.save_weights("subclassed/weights")
print("weights", [float(np.sum(w)) for w in model.get_weights()])
