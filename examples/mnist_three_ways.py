"""One network trained from the three kinds of input that people start with.

    python examples/mnist_three_ways.py --way numpy
    drumbeat run -n 2 examples/mnist_three_ways.py --way strategy

- numpy: arrays go straight into `fit`;
- dataset: a `tf.data.Dataset` of global batches, which the strategy splits over the workers;
- strategy: each worker makes its own input, `distribute_datasets_from_function` telling it which
  part is its own.

All three train the same model on any number of workers, one included.
"""

from __future__ import annotations

import keras
import tensorflow as tf

import digits
import drumbeat
import recipe


def fit_arrays(
    model: keras.Model, train: digits.Examples, test: digits.Examples, options: recipe.Options
) -> None:
    """Train from NumPy arrays; `batch_size` is the global one."""
    model.fit(
        *train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=test,
        verbose=2,
    )


def fit_dataset(
    model: keras.Model, train: digits.Examples, test: digits.Examples, options: recipe.Options
) -> None:
    """Train from datasets of global batches."""
    dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[0]), seed=1)
    model.fit(
        dataset.batch(options.batch_size).prefetch(tf.data.AUTOTUNE),
        epochs=options.epochs,
        validation_data=tf.data.Dataset.from_tensor_slices(test).batch(options.batch_size),
        verbose=2,
    )


def fit_own_input(
    model: keras.Model, train: digits.Examples, test: digits.Examples, options: recipe.Options
) -> None:
    """Train with one input pipeline a worker, each over its own part of the examples."""

    def make_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(train)
        part = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        batch_size = context.get_per_replica_batch_size(options.batch_size)
        return part.shuffle(len(train[0]), seed=1).repeat().batch(batch_size)

    # The parts may differ by one example, so it is steps that end an epoch, not the data.
    steps = -(-len(train[0]) // options.batch_size)
    model.fit(
        tf.distribute.get_strategy().distribute_datasets_from_function(make_input),
        epochs=options.epochs,
        steps_per_epoch=steps,
        validation_data=tf.data.Dataset.from_tensor_slices(test).batch(options.batch_size),
        verbose=2,
    )


WAYS = {"numpy": fit_arrays, "dataset": fit_dataset, "strategy": fit_own_input}


def main() -> None:
    options = recipe.parse_options(__file__, ways=tuple(WAYS))
    keras.utils.set_random_seed(1)
    strategy = drumbeat.strategy()
    train, test = digits.load(options.data)
    with strategy.scope():
        model = recipe.build_network(train[0].shape[1:])
        model.compile(
            optimizer=keras.optimizers.Adam(2e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        WAYS[options.way](model, train, test, options)
        loss, accuracy = model.evaluate(*test, batch_size=options.batch_size, verbose=0)
    options.model_dir.mkdir(parents=True, exist_ok=True)
    model.save(options.model_dir / f"{options.way}.keras")
    print(f"{options.way}: test loss {loss:.4f}, test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
