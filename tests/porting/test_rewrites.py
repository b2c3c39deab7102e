"""What `drumbeat port` writes, name by name; and that it does no more than once."""

from __future__ import annotations

import pytest

from drumbeat import legacy_names as names
from drumbeat.porting.engine import port
from drumbeat.porting.recipes import recipes

HEADER = """\
import os
import numpy as np
import tensorflow as tf
from tensorflow import keras
"""
MODEL = "model = tf.keras.Sequential([tf.keras.layers.Dense(4)])\n"
LOGS = "tf.keras.callbacks.TensorBoard('logs')"

# The name in the table (what stands before the first blank), what a script has, what it gets.
REWRITES: list[tuple[str, str, str]] = [
    *[
        (f"keras.{old}", f"tf.keras.{old}", f"tf.keras.{new}")
        for old, new in names.MOVED.items()
        if not old.endswith("*")
    ],
    *[
        (f"keras.{old}", f"keras.{old[:-1]}Any", f"keras.{new[:-1]}Any")
        for old, new in names.MOVED.items()
        if old.endswith("*")
    ],
    (
        "keras.layers.experimental.SyncBatchNormalization",
        "tf.keras.layers.experimental.SyncBatchNormalization(axis=-1)",
        "tf.keras.layers.BatchNormalization(axis=-1, synchronized=True)",
    ),
    (
        "keras.utils.experimental.DatasetCreator",
        "x = tf.keras.utils.experimental.DatasetCreator(make)",
        "x = make",
    ),
    (
        "keras.utils.multi_gpu_model",
        "other = tf.keras.utils.multi_gpu_model(model, gpus=2)",
        "other = model",
    ),
    (
        "enable_mixed_precision_graph_rewrite",
        "opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)",
        'tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})\n'
        "opt = tf.keras.optimizers.LossScaleOptimizer(opt)",
    ),
    (
        "Metric.reset_states",
        "tf.keras.metrics.Mean().reset_states()",
        "tf.keras.metrics.Mean().reset_state()",
    ),
    (
        "Model.fit_generator",
        "model.fit_generator(rows, 5, 2, workers=3)",
        "model.fit(rows, steps_per_epoch=5, epochs=2)",
    ),
    (
        "Model.evaluate_generator",
        "model.evaluate_generator(generator=rows, steps=5)",
        "model.evaluate(x=rows, steps=5)",
    ),
    (
        "Model.predict_generator",
        "model.predict_generator(rows, 5)",
        "model.predict(rows, steps=5)",
    ),
    ("Optimizer.lr", "model.optimizer.lr = 0.5", "model.optimizer.learning_rate = 0.5"),
    (
        "Strategy.experimental_run_v2",
        "strategy.experimental_run_v2(step, args=(x,))",
        "strategy.run(step, args=(x,))",
    ),
    (
        "Optimizer.minimize",
        "opt.minimize(lambda: w**2, [w])",
        "with tf.GradientTape() as tape:\n"
        "    loss_value = w**2\n"
        "variables = [w]\n"
        "opt.apply_gradients(zip(tape.gradient(loss_value, variables), variables))",
    ),
    (
        "Optimizer.weights, get_weights",
        "print(model.optimizer.weights, model.optimizer.get_weights())",
        "print(model.optimizer.variables, "
        "[variable.numpy() for variable in model.optimizer.variables])",
    ),
    (
        "apply_gradients(experimental_aggregate_gradients=)",
        "opt.apply_gradients(pairs, experimental_aggregate_gradients=True)",
        "opt.apply_gradients(pairs)",
    ),
    ("Sequential.predict_classes", "model.predict_classes(x)", "model.predict(x).argmax(axis=-1)"),
    ("Sequential.predict_proba", "model.predict_proba(x)", "model.predict(x)"),
    (
        "Layer.input_shape, output_shape",
        "print([layer.output_shape for layer in model.layers[1:]], model.layers[0].input_shape)",
        "print([layer.output.shape for layer in model.layers[1:]], model.layers[0].input.shape)",
    ),
    (
        "keras.backend.set_value",
        "keras.backend.set_value(model.optimizer.lr, 0.1)",
        "model.optimizer.learning_rate.assign(0.1)",
    ),
    (
        "Strategy.experimental_make_numpy_dataset",
        "strategy.experimental_make_numpy_dataset((x, y))",
        "tf.data.Dataset.from_tensor_slices((x, y))",
    ),
    ("optimizer(lr=)", "keras.optimizers.Adam(lr=0.1)", "keras.optimizers.Adam(learning_rate=0.1)"),
    (
        "optimizer(decay=)",
        "keras.optimizers.SGD(0.1, decay=0.01)",
        "keras.optimizers.SGD(tf.keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.01))",
    ),
    ("Input(shape=n)", "keras.Input(shape=(784))", "keras.Input(shape=(784,))"),
    (
        'Loss(reduction="auto")',
        "keras.losses.Huber(reduction=keras.losses.Reduction.AUTO)",
        'keras.losses.Huber(reduction="sum_over_batch_size")',
    ),
    (
        "Embedding(weights=[table])",
        "keras.layers.Embedding(3, 4, weights=[table])",
        "keras.layers.Embedding(3, 4, "
        "embeddings_initializer=tf.keras.initializers.Constant(table))",
    ),
    (
        "compile(experimental_steps_per_execution=)",
        "model.compile('sgd', experimental_steps_per_execution=2)",
        "model.compile('sgd', steps_per_execution=2)",
    ),
    (
        "ModelCheckpoint(period=n)",
        "keras.callbacks.ModelCheckpoint('a.keras', period=1)",
        "keras.callbacks.ModelCheckpoint('a.keras')",
    ),
    *[
        (f"{method}({argument}=)", f"model.{method}(x, {argument}=2)", f"model.{method}(x)")
        for method in ("fit", "evaluate", "predict")
        for argument in names.DROPPED[method][0]
    ],
    (
        "Model.reset_states",
        "model.reset_states()",
        "for layer in model.layers:\n"
        '    if getattr(layer, "stateful", False):\n'
        "        layer.reset_state()",
    ),
    (
        "compile(experimental_run_tf_function=)",
        "model.compile('sgd', experimental_run_tf_function=False)",
        "model.compile('sgd')",
    ),
    (
        "BatchNormalization(fused=)",
        "tf.keras.layers.BatchNormalization(fused=True)",
        "tf.keras.layers.BatchNormalization()",
    ),
    ("TensorBoard(write_grads=)", f"{LOGS[:-1]}, write_grads=True)", LOGS),
    ("TensorBoard(batch_size=)", f"{LOGS[:-1]}, batch_size=3)", LOGS),
    (
        "ModelCheckpoint to a name without .keras or .weights.h5",
        "keras.callbacks.ModelCheckpoint('a-{epoch}', save_weights_only=True)",
        "keras.callbacks.ModelCheckpoint('a-{epoch}.weights.h5', save_weights_only=True)",
    ),
    (
        "model.save(folder)",
        "model.save('folder', save_format='tf')",
        "model.export('folder')\nmodel.save('folder.keras')",
    ),
    (
        "load_model(folder)",
        "model.save('folder')\ntf.keras.models.load_model('folder')",
        "model.save('folder.keras')\ntf.keras.models.load_model('folder.keras')",
    ),
    (
        "save_weights(path) without .weights.h5",
        "model.save_weights('a/b')",
        "os.makedirs(\"a\", exist_ok=True)\nmodel.save_weights('a/b.weights.h5')",
    ),
    (
        "load_weights(TensorFlow checkpoint)",
        "path = 'a'\nmodel.save_weights(path)\nmodel.load_weights('./a')",
        "path = 'a'\nmodel.save_weights(f\"{path}.weights.h5\")\n"
        "model.load_weights('./a.weights.h5')",
    ),
    (
        "get_file, load_data with a full path",
        "keras.utils.get_file('/data/a.npz', 'http://b')",
        'keras.utils.get_file("a.npz", \'http://b\', cache_dir="/data", cache_subdir="")',
    ),
    (
        "get_ipython",
        "get_ipython().system('ls')\nget_ipython().run_cell_magic('time', '', 'a = 1')",
        "pass  # get_ipython().system('ls')\na = 1",
    ),
]


def before_and_after(old: str, new: str) -> tuple[str, str]:
    start = HEADER + MODEL
    return f"{start}{old}\n", f"{start}{new}\n"


@pytest.mark.parametrize(("name", "old", "new"), REWRITES, ids=[case[0] for case in REWRITES])
def test_rewrites(name: str, old: str, new: str) -> None:
    del name
    script, expected = before_and_after(old, new)
    ported = port(script)
    assert ported.text == expected
    assert not ported.notes


def test_every_name_of_the_table_has_a_recipe_and_an_example() -> None:
    table = [old.name for old in names.table()]
    assert sorted(recipes()) == sorted(table)
    assert {name for name, _, _ in REWRITES} == {
        name for name, recipe in recipes().items() if recipe.does
    }
    # What is left to a human somewhere, is shown to be.
    assert {name for name, recipe in recipes().items() if recipe.leaves} == {
        name for name, _, _ in LEFT
    }


LEFT: list[tuple[str, str, str]] = [
    ("Model.reset_states", "x = model.reset_states()", "layer.reset_state()"),
    ("Model.fit_generator", "model.fit_generator(*rows)", "give them by name"),
    ("Model.evaluate_generator", "model.evaluate_generator(*rows)", "give them by name"),
    ("Model.predict_generator", "model.predict_generator(*rows)", "give them by name"),
    (
        "enable_mixed_precision_graph_rewrite",
        "if tf.train.experimental.enable_mixed_precision_graph_rewrite(opt): pass",
        "mixed_float16",
    ),
    ("Optimizer.minimize", "opt.minimize(loss, [w], grad_loss=3)", "tf.GradientTape"),
    (
        "apply_gradients(experimental_aggregate_gradients=)",
        "opt.apply_gradients(pairs, experimental_aggregate_gradients=False)",
        "leave out the all_reduce",
    ),
    ("Sequential.predict_classes", "net = make_it()\nnet.add(x)\nnet.predict_classes(x)", "argmax"),
    ("Input(shape=n)", "keras.Input(shape=width())", "shape=(width(),)"),
    (
        "ModelCheckpoint to a name without .keras or .weights.h5",
        "keras.callbacks.ModelCheckpoint('a', save_weights_only=flag)",
        ".weights.h5",
    ),
    ("model.save(folder)", "model.save(sys.argv[1])", "it must be .keras or .h5"),
    ("load_model(folder)", "keras.models.load_model('folder')", "What writes it can't be seen"),
    ("save_weights(path) without .weights.h5", "model.save_weights(name())", ".weights.h5"),
    ("load_weights(TensorFlow checkpoint)", "model.load_weights('a/b')", "What writes it"),
    (
        "get_file, load_data with a full path",
        "keras.datasets.mnist.load_data(path='/data/mnist.npz')",
        "KERAS_HOME",
    ),
    *[
        (name, f"x = {name}", f"{name} is gone since {since}")
        for name, (since, _) in names.REFUSED.items()
    ],
    ("get_ipython", "files = get_ipython().getoutput('ls')", "get_ipython"),
]


@pytest.mark.parametrize(("name", "script", "said"), LEFT, ids=[case[0] for case in LEFT])
def test_what_is_left_to_a_human_is_told(name: str, script: str, said: str) -> None:
    del name
    whole, _ = before_and_after(script, "")
    ported = port(whole)
    assert [said in note.text for note in ported.notes] == [True]
    assert ported.notes[0].line == whole.count("\n")
    assert ported.text == whole
