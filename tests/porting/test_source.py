"""Scripts as files: how they are written stays, and mistakes are told in a line."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from drumbeat.errors import ConfigError
from drumbeat.porting import source

OLD = "import keras\nopt = keras.optimizers.Adam(lr=1)\n"
NEW = "import keras\nopt = keras.optimizers.Adam(learning_rate=1)\n"


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OLD.encode(), NEW.encode()),
        (OLD.replace("\n", "\r\n").encode(), NEW.replace("\n", "\r\n").encode()),
        (OLD.rstrip().encode(), NEW.rstrip().encode()),
        (f"# é\n{OLD}".encode("utf-8-sig"), f"# é\n{NEW}".encode("utf-8-sig")),
        (f"# coding: latin-1\n# é\n{OLD}".encode("latin-1"),) * 2,
        (f"\t\r\n{OLD}".encode(), f"\t\r\n{NEW}".encode()),
    ],
    ids=["plain", "crlf", "no newline at the end", "byte order mark", "latin-1", "mixed"],
)
def test_a_file_keeps_how_it_is_written(tmp_path: Path, before: bytes, after: bytes) -> None:
    after = after.replace(b"(lr=1)", b"(learning_rate=1)")
    path = tmp_path / "train.py"
    script = source.read(write(path, before))
    path.chmod(0o751)
    patch = script.diff(script.ported().text)
    script.replace(script.ported().text)
    assert path.read_bytes() == after
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert os.listdir(tmp_path) == ["train.py"]
    # What was shown is what was done.
    path.write_bytes(before)
    subprocess.run(
        ["patch", "--binary", "--silent", str(path)],
        input=patch.encode(script.encoding.removesuffix("-sig")),
        check=True,
        timeout=30,
    )
    assert path.read_bytes() == after


def test_lines_that_are_added_end_as_the_others_do(tmp_path: Path) -> None:
    text = "import tensorflow as tf\r\nmodel = tf.keras.Sequential()\r\nmodel.save('m')\r\n"
    script = source.read(write(tmp_path / "train.py", text.encode()))
    ported = script.ported().text
    assert "export" in ported
    assert "\n" not in ported.replace("\r\n", "")


def test_a_link_goes_on_leading_to_the_script(tmp_path: Path) -> None:
    write(tmp_path / "train.py", OLD.encode())
    link = tmp_path / "link.py"
    link.symlink_to("train.py")
    script = source.read(str(link))
    script.replace(NEW)
    assert link.is_symlink()
    assert (tmp_path / "train.py").read_text() == NEW


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.py", None, "none.py does not exist"),
        (".", None, " is a folder; expected Python scripts"),
        ("a.ipynb", b"{}", "jupyter nbconvert --to script"),
        ("a.py", b"import keras\nprint 'a'\n", "a.py: line 2 is not Python 3"),
        ("a.py", b"# \xe9 keras\n", "a.py is not UTF-8"),
        ("a.py", b"# coding: nonsense\nkeras\n", "a.py is not UTF-8, nor text in another"),
        ("a.py", b"import keras\nx = 1\nx = '\xe9'\n", "a.py is not UTF-8"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        source.read(str(path)).ported()
    assert said in str(error.value)
    assert content is None or path.read_bytes() == content


def test_a_file_that_can_not_be_replaced_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    script = source.read(write(path, OLD.encode()))
    # A folder stands where the new file is to be written; root may write everywhere else.
    (tmp_path / f".train.py.{os.getpid()}.new").mkdir()
    with pytest.raises(ConfigError, match="can't be written"):
        script.replace(NEW)
    assert path.read_text() == OLD
