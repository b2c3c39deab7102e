"""The import checker finds each kind of violation, and drumbeat has none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "check_imports.py"


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_imports", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_imports"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["check_imports"]
    return module


def make_package(root: Path, files: dict[str, str]) -> Path:
    source = root / "src"
    for name, text in {"__init__.py": "", "errors.py": "", **files}.items():
        path = source / "drumbeat" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.parents:
            if folder == source:
                break
            (folder / "__init__.py").touch()
    return source


BAD = {
    "upwards": ({"cluster/a.py": "import drumbeat.launch.b", "launch/b.py": ""}, "cluster/a.py:1"),
    "sideways": ({"launch/a.py": "from drumbeat.strategies import x"}, "launch may import only"),
    "layer by name": ({"launch/a.py": "from drumbeat import training"}, "launch/a.py:1"),
    "relative": ({"data/a.py": "from ..training import x"}, "drumbeat.data.a imports"),
    "inside a function": (
        {"launch/a.py": "def f():\n    from drumbeat.training import x"},
        "launch/a.py:2",
    ),
    "import_module": (
        {"launch/a.py": "import importlib\nimportlib.import_module('drumbeat.training')"},
        "launch/a.py:2",
    ),
    "only for types": (
        {"data/a.py": "if TYPE_CHECKING:\n    from drumbeat.strategies import X"},
        "data/a.py:2",
    ),
    "package's own name": ({"data/a.py": "from drumbeat import strategy"}, "drumbeat.strategy"),
    "attribute of the package": (
        {"launch/a.py": "import drumbeat\nx = drumbeat.training.fit"},
        "launch/a.py:2",
    ),
    "unknown layer": ({"helpers.py": "import drumbeat.errors"}, "in no layer"),
    "tensorflow internals": (
        {"data/a.py": "from tensorflow.python.distribute import values"},
        "only src/drumbeat/tf_internals.py",
    ),
    "tensorflow internals, package": (
        {"data/a.py": "from tensorflow import python"},
        "only src/drumbeat/tf_internals.py",
    ),
    "tensorflow internals, attribute": (
        {"data/a.py": "import tensorflow as tf\nx = tf.python.eager.context"},
        "data/a.py:2",
    ),
    "keras internals": (
        {"tf_internals.py": "import keras.src.trainers"},
        "only src/drumbeat/keras_internals.py",
    ),
    "keras internals, late": (
        {"training/a.py": "import importlib\nimportlib.import_module('keras.src.backend')"},
        "training/a.py:2",
    ),
    "cycle": (
        {"data/a.py": "import drumbeat.data.b", "data/b.py": "from drumbeat.data import a"},
        "import cycle: drumbeat.data.a -> drumbeat.data.b -> drumbeat.data.a",
    ),
}

GOOD = {
    "downwards": {"cli/a.py": "import drumbeat.launch.b", "launch/b.py": "import drumbeat.errors"},
    "own layer": {"data/a.py": "from drumbeat.data.b import x", "data/b.py": "x = 1"},
    "relative": {"data/a.py": "from .b import x\nfrom .. import errors", "data/b.py": "x = 1"},
    "version": {"cli/a.py": "from drumbeat import __version__"},
    "package itself": {"launch/a.py": "import drumbeat\nx = drumbeat.__file__"},
    "internals in their file": {
        "tf_internals.py": "from tensorflow.python.eager import context",
        "keras_internals.py": "import keras\nx = keras.src.backend",
    },
    "public api": {
        "data/a.py": "import tensorflow as tf\nfrom keras import layers\nx = tf.pythonic"
    },
    "late cycle": {
        "data/a.py": "import drumbeat.data.b",
        "data/b.py": "def f():\n    import drumbeat.data.a",
    },
}


@pytest.mark.parametrize("case", BAD)
def test_violation_is_found(checker: ModuleType, tmp_path: Path, case: str) -> None:
    files, expected = BAD[case]
    problems = checker.check(make_package(tmp_path, files))
    assert len(problems) == 1, problems
    assert expected in problems[0]


@pytest.mark.parametrize("case", GOOD)
def test_no_false_alarm(checker: ModuleType, tmp_path: Path, case: str) -> None:
    assert checker.check(make_package(tmp_path, GOOD[case])) == []


def test_command_prints_the_violation_and_fails(tmp_path: Path) -> None:
    source = make_package(tmp_path, {"cluster/a.py": "import drumbeat.cli"})
    done = subprocess.run(
        [sys.executable, str(TOOL), str(source)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert done.stderr.startswith("src/drumbeat/cluster/a.py:1: drumbeat.cluster.a imports")


def test_drumbeat_keeps_the_direction(checker: ModuleType) -> None:
    assert (ROOT / "src/drumbeat/errors.py").exists()
    assert checker.check(ROOT / "src") == []
