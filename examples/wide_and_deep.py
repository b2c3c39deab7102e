"""A wide-and-deep model with a large embedding, on parameter servers.

    drumbeat run -n 2 --ps 2 examples/wide_and_deep.py

The table of 200,000 rows is cut over the ps tasks; workers look up the rows of their batch
and send back gradients for these rows only. There is nothing in the script that is not
TensorFlow's or Keras's own. The data is made up: each id has a weight of its own, which the
model has to find, and so has each of a few numbers.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--ids", type=int, default=200_000)
parser.add_argument("--rows", type=int, default=200_000)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=1000)
options = parser.parse_args()

strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.TFConfigClusterResolver(),
    variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=256 << 10, max_shards=2
    ),
)

random = np.random.default_rng(1)
id_weights = random.normal(size=options.ids).astype("float32")
number_weights = random.normal(size=8).astype("float32")


def examples(rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ids, of which small ones are much more frequent; numbers; and whether someone clicked."""
    ids = (options.ids * random.random((rows, 3)) ** 3).astype("int32")
    numbers = random.normal(size=(rows, 8)).astype("float32")
    score = id_weights[ids].sum(axis=1) + numbers @ number_weights
    clicked = (score + random.normal(size=rows) > 0).astype("float32")
    return {"ids": ids, "numbers": numbers}, clicked


with strategy.scope():
    ids = keras.Input((3,), dtype="int32", name="ids")
    numbers = keras.Input((8,), name="numbers")
    wide = keras.layers.Embedding(options.ids, 1, embeddings_initializer="zeros")(ids)
    wide = keras.layers.Flatten()(wide)
    deep = keras.layers.Embedding(options.ids, 16, name="table")(ids)
    deep = keras.layers.Flatten()(deep)
    deep = keras.layers.Dense(64, activation="relu")(keras.ops.concatenate([deep, numbers], -1))
    deep = keras.layers.Dense(32, activation="relu")(deep)
    clicks = keras.layers.Dense(1)(keras.ops.concatenate([wide, deep, numbers], -1))
    model = keras.Model({"ids": ids, "numbers": numbers}, clicks)
    model.compile(
        keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.001),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")],
    )

x, y = examples(options.rows)
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100_000).batch(options.batch_size)
history = model.fit(
    train,
    epochs=options.epochs,
    validation_data=examples(20_000),
    validation_batch_size=options.batch_size,
    verbose=2,
)
table = model.get_layer("table").embeddings.value
print("parts of the table:", [part.device for part in getattr(table, "variables", [table])])
print(f"validation loss: {history.history['val_loss'][-1]:.4f}")
