"""absl.app with flags; the strategy's dataset methods of 2.0."""

import numpy as np
import tensorflow as tf
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("batch_size", 16, "Rows of a batch.")
flags.DEFINE_float("lr", 0.1, "Learning rate.")


def main(argv):
    del argv
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    x = np.random.RandomState(23).rand(48, 3).astype("float32")
    with strategy.scope():
        rows = strategy.experimental_make_numpy_dataset((x, x.sum(axis=1)))
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        model.compile(tf.keras.optimizers.SGD(lr=FLAGS.lr), "mse")
    model.fit(rows.batch(FLAGS.batch_size), epochs=2, verbose=2)
    print("weights", [float(np.sum(w)) for w in model.get_weights()])


if __name__ == "__main__":
    app.run(main)
