"""Trains several models without naming a strategy, for test_plain.py.

    drumbeat run -n N plain.py OUTPUT.npz [CASE ...]

The chief writes what must not depend on the number of workers.
"""

import os
import sys

import numpy as np
import tensorflow as tf

keras = tf.keras  # the one that `drumbeat run --keras` chooses
found = {}
rng = np.random.default_rng(0)
x = rng.normal(size=(330, 6)).astype("float32")
y = (x @ rng.normal(size=(6, 3))).argmax(-1)


def model_of(*layers, loss=None, metrics=(), optimizer="adam"):
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=list(metrics))
    return model


def keep(name, model, history=None, **more):
    for number, weight in enumerate(model.get_weights()):
        found[f"{name}_weight_{number}"] = weight
    for key, values in (history.history if history else {}).items():
        found[f"{name}_{key}"] = np.array(values)
    for key, value in more.items():
        found[f"{name}_{key}"] = np.array(value)


class Spread(keras.metrics.Metric):
    """How many rows it saw, and the sum of the largest scores."""

    def __init__(self):
        super().__init__(name="spread")
        self.sum = self.add_weight(name="sum", initializer="zeros", shape=())

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.sum.assign(self.sum + tf.reduce_sum(tf.reduce_max(y_pred, -1)))

    def result(self):
        return self.sum + 0.0


class Asks(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        own = self.model.get_metrics_result()
        self.seen.append([float(logs["loss"]), float(own["accuracy"]), float(own["spread"])])


def arrays():
    asks = Asks()
    model = model_of(
        keras.layers.Dense(16, activation="relu", kernel_regularizer="l2"),
        metrics=["accuracy", Spread()],
    )
    before = model.evaluate(x, y, batch_size=50, verbose=0)
    history = model.fit(
        x, y, batch_size=48, epochs=3, verbose=0, validation_split=0.2, callbacks=[asks]
    )
    keep(
        "arrays",
        model,
        history,
        before=before,
        seen=asks.seen,
        after=model.evaluate(x, y, verbose=0),
        predicted=model.predict(x[:33], verbose=0),
    )
    asked = float(model.get_metrics_result()["spread"])
    found["arrays_asked"] = np.array(asked)


def dropout():
    model = model_of(keras.layers.Dense(9), keras.layers.Dropout(0.3))
    keep("dropout", model, model.fit(x, y, batch_size=48, epochs=2, verbose=0))


def pipeline():
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(32).prefetch(2)
    model = model_of(keras.layers.LayerNormalization(), metrics=["accuracy"], optimizer="sgd")
    keep("pipeline", model, model.fit(rows, epochs=2, verbose=0, validation_data=rows))


def by_batches():
    model = model_of(keras.layers.Dense(4, "tanh"), metrics=["accuracy"])
    losses = [model.train_on_batch(x[i : i + 60], y[i : i + 60]) for i in range(0, 300, 60)]
    keep("batches", model, losses=losses, tested=model.test_on_batch(x[:70], y[:70]))


class Largest(keras.metrics.Metric):
    """The largest score times the number of batches, of which neither is a sum over the rows."""

    def __init__(self):
        super().__init__(name="largest")
        self.most = self.add_weight(name="most", initializer="zeros", shape=())
        self.batches = tf.Variable(0.0, trainable=False)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.most.assign(tf.maximum(self.most, tf.reduce_max(y_pred)))
        self.batches.assign_add(1.0)

    def result(self):
        return self.most * self.batches

    def reset_state(self):
        self.most.assign(0.0)
        self.batches.assign(0.0)


def own_metrics():
    if tf.keras.Model.__module__.startswith("tf_keras"):
        return  # There their states are added up.
    model = model_of(metrics=[Largest()])
    history = model.fit(x[:145], y[:145], batch_size=48, epochs=2, verbose=0)
    keep("metric", model, history, tested=model.evaluate(x, y, verbose=0))


class OnGpu(keras.Sequential):
    """Where there is one, Keras 3 asks for XLA by itself, before workers come in."""

    def _resolve_auto_jit_compile(self):
        return True


def batches_in_other_modes():
    for name, kind, options in (
        ("eager", keras.Sequential, {"run_eagerly": True}),
        ("jit", keras.Sequential, {"jit_compile": True}),
        ("auto", OnGpu, {}),
    ):
        model = kind([keras.Input((6,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse", **options)
        losses = [model.train_on_batch(x[:21], x[:21, :3]), model.test_on_batch(x[:1], x[:1, :3])]
        keep(name, model, losses=losses)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(3)

    def call(self, inputs):
        return self.inner(inputs)


def subclassed():
    model = Subclassed()
    model.compile(
        keras.optimizers.SGD(0.1),
        lambda y_true, y_pred: tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(y_true[:, 0], tf.int32), y_pred)
        ),
    )
    keep("subclassed", model, model.fit(x[:300], y[:300, None], batch_size=64, epochs=2, verbose=0))
    model.save_weights(f"{sys.argv[1]}.weights.h5")


def rmse(y_true, y_pred):
    return tf.sqrt(tf.reduce_mean(tf.square(y_true - y_pred)))


def overlap(y_true, y_pred):
    return 1 - 2 * tf.reduce_sum(y_true * y_pred) / tf.reduce_sum(y_true + y_pred)


class Adds(keras.layers.Layer):
    """Adds to the loss: a sum over the rows, and three means."""

    def call(self, inputs):
        rows = tf.cast(tf.shape(inputs)[0], inputs.dtype)
        self.add_loss(1e-3 * tf.reduce_sum(tf.square(inputs)) * 0.5)
        self.add_loss(1e-2 * tf.reduce_sum(inputs * inputs) / rows)
        self.add_loss(tf.reduce_sum(tf.abs(inputs) / rows))
        self.add_loss(1e-2 * tf.reduce_mean(tf.square(inputs)))
        return inputs


class AddsOthers(keras.layers.Layer):
    """Adds what is neither a mean nor a sum, or only says so on a second look."""

    def call(self, inputs):
        squares = tf.square(inputs)
        shares = tf.nn.softmax(tf.reduce_sum(inputs, 1), axis=0)  # of a row, among all
        chosen = tf.nn.softmax(inputs)
        self.add_loss(1e-2 * tf.reduce_sum(squares) + tf.reduce_mean(tf.abs(inputs)))
        self.add_loss(1e-2 * self.by_a_function(inputs))
        self.add_loss(1e-2 * tf.norm(inputs) + 1e-2 * tf.einsum("ij,ij->", inputs, inputs))
        self.add_loss(1e-2 * tf.reduce_sum(shares * tf.reduce_sum(squares, 1)))
        self.add_loss(tf.reduce_sum(tf.reduce_mean(chosen, 0) * tf.reduce_mean(squares, 0)))
        self.add_loss(1e-2 * tf.reduce_max(squares) / tf.cast(tf.shape(inputs)[0], "float32"))
        return inputs

    @tf.function
    def by_a_function(self, inputs):
        return tf.reduce_sum(tf.square(inputs)) * tf.reduce_mean(inputs)


class AddsForEachRow(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(1e-2 * tf.reduce_sum(tf.square(inputs), 1))
        return inputs


def added_losses():
    for rows in (330, 96):  # A last batch of another size, or none.
        model = model_of(keras.layers.Dense(4, activity_regularizer="l2"), Adds(), optimizer="sgd")
        history = model.fit(x[:rows], y[:rows], batch_size=48, epochs=2, verbose=0)
        keep(f"added_{rows}", model, history)
    adding = [AddsOthers()]
    if hasattr(keras, "ops"):  # Keras 2 takes numbers only.
        adding.append(AddsForEachRow())
    model = model_of(keras.layers.Dense(4), *adding, optimizer="sgd")
    history = model.fit(x[:145], y[:145], batch_size=48, verbose=0)  # a worker gets no row
    keep("added_others", model, history, tested=model.evaluate(x, y, verbose=0))


class Contrast(keras.losses.Loss):
    def call(self, y_true, y_pred):
        unlike = tf.matmul(y_pred, y_pred, transpose_b=True)
        same = tf.range(tf.shape(y_pred)[0])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(same, unlike))


def one_number_for_a_batch():
    some = x[:145] > 0  # The last batch has a row, so that a worker has none.
    weights = np.linspace(0.5, 1.5, 145)
    for loss in (overlap, Contrast()):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6, "sigmoid")])
        model.compile("sgd", loss, metrics=[rmse])
        target = some.astype("float32")
        history = model.fit(x[:145], target, batch_size=48, epochs=2, verbose=0)
        keep(f"number_{len(found)}", model, history, tested=model.test_on_batch(x[:9], target[:9]))
    history = model.fit(x[:145], target, batch_size=48, verbose=0, sample_weight=weights)
    keep("number_weighted", model, history)


class Clip(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        return super().apply([tf.clip_by_norm(g, 0.1) for g in grads], trainable_variables)


class Sign(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(tf.sign(g), v) for g, v in grads_and_vars])


def own_optimizers():
    for optimizer in (Clip(0.1), Sign(0.01)):
        model = model_of(optimizer=optimizer)
        keep(type(optimizer).__name__, model, model.fit(x, y, batch_size=48, verbose=0))


class Endpoint(keras.layers.Layer):
    """Takes a loss of what it is given, of which some entries are masked, and shows its mean."""

    def __init__(self):
        super().__init__()
        self.loss = keras.losses.MeanSquaredError()
        self.supports_masking = True

    def call(self, inputs):
        self.add_loss(self.loss(tf.ones_like(inputs), inputs))
        return inputs


def losses_within():
    """A loss object within a layer, within a loss and as a metric; a loss of the weights."""
    kernel = keras.layers.Dense(3)
    huber = keras.losses.Huber()

    def loss(y_true, y_pred):
        return tf.reduce_mean(tf.square(y_true - y_pred), -1) + huber(y_true, y_pred)

    def of_weights(y_true, y_pred):
        penalty = tf.reduce_sum(tf.square(kernel.kernel))
        return tf.reduce_mean(tf.square(y_true - y_pred)) + 0.01 * penalty

    sequences = np.where(np.arange(6) < 4 - y[:145, None], x[:145], 0.0)
    for each in (loss, of_weights):
        inputs = keras.Input((6,))
        hidden = keras.layers.Masking()(keras.layers.Reshape((3, 2))(inputs))
        hidden = keras.layers.Flatten()(Endpoint()(keras.layers.Dense(2)(hidden)))
        model = keras.Model(inputs, kernel(hidden))
        model.compile("sgd", each, metrics=[keras.losses.MeanAbsoluteError()])
        history = model.fit(sequences, x[:145, :3], batch_size=48, epochs=2, verbose=0)
        keep(f"within_{each.__name__}", model, history)


def loss_with_a_state():
    """Several devices of one worker would share the variable."""
    steps = tf.Variable(0.0, trainable=False)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(
        "sgd", lambda true, pred: tf.reduce_mean(tf.square(true - pred)) * steps.assign_add(1.0)
    )
    keep("state", model, model.fit(x, x[:, :3], batch_size=48, epochs=2, verbose=0))


def alike(y_true, y_pred):
    logits = tf.matmul(y_pred, y_true, transpose_b=True)
    same = tf.range(tf.shape(logits)[0])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(same, logits)


def of_classes(y_true, y_pred):
    return tf.reduce_mean(tf.square(y_true - y_pred), 0) / (1 + tf.reduce_mean(y_true, 0))


class Root(keras.losses.MeanSquaredError):
    def call(self, y_true, y_pred):
        return tf.sqrt(tf.reduce_mean(super().call(y_true, y_pred)))


def rows_compared():
    """Losses with an entry for each row, or class, that takes all rows."""
    targets = keras.utils.to_categorical(y[:145], 3)
    losses = [alike, of_classes, Root(), keras.losses.CosineSimilarity(axis=0)]
    if hasattr(keras.losses, "Circle"):
        losses.append(keras.losses.Circle(gamma=4))
    for number, loss in enumerate(losses):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        given = y[:145] if number == 4 else targets
        model.compile(keras.optimizers.SGD(0.01), loss, metrics=[] if number else [alike])
        keep(f"rows_{number}", model, model.fit(x[:145], given, batch_size=48, verbose=0))


class EachToken(keras.layers.Layer):
    def call(self, inputs):
        return tf.reshape(inputs, [-1, inputs.shape[-1]])


def tokens_in_a_row():
    """An output with several entries for each row along its first axis."""

    def loss(y_true, y_pred):
        each = tf.square(tf.reshape(y_true, [-1, 1]) - y_pred)
        return tf.sqrt(tf.reduce_mean(each))

    layers = [keras.layers.Reshape((6, 1)), keras.layers.LSTM(4, return_sequences=True)]
    layers += [EachToken(), keras.layers.Dense(1, "softsign")]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile("sgd", loss)
    keep("tokens", model, model.fit(x[:97], x[:97], batch_size=48, verbose=0))


def transfer():
    base = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "relu")])
    base.trainable = False
    model = keras.Sequential([keras.Input((6,)), base, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    keep("head", model, model.fit(x, y, batch_size=48, verbose=0))
    base.trainable = True
    model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    keep("tuned", model, model.fit(x, y, batch_size=48, verbose=0))


cases = (
    arrays,
    dropout,
    pipeline,
    by_batches,
    batches_in_other_modes,
    own_metrics,
    subclassed,
    one_number_for_a_batch,
    losses_within,
    rows_compared,
    tokens_in_a_row,
    added_losses,
    own_optimizers,
    transfer,
)
for train in [globals()[name] for name in sys.argv[2:]] or cases:
    keras.backend.clear_session()
    train()
if os.environ.get("DRUMBEAT_RANK", "0") == "0":
    np.savez(sys.argv[1], **found)
