"""Which Keras a job gets, and whether tf_keras is loaded ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumbeat.errors import ConfigError
from drumbeat.launch import generation

VARIABLE = generation.VARIABLE


@pytest.mark.parametrize(
    ("keras", "before", "after"),
    [
        (None, {}, {}),
        (None, {VARIABLE: "1"}, {VARIABLE: "1"}),
        (2, {}, {VARIABLE: "1"}),
        (3, {VARIABLE: "1"}, {VARIABLE: "0"}),
    ],
)
def test_environment_of_a_job(
    keras: int | None, before: dict[str, str], after: dict[str, str]
) -> None:
    assert generation.environ_with(keras, before) == after


def test_keras_2_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumbeat.launch.generation._PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match=r"--keras 2 asks for Keras 2.*drumbeat\[keras2\]"):
        generation.environ_with(2, {})
    with pytest.raises(ConfigError, match="TF_USE_LEGACY_KERAS=1 asks for"):
        generation.environ_with(None, {VARIABLE: "1"})
    assert generation.environ_with(3, {}) == {VARIABLE: "0"}


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("import tensorflow as tf", False),
        ('import os\nos.environ["TF_USE_LEGACY_KERAS"] = "1"', True),
        ("from tf_keras import layers", True),
    ],
)
def test_a_script_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, asks: bool
) -> None:
    (tmp_path / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert generation.asks_for_2("train.py", is_module=False, environ={}) is asks
    assert generation.asks_for_2("train", is_module=True, environ={}) is asks
    assert generation.asks_for_2("no.py", is_module=False, environ={VARIABLE: "1"})
    assert not generation.asks_for_2("no.py", is_module=False, environ={})
