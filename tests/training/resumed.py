"""Trainings of many kinds, one after another, for test_resuming.py to interrupt.

    drumbeat run -n N resumed.py OUTPUT_DIR NAME [NAME ...]

Each is made of `STEPS` steps, so that a step of the job says where in which of them it is.
Worker r writes OUTPUT_DIR/r.json: what each has come to. `plain_` ones have no strategy.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import drumbeat

OUT = Path(sys.argv[1])
RANK = int(os.environ["DRUMBEAT_RANK"])
ROWS, BATCH, EPOCHS = 200, 20, 4
STEPS = EPOCHS * ROWS // BATCH
strategy = tf.distribute.MultiWorkerMirroredStrategy()
KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


rng = np.random.default_rng(0)
x = rng.normal(size=(ROWS, 6)).astype("float32")
y = (x @ rng.normal(size=(6, 3))).argmax(-1)


def pipeline():
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS).batch(BATCH)


def network(*, is_lazy=False):
    layers = [
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(3),
    ]
    return keras.Sequential(layers if is_lazy else [keras.Input((6,)), *layers])


def compiled(model, optimizer=None, **arguments):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = optimizer or keras.optimizers.Adam(1e-2)
    model.compile(optimizer, loss, metrics=["accuracy"], **arguments)
    return model


def model(**arguments):
    with strategy.scope():
        return compiled(network(), **arguments)


def digest(*variables):
    total = hashlib.sha256()
    for variable in variables:
        total.update(np.asarray(tf.convert_to_tensor(variable)).tobytes())
    return total.hexdigest()


def outcome(trained, history=None, **more):
    result = {"weights": digest(*trained.variables, *trained.optimizer.variables), **more}
    if history is not None:
        result["epochs"] = history.epoch
        result["history"] = {k: [float(v) for v in vs] for k, vs in history.history.items()}
    return result


class Diary(keras.callbacks.Callback):
    """Large attributes: the same on all workers, each worker's own, and now this, now that."""

    def __init__(self):
        super().__init__()
        self.alike = [np.zeros(20_000)]
        self.own = [np.full(20_000, RANK + 1.0)]
        self.steps = np.zeros(20_000)

    def on_train_batch_end(self, batch, logs=None):
        self.alike[0][batch] += 1
        self.own[0] += 0.5
        self.steps[(RANK, -1)[batch % 2]] += batch


@kind
def arrays():
    trained, diary = model(), Diary()
    history = trained.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[diary])
    shown = [float(value) for value in trained.evaluate(x, y, verbose=0)]
    noted = digest(*diary.alike, *diary.own, diary.steps)
    return outcome(trained, history, shown=shown, drawn=np.random.rand(), noted=noted)


@kind
def patience():
    """Callbacks with a memory; it stops early, after all steps but those of an epoch.

    Each validation moves the training's shuffle on, too.
    """
    trained = model()
    data = pipeline()
    stop = keras.callbacks.EarlyStopping(patience=2, min_delta=9.0, restore_best_weights=True)
    slower = keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, min_delta=0.1)
    log = keras.callbacks.CSVLogger(str(OUT / f"log-{RANK}.csv"))
    history = trained.fit(
        data,
        epochs=EPOCHS + 5,
        validation_data=data.take(2),
        callbacks=[stop, [slower, log]],
        verbose=0,
    )
    # Others' logs are in the run's folder.
    lines = (OUT / "log-0.csv").read_text() if RANK == 0 else ""
    return outcome(
        trained, history, lines=lines, stopped=[stop.wait, stop.stopped_epoch, stop.best_epoch]
    )


@kind
def endless():
    trained = model()
    data = pipeline().repeat()
    history = trained.fit(data, epochs=5, steps_per_epoch=STEPS // 5, verbose=0)
    return outcome(trained, history)


@kind
def loop():
    trained = model()
    with strategy.scope():
        trained.optimizer.build(trained.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def on_worker(batch):
        with tf.GradientTape() as tape:
            scores = trained(batch[0], training=True)
            loss = tf.nn.compute_average_loss(losses(batch[1], scores), global_batch_size=BATCH)
        gradients = tape.gradient(loss, trained.trainable_variables)
        trained.optimizer.apply_gradients(zip(gradients, trained.trainable_variables, strict=True))
        accuracy.update_state(batch[1], scores)
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(on_worker, args=(batch,)), axis=None)

    data = strategy.experimental_distribute_dataset(pipeline())
    progress = drumbeat.state.resumable(model=trained, accuracy=accuracy, best=0.0, losses=[])
    for _ in progress.epochs(EPOCHS):
        accuracy.reset_state()
        progress.total = 0.0
        for batch in progress.batches(data):
            progress.total += float(step(batch))
        progress.best = max(progress.best, float(accuracy.result()))
        progress.losses.append(progress.total)
    return outcome(trained, best=progress.best, losses=progress.losses)


@kind
def many_short():
    trained = model()
    histories = [
        trained.fit(x, y, batch_size=BATCH * 2, epochs=1, verbose=0).history["loss"][0]
        for _ in range(STEPS * 2 * BATCH // ROWS // 1)
    ]
    return outcome(trained, histories=[float(value) for value in histories])


@kind
def unknown_length():
    trained = model()
    return outcome(trained, trained.fit(pipeline().filter(lambda *_: True), epochs=4, verbose=0))


@kind
def mapped():
    """Each worker maps its own rows; the last batch has fewer, and the data an end of its own."""
    trained = model()
    numbers = tf.data.Dataset.range(ROWS - 3).shuffle(ROWS)
    data = numbers.map(lambda i: (x_of[i] * 2, y_of[i]), num_parallel_calls=2).batch(BATCH)
    drawn = numbers.map(lambda i: (x_of[i], y_of[i])).repeat().batch(BATCH)
    history = trained.fit(data, epochs=EPOCHS // 2, verbose=0, validation_data=data.take(3))
    half = STEPS // 2
    more = trained.fit(drawn, epochs=2, steps_per_epoch=half // 2, verbose=0)
    return outcome(trained, history, more=more.history["loss"])


x_of, y_of = tf.constant(x), tf.constant(y)


@kind
def cached():
    trained = model()
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS).cache().batch(BATCH)
    return outcome(trained, trained.fit(data, epochs=EPOCHS, verbose=0))


@kind
def several_steps_at_once():
    trained = model(steps_per_execution=4)
    return outcome(trained, trained.fit(pipeline(), epochs=EPOCHS, verbose=0))


@kind
def eager():
    trained = model(run_eagerly=True)
    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)
    return outcome(trained, trained.fit(pipeline(), epochs=EPOCHS, verbose=0, callbacks=[slower]))


@kind
def accumulated_in_half_precision():
    keras.mixed_precision.set_global_policy("mixed_float16")
    optimizer = keras.optimizers.AdamW(1e-2, gradient_accumulation_steps=3, use_ema=True)
    trained = model(optimizer=optimizer)
    keras.mixed_precision.set_global_policy("float32")
    return outcome(trained, trained.fit(pipeline(), epochs=EPOCHS, verbose=0))


@kind
def python_dataset():
    class Shuffled(keras.utils.PyDataset):
        def __init__(self):
            super().__init__()
            self.order = np.arange(ROWS)

        def __len__(self):
            return ROWS // BATCH

        def __getitem__(self, index):
            rows = self.order[index * BATCH : (index + 1) * BATCH]
            return x[rows] + np.random.rand(), y[rows]

        def on_epoch_end(self):
            np.random.shuffle(self.order)

    trained = model()
    return outcome(trained, trained.fit(Shuffled(), epochs=EPOCHS, verbose=0))


@kind
def bad_memory():
    """A weight of the last worker changes by itself, once."""
    marker = OUT / "bad-memory"

    class Flip(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5 and strategy.num_replicas_in_sync - 1 == RANK and not marker.exists():
                marker.touch()
                kernel = self.model.layers[0].kernel
                kernel.assign(kernel + 1.0)

    trained = model()
    return outcome(trained, trained.fit(x, y, epochs=EPOCHS, batch_size=BATCH, callbacks=[Flip()]))


@kind
def plain_lazy():
    trained = compiled(network(is_lazy=True))
    return outcome(trained, trained.fit(pipeline(), epochs=EPOCHS, verbose=0))


@kind
def plain_two_networks():
    class Two(keras.Model):
        """No `call`: only its step says what it does."""

        def __init__(self):
            super().__init__()
            self.networks = [
                keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(6)])
                for _ in range(2)
            ]

        def compile(self, optimizers):
            super().compile()
            self.optimizers = optimizers

        def train_step(self, data):
            results = {}
            for name, net, optimizer in zip("ab", self.networks, self.optimizers, strict=True):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(net(data[0], training=True) - data[0]))
                variables = net.trainable_variables
                gradients = tape.gradient(loss, variables)
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
                results[name] = loss
            return results

    trained = Two()
    trained.compile([keras.optimizers.Adam(1e-2), keras.optimizers.RMSprop(1e-3)])
    history = trained.fit(pipeline(), epochs=EPOCHS, verbose=0)
    moments = [v for optimizer in trained.optimizers for v in optimizer.variables]
    return outcome(trained, history, moments=digest(*moments))


keras.utils.set_random_seed(7)
(OUT / f"{RANK}.json").write_text(json.dumps({name: KINDS[name]() for name in sys.argv[2:]}))
