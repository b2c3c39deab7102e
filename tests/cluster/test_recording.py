"""The order to record, and the records, on their way through environment and files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from drumbeat.cluster.recording import Recording, StepRecord, VariableRecord
from drumbeat.errors import ConfigError


def test_an_order_passes_through_the_environment(tmp_path):
    order = Recording(folder=tmp_path / "a:b", steps=3, nudge=True)
    assert Recording.from_env(order.to_env()) == order
    assert Recording.from_env({}) is None


@pytest.mark.parametrize(
    "text", ["", "3", "3:0", "x:0:/tmp", ":0:/tmp", "3:0:", "-1:0:/tmp", "3:/tmp"]
)
def test_a_malformed_order_is_refused(text):
    with pytest.raises(ConfigError, match="expected STEPS:NUDGE:FOLDER"):
        Recording.from_env({"DRUMBEAT_CHECK": text})


def test_a_step_is_made_when_every_worker_has_recorded_it(tmp_path):
    order = Recording(folder=Path(tmp_path), steps=2)
    for rank, step in ((0, 1), (0, 2), (1, 1)):
        order.path(rank, step).touch()
    assert order.have_made(1, 2)
    assert not order.have_made(2, 2)
    order.path(1, 2).touch()
    assert order.have_made(2, 2)


def test_a_record_passes_through_a_file():
    variable = VariableRecord(
        name="dense/kernel",
        shape=(2, 3),
        gradient=(0.1, math.inf),
        before=(),
        after=(1e-30, 3.0),
        gradient_norm=0.1,
        norm=3.0,
        checksum=2**32 - 1,
    )
    record = StepRecord(
        loss=None,
        rows=("00ff", "ff00"),
        together=True,
        in_scope=True,
        optimizer="Adam",
        learning_rate=1e-3,
        variables=(variable, variable),
        facts=(("sharding", "FILE"),),
    )
    assert StepRecord.from_bytes(record.to_bytes()) == record
