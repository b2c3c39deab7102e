"""A script with its own minimize, Embedding(weights=) and predict_classes, after model.summary."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
table = np.random.RandomState(19).rand(50, 4).astype("float32")
with strategy.scope():
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Embedding(50, 4, weights=[table], input_length=6, trainable=False))
    model.add(tf.keras.layers.Flatten())
    model.add(tf.keras.layers.Dense(2, activation="softmax"))
    model.build((None, 6))
    model.compile(
        tf.keras.optimizers.Adam(lr=0.01),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        experimental_steps_per_execution=2,
    )
model.summary()
print([layer.output_shape for layer in model.layers[1:]])
x = np.random.RandomState(20).randint(0, 50, (64, 6))
y = x[:, 0] % 2
model.fit(x, y, batch_size=16, epochs=2, verbose=2)
print("classes", model.predict_classes(x).shape)
print("weights", [float(np.sum(w)) for w in model.get_weights()])
