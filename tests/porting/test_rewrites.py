"""What `drumbeat port` writes, name by name; and that it does no more than once."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from drumbeat import legacy_names as names
from drumbeat.porting.engine import port
from drumbeat.porting.recipes import recipes

OLD_SCRIPTS = sorted(Path(__file__).parents[1].glob("old_scripts/*.py"))
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
        "print([layer.output_shape for layer in model.layers], model.layers[0].input_shape)",
        "print([layer.output.shape for layer in model.layers], model.layers[0].input.shape)",
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
    ("fit(workers=)", "model.fit(x, workers=2)", "model.fit(x)"),
    ("fit(use_multiprocessing=)", "model.fit(x, use_multiprocessing=True)", "model.fit(x)"),
    ("fit(max_queue_size=)", "model.fit(x, max_queue_size=2)", "model.fit(x)"),
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
    assert {name for name, _, _ in REWRITES} == set(table)
    for name, recipe in recipes().items():
        assert recipe.does, name
    # What is left to a human somewhere, is shown to be.
    assert {name for name, recipe in recipes().items() if recipe.leaves} == {
        name for name, _, _ in LEFT
    }


LEFT: list[tuple[str, str, str]] = [
    ("Metric.reset_states", "model.reset_states()", "layer.reset_state()"),
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


# Ways to get at Keras, and what a name of it is then called.
ROOTS = {
    "import tensorflow as tf": "tf.keras.",
    "import tensorflow": "tensorflow.keras.",
    "import tensorflow as tf\nkeras = tf.keras": "keras.",
    "from tensorflow import keras": "keras.",
    "from tensorflow import keras as K": "K.",
    "import keras": "keras.",
    "import tensorflow.keras as k": "k.",
    "import tensorflow.compat.v2 as tf": "tf.keras.",
    "try:\n    from tensorflow import keras\nexcept ImportError:\n    import keras": "keras.",
}
USES = {
    "{0}optimizers.legacy.Adam(lr=1, decay=0)": "{0}optimizers.Adam(learning_rate=1)",
    "{0}layers.experimental.preprocessing.Rescaling(2)": "{0}layers.Rescaling(2)",
    "x = {0}metrics.Mean()\nx.reset_states()": "x = {0}metrics.Mean()\nx.reset_state()",
    "class M({0}metrics.Metric):\n    def reset_states(self): pass": (
        "class M({0}metrics.Metric):\n    def reset_state(self): pass"
    ),
    "o = {0}optimizers\no.legacy.SGD(1)": "o = {0}optimizers\no.SGD(1)",
}


@pytest.mark.parametrize("root", ROOTS)
def test_names_are_known_however_keras_is_imported(root: str) -> None:
    old = "\n".join([root, *USES]).format(ROOTS[root])
    new = "\n".join([root, *USES.values()]).format(ROOTS[root])
    assert port(old).text == new


IMPORTS = {
    "from tensorflow.keras.optimizers.legacy import Adam, SGD as S  # both": (
        "from tensorflow.keras.optimizers import Adam, SGD as S  # both"
    ),
    "from keras.layers.experimental import preprocessing as p": "from keras import layers as p",
    "from tensorflow.keras.layers.experimental.preprocessing import (\n    Rescaling,\n)": (
        "from tensorflow.keras.layers import (\n    Rescaling,\n)"
    ),
    "from tensorflow.keras.mixed_precision import experimental as mixed_precision": (
        "from tensorflow.keras import mixed_precision"
    ),
    "from tensorflow.keras.mixed_precision.experimental import set_policy": (
        "from tensorflow.keras.mixed_precision import set_global_policy as set_policy"
    ),
    "import tensorflow.keras.optimizers.legacy as o": "import tensorflow.keras.optimizers as o",
    "from tensorflow.keras.layers import Dense, experimental": (
        "from tensorflow.keras import layers as experimental\n"
        "from tensorflow.keras.layers import Dense"
    ),
    "from keras.utils import multi_gpu_model, to_categorical": (
        "from keras.utils import to_categorical"
    ),
    "from keras.layers.experimental.preprocessing import *": "from keras.layers import *",
    "def f():\n  from keras.utils import multi_gpu_model": "def f():\n  pass",
    "from .keras.optimizers.legacy import Adam": "from .keras.optimizers.legacy import Adam",
}


@pytest.mark.parametrize("old", IMPORTS)
def test_imports(old: str) -> None:
    ported = port(f"{old}\n")
    assert ported.text.strip() == IMPORTS[old]


UNTOUCHED = [
    # Names like Keras's that are others'.
    "import tensorflow as tf\nclass Mine:\n    def reset_states(self): pass\nMine().reset_states()",
    "import tensorflow as tf\nopt = parser.parse_args()\nprint(opt.lr, opt.weights)",
    "import tensorflow as tf\ntf.saved_model.save(model, 'folder')",
    "import tensorflow as tf\nopt = tf.compat.v1.train.AdamOptimizer(0.1)\nopt.minimize(loss, v)",
    "import tensorflow as tf\nfrom sklearn.svm import SVC\ncls = SVC()\ncls.predict_proba(x)",
    "import tensorflow as tf\ndef Input(shape): pass\nInput(shape=3)",
    "import tensorflow as tf\nimport mine\nmine.optimizers.legacy.Adam(lr=3)",
    "import torch, keras_tuner\noptimizer = torch.optim.SGD(p, lr=3)",
    "import tensorflow as tf\nx = 'tf.keras.optimizers.legacy.Adam(lr=1)'  # reset_states()",
    "from .keras import optimizers\noptimizers.legacy.Adam(lr=1)  # tensorflow",
    # What Keras 3 takes as it is.
    "import keras\nkeras.Input(shape=(3,))\nkeras.Input(shape=x.shape[1:])\nkeras.Input(a_shape)",
    "import keras\nmodel.save('a.keras')\nmodel.save('b.h5')\nkeras.models.load_model('b.h5')",
    "import keras\nmodel = keras.Model()\nprint(model.input_shape)",
]


@pytest.mark.parametrize("script", UNTOUCHED)
def test_what_is_not_old_stays(script: str) -> None:
    ported = port(script)
    assert ported.text == script
    assert not ported.notes


def test_layout_and_comments_survive() -> None:
    script = HEADER + textwrap.dedent(
        """
        # The optimizer.
        opt = tf.keras.optimizers.Adam(
            lr=0.1,  # found by trying
            decay=0.0,
            beta_1 = .9,
        )  # end


        if True :
          # saved
          model . save( 'folder' )  # here
        """
    )
    expected = HEADER + textwrap.dedent(
        """
        # The optimizer.
        opt = tf.keras.optimizers.Adam(
            learning_rate=0.1,  # found by trying
            beta_1 = .9,
        )  # end


        if True :
          # saved
          model.export('folder')
          model . save( 'folder.keras' )  # here
        """
    )
    assert port(script).text == expected


FILES = {
    # Read under the same path, seen through what the script makes of it.
    "p = 'm'\nmodel.save(p)\nkeras.models.load_model(os.path.join('', 'm'))": (
        "p = 'm'\nmodel.save(f\"{p}.keras\")\nkeras.models.load_model(os.path.join('', 'm.keras'))"
    ),
    # A function of the script's own, as in the tutorial for several workers.
    "def place(path):\n    return os.path.join(find(), os.path.basename(path))\n"
    "model.save(place('a/m'))\nkeras.models.load_model('a/m')": (
        "def place(path):\n    return os.path.join(find(), os.path.basename(path))\n"
        "os.makedirs(os.path.dirname(str(place('a/m')) + \".keras\"), exist_ok=True)\n"
        "model.save(str(place('a/m')) + \".keras\")\nkeras.models.load_model('a/m.keras')"
    ),
    # Something looks for the folder: it is there as well.
    "if os.path.isdir('m'):\n    keras.models.load_model('m')\nmodel.save('m')": (
        "if os.path.isdir('m'):\n    keras.models.load_model('m.keras')\n"
        "model.export('m')\nmodel.save('m.keras')"
    ),
    "if os.path.exists('w.h5'):\n    model.load_weights('w.h5')\nmodel.save_weights('w.h5')": (
        "if os.path.exists('w.weights.h5'):\n    model.load_weights('w.weights.h5')\n"
        "model.save_weights('w.weights.h5')"
    ),
    "if os.path.exists('w' + '.index'):\n    model.load_weights('w')\nmodel.save_weights('w')": (
        "if os.path.exists('w' + '.weights.h5'):\n    model.load_weights('w.weights.h5')\n"
        "model.save_weights('w.weights.h5')"
    ),
    "keras.callbacks.ModelCheckpoint('w-%s-{epoch:02d}.hdf5' % n)\nload_model('w-1.hdf5')": (
        "keras.callbacks.ModelCheckpoint('w-%s-{epoch:02d}.keras' % n)\nload_model('w-1.hdf5')"
    ),
    "model.save(f'a/{epoch}')\nkeras.models.load_model('a/3')": (
        "os.makedirs(\"a\", exist_ok=True)\nmodel.save(f'a/{epoch}.keras')\n"
        "keras.models.load_model('a/3.keras')"
    ),
    "import pathlib\nmodel.save_weights(pathlib.Path('.') / 'w')": (
        "import pathlib\nmodel.save_weights(pathlib.Path('.') / 'w.weights.h5')"
    ),
    "model.load_weights(tf.train.latest_checkpoint('.'))": None,
}


@pytest.mark.parametrize("old", FILES)
def test_files_are_read_where_they_are_written(old: str) -> None:
    script, expected = before_and_after(old, FILES[old] or old)
    ported = port(script)
    assert ported.text == expected
    assert bool(ported.notes) == (FILES[old] is None)


def test_the_newest_checkpoint_and_every_nth_epoch_get_functions_of_the_scripts_own() -> None:
    script, _ = before_and_after(
        "saves = keras.callbacks.ModelCheckpoint('c/{epoch}', save_weights_only=True, period=2)\n"
        "latest = tf.train.latest_checkpoint('c')\n"
        "if latest:\n"
        "    model.load_weights(latest).expect_partial()",
        "",
    )
    ported = port(script)
    assert not ported.notes
    ends = ported.text.splitlines()[-4:]
    assert ends == [
        "saves = EveryNthEpoch('c/{epoch}.weights.h5', save_weights_only=True, period=2)",
        "latest = newest_weights('c')",
        "if latest:",
        '    model.load_weights(f"{latest}.weights.h5")',
    ]
    assert "\nimport glob\n" in ported.text
    assert "\ndef newest_weights(folder):" in ported.text
    assert "\nclass EveryNthEpoch(tf.keras.callbacks.ModelCheckpoint):" in ported.text
    compile(ported.text, "ported", "exec")


def test_a_script_that_asks_for_keras_2_is_left_alone() -> None:
    script = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + HEADER + "opt.lr = 3\n"
    ported = port(script)
    assert ported.text == script
    assert [note.line for note in ported.notes] == [2]


@pytest.mark.parametrize("path", OLD_SCRIPTS, ids=lambda path: path.stem)
def test_porting_again_changes_nothing(path: Path) -> None:
    """It then runs as before: old_scripts/test_old_scripts.py."""
    script = path.read_text(encoding="utf-8")
    ported = port(script)
    assert port(ported.text).text == ported.text
    compile(ported.text, path.name, "exec")
    assert not ported.notes_after, ported.notes_after
