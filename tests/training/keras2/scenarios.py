"""Small trainings of tf_keras models, run on 1 and 2 workers by test_keras2.py, which compares.

    drumbeat run -n N scenarios.py OUTPUT_DIR [NAME ...]

Written as scripts are that ask for Keras 2: they set the variable and use `tf.keras`. Each
scenario returns named arrays: what must not depend on the number of workers, and what starts
with "own_", which is this worker's alone. A scenario that raises leaves its traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

strategy = tf.distribute.MultiWorkerMirroredStrategy()
RANK = strategy.cluster_resolver.task_id
SIZE = strategy.num_replicas_in_sync
OUT = Path(sys.argv[1])
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


class Counted:
    """Notes which collectives are made."""

    def __init__(self, behind):
        self.behind = behind
        self.names = []

    def enter(self, number, kind, name):
        self.names.append(name or kind)
        self.behind.enter(number, kind, name)

    def leave(self):
        self.behind.leave()


def data(rows=73, features=6, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype("float32")
    return x, (x @ rng.normal(size=(features, classes))).argmax(-1)


def pipeline(rows=73, batch=16, seed=1):
    return tf.data.Dataset.from_tensor_slices(data(rows)).shuffle(100, seed=seed).batch(batch)


def compiled(inner, optimizer=None, loss=None, **arguments):
    """A classifier of 6 features: `inner` are layers between two dense ones."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8, activation="tanh"), *inner(), layers.Dense(3)]
        )
        model.compile(
            optimizer=optimizer or keras.optimizers.SGD(0.1),
            loss=loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **arguments,
        )
    return model


def outcome(model, history=None, **more):
    layers = (layer for layer in model.layers if not isinstance(layer, keras.metrics.Metric))
    weights = [weight for layer in layers for weight in layer.get_weights()]
    result = {f"weight_{i}": w for i, w in enumerate(weights)}
    if history is not None:
        result |= {f"history_{k}": np.array(v) for k, v in history.history.items()}
    return result | more


def nothing():
    return []


@scenario
def arrays():
    """N1, L1: 73 rows in batches of 16; the last has 9, of which one worker has 5."""
    x, y = data()
    logged = []
    each = keras.callbacks.LambdaCallback(on_batch_end=lambda _, logs: logged.append(dict(logs)))
    model = compiled(nothing)
    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=3,
        verbose=0,
        class_weight={0: 1.0, 1: 2.0, 2: 0.5},
        validation_data=(x[:33], y[:33]),
        callbacks=[each],
    )
    predicted = model.predict(x[:33], batch_size=8, verbose=0)
    scores = model.evaluate(x[:33], y[:33], batch_size=8, verbose=0)
    largest = max(logs["accuracy"] for logs in logged)
    return outcome(
        model, history, scores=np.array(scores), predicted=predicted, own_largest=np.array(largest)
    )


@scenario
def rows_for_some():
    """Batches of 4, and a last one of 1 row, of which one worker has none."""
    model = compiled(lambda: [layers.BatchNormalization(synchronized=True), layers.Dropout(0.3)])
    history = model.fit(pipeline(21, 4), epochs=2, verbose=0, validation_data=pipeline(5, 2))
    return outcome(model, history, predicted=model.predict(data(5)[0], batch_size=2, verbose=0))


@scenario
def clipped_and_weighted():
    x, y = data()
    model = compiled(
        nothing,
        keras.optimizers.Adam(0.01, global_clipnorm=0.1, use_ema=True, weight_decay=1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
        weighted_metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
        steps_per_execution=2,
    )
    weights = np.linspace(0, 2, len(y))
    history = model.fit(x, y, 16, 3, verbose=0, sample_weight=weights, validation_split=0.2)
    return outcome(model, history, predicted=model.predict(x, batch_size=7, verbose=0))


@scenario
def masked_sequences():
    keras.utils.set_random_seed(2)
    rng = np.random.default_rng(0)
    x = rng.integers(1, 9, size=(21, 7))
    x[np.arange(7)[None] >= rng.integers(1, 7, 21)[:, None]] = 0
    with strategy.scope():
        model = keras.Sequential(
            [
                layers.Embedding(9, 4, mask_zero=True),
                layers.GRU(5, return_sequences=True, dropout=0.2),
                layers.Dense(9, kernel_regularizer="l2"),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.legacy.RMSprop(0.01), loss, metrics=["accuracy"])
    return outcome(model, model.fit(x, x, batch_size=8, epochs=2, verbose=0))


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
        self.noise = layers.GaussianNoise(0.1)
        self.mean = keras.metrics.Mean("mean_loss")

    def call(self, x, training=None):
        return self.dense(self.noise(x, training=training))

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, given):
        x, y = given
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.mean.update_state(y)
        return {"mean_loss": self.mean.result(), "number": tf.constant(3.0)}


@scenario
def own_train_step():
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = OwnStep()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1)), loss)
        model.optimizer.get_scaled_loss = lambda loss: loss
    history = model.fit(pipeline(), epochs=2, verbose=0)
    return outcome(model, history)


@scenario
def custom_loop():
    keras.utils.set_random_seed(4)
    batch = 16
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
        optimizer = keras.optimizers.Adam(0.05)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        losses_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    seen = []

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = tf.nn.compute_average_loss(losses_of(y, outputs), global_batch_size=batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, outputs)
        return loss

    for _ in range(2):
        accuracy.reset_states()
        for x, y in strategy.experimental_distribute_dataset(pipeline(64, batch)):
            loss = strategy.reduce("SUM", strategy.run(train_step, args=(x, y)), axis=None)
            seen.append(float(loss))
        seen.append(float(accuracy.result()))
    return outcome(model, seen=np.array(seen))


@scenario
def on_batch():
    x, y = data(9)
    model = compiled(nothing)
    seen = [model.train_on_batch(x, y) for _ in range(2)] + [model.test_on_batch(x, y)]
    return outcome(model, seen=np.array(seen), predicted=model.predict_on_batch(x))


@scenario
def stopping():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if RANK == SIZE - 1 and batch == 2:
                self.model.stop_training = True

    model = compiled(nothing)
    early = keras.callbacks.EarlyStopping(patience=0, min_delta=10, restore_best_weights=True)
    first = model.fit(
        pipeline(), epochs=9, verbose=0, validation_data=pipeline(), callbacks=[early]
    )
    model.fit(pipeline(), epochs=9, verbose=0, callbacks=[Stop()])
    return outcome(model, first, steps=np.array(int(model.optimizer.iterations)))


@scenario
def a_step_is_one_collective():
    model = compiled(nothing)
    communicator = strategy.extended.communicator
    model.fit(pipeline(64), epochs=1, verbose=0)
    found = []
    for rows in (64, 128):
        counted = communicator.observer = Counted(communicator.observer)
        model.fit(pipeline(rows), epochs=1, verbose=0)
        communicator.observer = counted.behind
        # What has no name is of a step; how often snapshots are taken, time tells.
        found.append(counted.names.count("all_reduce"))
    # Between the exchange at the beginning of the epoch and its end.
    names = counted.names
    epoch = names[names.index("stop_training") + 1 : names.index("metrics")] if SIZE > 1 else []
    return {"own_more": np.array(found[1] - found[0]), "own_in_steps": np.array(epoch, str)}


@scenario
def files():
    """F13, T2: saves by the chief alone and by all at once, and callbacks that write."""
    folder = OUT / f"files-{SIZE}"
    folder.mkdir(exist_ok=True)
    callbacks = [
        keras.callbacks.ModelCheckpoint(str(folder / "w-{epoch}.ckpt"), save_weights_only=True),
        keras.callbacks.ModelCheckpoint(str(folder / "best.keras"), save_best_only=True),
        keras.callbacks.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
    ]
    model = compiled(nothing, keras.optimizers.Adam(0.01))
    model.fit(pipeline(), epochs=2, verbose=0, validation_data=pipeline(), callbacks=callbacks)
    if RANK == 0:
        model.save(str(folder / "alone.keras"))
    model.save(str(folder / "all.h5"))
    strategy.extended.communicator.barrier("written")
    again = compiled(nothing, keras.optimizers.Adam(0.01))
    # Goes on at the third epoch, with weights and moments of the chief's backup.
    history = again.fit(pipeline(), epochs=3, verbose=0, callbacks=callbacks[2:3])
    loaded = [keras.models.load_model(str(folder / name)) for name in ("alone.keras", "all.h5")]
    strategy.extended.communicator.barrier("read")
    return outcome(
        again,
        history,
        epochs=np.array(history.epoch),
        loaded=np.array([each.predict(data(4)[0], verbose=0) for each in loaded]),
        original=model.predict(data(4)[0], verbose=0),
        files=np.array(sorted(path.name for path in folder.iterdir())),
    )


@scenario
def folders():
    """SavedModels and checkpoints, as scripts of old write them."""
    folder = OUT / f"folders-{SIZE}"
    folder.mkdir(exist_ok=True)
    each_epoch = keras.callbacks.ModelCheckpoint(str(folder / "at-{epoch}"))
    model = compiled(nothing)
    model.fit(pipeline(), epochs=2, verbose=0, callbacks=[each_epoch])
    if RANK == 0:
        model.save(str(folder / "alone"))
    model.save(str(folder / "all"))
    model.save_weights(str(folder / "weights"))
    strategy.extended.communicator.barrier("written")
    loaded = [keras.models.load_model(str(folder / name)) for name in ("alone", "all", "at-2")]
    loaded.append(compiled(nothing))
    loaded[-1].load_weights(tf.train.latest_checkpoint(str(folder)))
    strategy.extended.communicator.barrier("read")
    return {
        "loaded": np.array([each.predict(data(4)[0], verbose=0) for each in loaded]),
        "original": model.predict(data(4)[0], verbose=0),
        "files": np.array(sorted(path.name for path in folder.iterdir())),
    }


def main():
    for name, function in SCENARIOS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        place = OUT / f"{name}.{SIZE}.{RANK}"
        try:
            np.savez(f"{place}.npz", **function())
        except BaseException:
            Path(f"{place}.txt").write_text(traceback.format_exc())
            if SIZE > 1:  # the others would wait
                raise


if __name__ == "__main__":
    main()
