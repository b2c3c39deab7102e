"""A training loop of one's own on several workers: distributed data, gradient tape, checkpoints.

    python examples/custom_loop.py
    drumbeat run -n 3 examples/custom_loop.py

Started again with the same `--model-dir` it goes on after the last epoch that it finished. Under
`drumbeat run`, what happens to a worker meanwhile costs less than that: see `progress`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

import digits
import drumbeat
import recipe

Step = Callable[[tuple[tf.Tensor, tf.Tensor]], tf.Tensor]


class Classifier:
    """The network with all that changes while it trains.

    Make it in the strategy's scope: every variable is made there, the optimizer's included.
    """

    def __init__(self, image_shape: tuple[int, ...]) -> None:
        self.network = recipe.build_network(image_shape)
        self.optimizer = keras.optimizers.Adam(2e-3)
        self.optimizer.build(self.network.trainable_variables)
        self.accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        self.epochs_done = tf.Variable(0, dtype=tf.int64)


def make_train_step(
    strategy: tf.distribute.Strategy, classifier: Classifier, batch_size: int
) -> Step:
    """A function from a distributed batch to the mean loss over all its examples."""

    def on_worker(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = batch
        with tf.GradientTape() as tape:
            scores = classifier.network(images, training=True)
            # Divided by the global batch, the sum over workers is the mean over its examples.
            loss = tf.nn.compute_average_loss(
                classifier.loss(labels, scores), global_batch_size=batch_size
            )
        variables = classifier.network.trainable_variables
        classifier.optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        classifier.accuracy.update_state(labels, scores)
        return loss

    @tf.function
    def step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        losses = strategy.run(on_worker, args=(batch,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return step


def make_test_step(strategy: tf.distribute.Strategy, classifier: Classifier) -> Step:
    """A function from a distributed batch to how many of its examples are read right."""

    def on_worker(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = batch
        guesses = tf.argmax(classifier.network(images, training=False), axis=-1)
        return tf.reduce_sum(tf.cast(guesses == labels, tf.int32))

    @tf.function
    def step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        right = strategy.run(on_worker, args=(batch,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, right, axis=None)

    return step


def make_checkpoints(
    strategy: tf.distribute.Strategy, classifier: Classifier, folder: Path
) -> tf.train.CheckpointManager:
    """Restore the newest checkpoint of the chief, if any, and return where to write the next."""
    checkpoint = tf.train.Checkpoint(
        network=classifier.network,
        optimizer=classifier.optimizer,
        epochs_done=classifier.epochs_done,
    )
    newest = tf.train.latest_checkpoint(folder)
    if newest:
        try:
            checkpoint.restore(newest)
        except ValueError as error:
            raise SystemExit(
                f"{newest} holds another network ({error}). "
                "Choose another --model-dir, or delete that folder to start anew."
            ) from None
    if not recipe.is_chief(strategy):
        folder = Path(tempfile.mkdtemp(prefix="not-the-chief-"))
    return tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)


def main() -> None:
    options = recipe.parse_options(__file__)
    keras.utils.set_random_seed(1)
    strategy = drumbeat.strategy()
    train, test = digits.load(options.data)
    batches = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[0]), seed=1)
    train_data = strategy.experimental_distribute_dataset(batches.batch(options.batch_size))
    test_data = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(test).batch(options.batch_size)
    )
    with strategy.scope():
        classifier = Classifier(train[0].shape[1:])
    checkpoints = make_checkpoints(strategy, classifier, options.model_dir / "checkpoints")
    train_step = make_train_step(strategy, classifier, options.batch_size)
    test_step = make_test_step(strategy, classifier)

    # What it holds outlives a worker that is killed: the loop goes on in the middle of an epoch.
    progress = drumbeat.state.resumable(classifier=classifier, losses=[])
    for epoch in progress.epochs(options.epochs, first=int(classifier.epochs_done)):
        classifier.accuracy.reset_state()
        progress.losses = []
        for batch in progress.batches(train_data):
            progress.losses.append(float(train_step(batch)))
        classifier.epochs_done.assign_add(1)
        checkpoints.save()
        print(
            f"epoch {epoch + 1}/{options.epochs}: "
            f"loss {sum(progress.losses) / len(progress.losses):.4f}, "
            f"accuracy {float(classifier.accuracy.result()):.4f}",
            flush=True,
        )
    right = sum(int(test_step(batch)) for batch in test_data)
    print(f"test accuracy {right / len(test[1]):.4f}")


if __name__ == "__main__":
    main()
