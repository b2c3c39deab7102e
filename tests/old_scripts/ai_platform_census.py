"""AI Platform's census sample: arrays, RMSprop(lr=), TensorBoard, a SavedModel to export to."""

import argparse
import os

import numpy as np
import tensorflow as tf


def get_args():
    args_parser = argparse.ArgumentParser()
    args_parser.add_argument("--job-dir", default="job", type=str)
    args_parser.add_argument("--num-epochs", default=2, type=int)
    args_parser.add_argument("--batch-size", default=32, type=int)
    args_parser.add_argument("--learning-rate", default=0.01, type=float)
    args_parser.add_argument("--input-dim", default="5")
    return args_parser.parse_args()


def create_keras_model(input_dim, learning_rate):
    Dense = tf.keras.layers.Dense
    inputs = tf.keras.Input(shape=input_dim)
    hidden = Dense(20, activation=tf.nn.relu, kernel_initializer="uniform")(inputs)
    outputs = Dense(1, activation=tf.nn.sigmoid)(hidden)
    model = tf.keras.Model(inputs, outputs)
    optimizer = tf.keras.optimizers.RMSprop(lr=learning_rate)
    model.compile(loss="binary_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    return model


def input_fn(features, labels, shuffle, num_epochs, batch_size):
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    if shuffle:
        dataset = dataset.shuffle(buffer_size=len(features))
    return dataset.repeat(num_epochs).batch(batch_size).prefetch(1)


def train_and_evaluate(args):
    features = np.random.RandomState(7).rand(150, 5).astype("float32")
    labels = (features[:, :1] > 0.5).astype("float32")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = create_keras_model(args.input_dim, args.learning_rate)
    training = input_fn(features, labels, True, args.num_epochs, args.batch_size)
    validation = input_fn(features[:50], labels[:50], False, args.num_epochs, 50)
    rate = tf.keras.callbacks.LearningRateScheduler(
        lambda epoch: args.learning_rate + 0.02 * (0.5 ** (1 + epoch)), verbose=True
    )
    board = tf.keras.callbacks.TensorBoard(os.path.join(args.job_dir, "keras_tensorboard"))
    model.fit(
        training,
        steps_per_epoch=int(150 / args.batch_size),
        epochs=args.num_epochs,
        validation_data=validation,
        validation_steps=1,
        verbose=1,
        callbacks=[rate, board],
    )
    export_path = os.path.join(args.job_dir, "keras_export")
    model.save(export_path)
    print("Model exported to: {}".format(export_path))
    print("weights", [float(np.sum(w)) for w in model.get_weights()])


if __name__ == "__main__":
    train_and_evaluate(get_args())
