"""Which strategy a cluster gets, and what is said where it can't have the one asked for."""

from __future__ import annotations

import pytest

from drumbeat.cluster.strategy_names import Facts, decide
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    ("asked", "facts", "name", "why"),
    [
        ("auto", Facts(), "one-device", "one worker with one device"),
        ("auto", Facts(devices=2), "mirrored", "one worker with 2 devices"),
        ("auto", Facts(workers=2, devices=2), "multi-worker", "2 workers"),
        ("auto", Facts(workers=2, devices=2, ps=1), "parameter-server", "1 ps task"),
        ("auto", Facts(options=("--exact",)), "multi-worker", "--exact, on one worker"),
        ("auto", Facts(devices=2, options=("--exact",)), "multi-worker", "--exact, on one worker"),
        ("auto", Facts(started=True), "multi-worker", "one worker of drumbeat run"),
        ("auto", Facts(started=True, devices=4), "mirrored", "one worker with 4 devices"),
        ("mirrored", Facts(), "mirrored", "as asked for"),
        ("central-storage", Facts(devices=2, ps=1), "central-storage", "as asked for"),
        ("one-device", Facts(devices=2, options=("--exact",)), "one-device", "as asked for"),
        ("multi-worker", Facts(ps=2), "multi-worker", "as asked for"),
        ("parameter-server", Facts(workers=2, ps=2), "parameter-server", "as asked for"),
    ],
)
def test_what_fits(asked: str, facts: Facts, name: str, why: str) -> None:
    decision = decide(asked, facts)
    assert (decision.name, decision.why) == (name, why)


@pytest.mark.parametrize(
    ("asked", "facts", "part"),
    [
        ("parameter-server", Facts(workers=2), "no ps task.*Add --ps 1"),
        ("mirrored", Facts(workers=2), "one process, but the cluster has 2 workers.*multi-worker"),
        ("one-device", Facts(workers=2), "one process, but"),
        ("auto", Facts(ps=1, options=("--exact",)), r"--exact is of .* is parameter-server \(1 ps"),
        ("central-storage", Facts(options=("--compress int8",)), "--compress int8 is of"),
        ("mirored", Facts(), "expected one of auto, one-device, .*Did you mean mirrored"),
        ("MultiWorkerMirroredStrategy", Facts(), "Did you mean multi-worker"),
        ("", Facts(), "expected one of auto"),
    ],
)
def test_what_is_missing_is_said(asked: str, facts: Facts, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        decide(asked, facts)
