"""`drumbeat port` as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
OLD = """\
import sys
import tensorflow as tf
model = tf.keras.Sequential()
model.compile(tf.keras.optimizers.Adam(lr=1))
model.save(sys.argv[1])
"""


def port(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "drumbeat", "port", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_shows_then_writes_then_has_nothing_to_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OLD, encoding="utf-8")
    shown = port(tmp_path, "train.py")
    assert shown.returncode == 0
    assert "-model.compile(tf.keras.optimizers.Adam(lr=1))\n+model" in shown.stdout
    assert shown.stderr.startswith("train.py: --write applies this; 1 left to you.\n")
    assert "train.py: look at line 5: The end of sys.argv[1] can't be seen" in shown.stderr
    assert script.read_text(encoding="utf-8") == OLD

    other = tmp_path / "other.py"
    other.write_text("import keras\nprint 1\n", encoding="utf-8")
    written = port(tmp_path, "--write", "other.py", "train.py")
    assert written.returncode == 2
    assert written.stdout == ""
    assert "drumbeat: other.py: line 2 is not Python 3" in written.stderr
    assert "train.py: ported; 1 left to you.\n" in written.stderr
    assert "Traceback" not in written.stderr
    assert "learning_rate=1" in script.read_text(encoding="utf-8")

    again = port(tmp_path, "train.py")
    assert again.returncode == 0
    assert again.stdout == ""
    assert again.stderr.startswith("train.py: nothing to port; 1 left to you.\n")


def test_nothing_of_it_is_imported_by_other_commands() -> None:
    code = (
        "import sys, drumbeat.cli.options; "
        "print([name for name in sys.modules if 'libcst' in name or 'drumbeat.porting' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
