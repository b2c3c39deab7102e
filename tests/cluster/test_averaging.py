"""How --sync-every and --outer are read, and what they don't go with."""

from __future__ import annotations

import pytest

from drumbeat.cluster.averaging import Averaging
from drumbeat.errors import ConfigError


@pytest.mark.parametrize(
    ("every", "outer", "expected"),
    [
        (None, None, Averaging()),
        (8, None, Averaging(every=8)),
        (500, "nesterov", Averaging(every=500, rate=0.7, momentum=0.9)),
        (1, "nesterov:0.5", Averaging(every=1, rate=0.5, momentum=0.9)),
        (1, "nesterov:1,0", Averaging(every=1)),
    ],
)
def test_what_is_read_is_written_alike(every, outer, expected) -> None:
    averaging = Averaging.of(every, outer)
    assert averaging == expected
    assert Averaging.parse(str(averaging)) == averaging
    assert averaging.is_on == (every is not None)


@pytest.mark.parametrize(
    ("every", "outer", "told"),
    [
        (0, None, "from 1 to"),
        (True, None, "True"),
        ("8", None, "'8'"),
        (None, "nesterov", "Give sync_every too"),
        (8, "adam", "expected nesterov"),
        (8, "nesterov:fast", "learning rate above 0"),
        (8, "nesterov:0.7,1", "below 1"),
        (8, "nesterov:0.7,", "learning rate"),
    ],
)
def test_what_can_not_be_read_is_told(every, outer, told) -> None:
    with pytest.raises(ConfigError, match=told):
        Averaging.of(every, outer)


@pytest.mark.parametrize(
    "others",
    [
        {"exact": 8},
        {"compresses": True},
        {"measures_shares": True},
        {"is_elastic": True},
    ],
)
def test_what_it_does_not_go_with(others) -> None:
    Averaging().check(**others)
    Averaging.of(8).check()
    with pytest.raises(ConfigError, match="Leave one of the two out"):
        Averaging.of(8).check(**others)
