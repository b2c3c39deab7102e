"""What a script sees of several devices in one process; test_local_devices.py runs it.

    drumbeat run --devices-per-worker 3 devices.py FOLDER

Each check prints its name and "ok", or a traceback. What a training comes to is compared
with the same training on one device, without a strategy.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import sys
import traceback
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import drumbeat

FOLDER = Path(sys.argv[1])
DEVICES = 3
CHECKS = []
strategy = tf.distribute.MirroredStrategy()
one_device = tf.distribute.get_strategy()


def check(function):
    CHECKS.append(function)
    return function


def rows(count):
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return x, (x @ np.array([1.0, -2.0, 0.5, 0.0], "float32"))[:, None]


def small_model(**compiled):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"], **compiled)
    return model


def assert_same(train):
    """That `train(strategy)` returns the same arrays on one device and on all."""
    both = []
    for used in (one_device, strategy):
        keras.backend.clear_session()
        keras.utils.set_random_seed(7)
        both.append(train(used))
    for number, (one, many) in enumerate(zip(*both, strict=True)):
        np.testing.assert_allclose(many, one, rtol=1e-5, atol=1e-6, err_msg=str(number))


def scope_of(used):
    return contextlib.nullcontext() if used is one_device else used.scope()


@check
def each_is_known_as_what_was_asked_for():
    mirrored, central = (
        tf.distribute.MirroredStrategy,
        tf.distribute.experimental.CentralStorageStrategy,
    )
    for made, cls, other in ((mirrored(), mirrored, central), (central(), central, mirrored)):
        assert isinstance(made, cls)
        assert not isinstance(made, other)
        assert made.num_replicas_in_sync == DEVICES == len(made.extended.worker_devices)
        assert cls() is made
    assert drumbeat.strategy() is strategy
    assert mirrored(["/cpu:0", "CPU:2"]).extended.worker_devices == (
        "/device:CPU:0",
        "/device:CPU:2",
    )


@check
def central_storage_trains_the_same():
    def train(used):
        x, y = rows(23)
        if used is strategy:
            used = tf.distribute.experimental.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0")
        with scope_of(used):
            model = small_model()
        assert {weight.value.device[-5:] for weight in model.weights} == {"CPU:0"}
        history = model.fit(x, y, batch_size=5, epochs=2, verbose=0, validation_data=(x, y))
        scores = [model.predict(x, batch_size=5, verbose=0), model.evaluate(x, y, 5, verbose=0)]
        return [*model.get_weights(), *history.history.values(), *scores]

    assert_same(train)


@check
def every_device_computes():
    seen = []
    with strategy.scope():
        weight = tf.Variable(2.0)
    assert weight.device.endswith("CPU:0")
    with tf.distribute.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
        assert tf.Variable(2.0).device.endswith("CPU:1")

    @tf.function
    def run(batch):
        def place(part):
            seen.append(tf.reduce_sum(part * weight).device.rpartition("device:")[2])
            return tf.shape(part)[0]

        return strategy.run(place, args=(batch,))

    counts = strategy.experimental_local_results(run(tf.zeros([7, 2])))
    assert seen == ["CPU:0", "CPU:1", "CPU:2"], seen
    assert sorted(map(int, counts)) == [2, 2, 3], counts


@check
def gradients_are_clipped_after_they_are_summed():
    # Those of the devices are 5, -4.5 and 0, of which Keras takes the mean.
    x, y = np.ones([3, 1]), np.array([[5.0], [-4.5], [0.0]])
    for arguments in ({"clipvalue": 0.1}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}):
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((1,)), keras.layers.Dense(1, "linear", False, "zeros")]
            )
            model.compile(keras.optimizers.SGD(1.0, **arguments), loss=lambda y, p: y * p)
        model.fit(x, y, batch_size=3, verbose=0)
        np.testing.assert_allclose(model.get_weights()[0], [[-0.1]], rtol=1e-6)


@check
def the_loop_of_the_tutorial():
    def train(used):
        x, y = rows(23)
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
        with scope_of(used):
            model = small_model()
            losses = keras.losses.MeanSquaredError(reduction="none")
            error = keras.metrics.MeanAbsoluteError()
            checkpoint = tf.train.Checkpoint(optimizer=model.optimizer, model=model)

        def step(batch):
            features, labels = batch
            with tf.GradientTape() as tape:
                scores = model(features, training=True)
                loss = tf.nn.compute_average_loss(losses(labels, scores), global_batch_size=5)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            error.update_state(labels, scores)
            return loss

        @tf.function
        def distributed_step(batch):
            each = used.run(step, args=(batch,))
            return used.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)

        shown = []
        for _ in range(2):
            batches = used.experimental_distribute_dataset(dataset)
            shown.append(sum(float(distributed_step(batch)) for batch in batches))
            shown.append(float(error.result()))
            error.reset_state()
        path = checkpoint.save(str(FOLDER / f"tutorial-{used is strategy}"))
        again = small_model()
        tf.train.Checkpoint(optimizer=again.optimizer, model=again).restore(path).expect_partial()
        return [*model.get_weights(), *again.get_weights(), shown]

    assert_same(train)


@check
def a_dataset_function_gives_batches_for_one_device():
    def train(used):
        x, y = rows(25)
        data = tf.data.Dataset.from_tensor_slices((x, y))
        with scope_of(used):
            model = small_model()
        if used is one_device:
            batches = data.batch(3 * DEVICES)
        else:
            batches = used.distribute_datasets_from_function(
                lambda context: data.batch(context.get_per_replica_batch_size(3 * DEVICES))
            )
        history = model.fit(batches, epochs=2, verbose=0)
        return [*model.get_weights(), history.history["loss"], history.history["mae"]]

    assert_same(train)


@check
def values_of_replicas():
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([float(context.replica_id_in_sync_group)])
    )
    doubled = strategy.run(tf.function(lambda value: 2 * value), args=(values,))
    assert [float(v[0]) for v in strategy.experimental_local_results(doubled)] == [0, 2, 4]
    assert float(strategy.reduce("SUM", doubled, axis=None)[0]) == 6
    assert float(strategy.reduce("MEAN", doubled, axis=None)[0]) == 2
    assert strategy.gather(doubled, axis=0).numpy().tolist() == [0, 2, 4]


@check
def variables_are_written_to_together():
    kinds = tf.VariableAggregation
    with strategy.scope():
        counters = [
            tf.Variable(1.0, aggregation=how, trainable=False)
            for how in (kinds.SUM, kinds.MEAN, kinds.ONLY_FIRST_REPLICA)
        ]

    @tf.function
    def count():
        def add():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            for counter in counters:
                counter.assign_add(tf.cast(number, tf.float32) + 1)

        strategy.run(add)

    count()
    assert [float(counter) for counter in counters] == [7, 3, 2], counters


@check
def variables_that_do_not_say_how_are_refused():
    with strategy.scope():
        counter = tf.Variable(0.0)
        table = tf.Variable([1.0, 2.0])
    with pytest.raises(Exception, match="without an aggregation"):
        strategy.run(tf.function(lambda: counter.assign_add(1.0)))
    one_row = tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))
    with pytest.raises(Exception, match="Expected assign"):
        strategy.run(tf.function(lambda: table.scatter_add(one_row)))
    assert table.scatter_add(one_row).numpy().tolist() == [2.0, 2.0]


@check
def saved_here_and_loaded_there():
    x, y = rows(20)

    def train(used):
        with scope_of(used):
            model = small_model()
        model.fit(x, y, batch_size=8, verbose=0)
        path = FOLDER / f"{used is strategy}.keras"
        model.save(path)
        other = strategy if used is one_device else one_device
        with scope_of(other):
            again = keras.models.load_model(path)
        again.fit(x, y, batch_size=8, verbose=0)
        model.export(str(FOLDER / f"exported-{used is strategy}"), verbose=False)
        served = tf.saved_model.load(str(FOLDER / f"exported-{used is strategy}"))
        return [model.predict(x, batch_size=8, verbose=0), *again.get_weights(), served.serve(x)]

    assert_same(train)


@check
def xla_is_refused_with_a_word():
    handler = logging.handlers.BufferingHandler(100)
    logging.getLogger("drumbeat").addHandler(handler)
    x, y = rows(20)

    def train(used):
        with scope_of(used):
            model = small_model(jit_compile=used is strategy)
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        return model.get_weights()

    assert_same(train)
    assert any("several devices" in record.getMessage() for record in handler.buffer)


@check
def dropout_is_that_of_one_device():
    def train(used):
        with scope_of(used):
            layer = keras.layers.Dropout(0.5, seed=1)
        ones = tf.ones([10, 6])
        if used is one_device:
            return [layer(ones, training=True)]
        each = used.run(tf.function(lambda part: layer(part, training=True)), args=(ones,))
        return [used.gather(each, axis=0)]

    assert_same(train)


def main():
    for function in CHECKS:
        try:
            function()
            print(f"{function.__name__}: ok", flush=True)
        except Exception:
            print(f"{function.__name__}: {traceback.format_exc()}", flush=True)


main()
