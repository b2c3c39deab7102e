"""How often backups are made: what a user may say."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from drumbeat.errors import ConfigError
from drumbeat.training.keeping import Every

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ("epoch", Every(epochs=True)),
        (1, Every(steps=1)),
        (500, Every(steps=500)),
        (timedelta(minutes=2), Every(seconds=120.0)),
        ("30s", Every(seconds=30.0)),
        ("5min", Every(seconds=300.0)),
        (" 1.5 h ", Every(seconds=5400.0)),
        ("90 sec", Every(seconds=90.0)),
    ],
)
def test_ways_to_say_it(given: Any, every: Every) -> None:
    assert Every.of(given) == every


@pytest.mark.parametrize(
    "given",
    [0, -1, True, 1.5, None, "", "epochs", "5", "0s", "5 m", "-5min", timedelta(0), [5], "1e3s"],
)
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match='every is .*expected "epoch", a number of steps'):
        Every.of(given)
