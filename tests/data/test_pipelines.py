"""What is changed of tf.data in workers; that they read alike is in training/test_parity.py."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from drumbeat.data.pipelines import unlock_caches

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("is_old", [True, False])
def test_a_cache_that_a_killed_worker_was_writing_is_written_anew(
    is_old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Put back at the end.
    monkeypatch.setattr(tf.data.Dataset, "cache", tf.data.Dataset.cache)
    numbers: Any = tf.data.Dataset.range(5)
    writing = iter(numbers.cache(str(tmp_path / "a")))
    next(writing)
    shutil.copy(tmp_path / "a_0.lockfile", tmp_path / "b_0.lockfile")
    unlock_caches(time.time() + (2 if is_old else -2))
    cached = numbers.cache(str(tmp_path / "b"))
    if is_old:
        assert [int(n) for n in cached] == [0, 1, 2, 3, 4]
        assert (tmp_path / "a_0.lockfile").exists()
    else:
        with pytest.raises(tf.errors.AlreadyExistsError):
            list(cached)
    assert len(list(numbers.cache(str(tmp_path / "missing" / "c")).take(0))) == 0
