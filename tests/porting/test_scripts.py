"""What `drumbeat port` makes of whole scripts: imports, files, layout, and what it leaves alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from drumbeat.porting.engine import port

OLD_SCRIPTS = sorted(Path(__file__).parents[1].glob("old_scripts/*.py"))
HEADER = """\
import os
import numpy as np
import tensorflow as tf
from tensorflow import keras
"""
MODEL = "model = tf.keras.Sequential([tf.keras.layers.Dense(4)])\n"


def before_and_after(old: str, new: str) -> tuple[str, str]:
    start = HEADER + MODEL
    return f"{start}{old}\n", f"{start}{new}\n"


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
