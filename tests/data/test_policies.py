"""What is said of auto-shard policies."""

from __future__ import annotations

import logging

import pytest
import tensorflow as tf

from drumbeat.data import policies

pytestmark = pytest.mark.tensorflow


def of(policy: str) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(policies.Policy, policy)
    return tf.data.Dataset.range(8).batch(4).with_options(options)


@pytest.mark.parametrize(
    ("policy", "rank", "notes"), [("OFF", 0, 1), ("OFF", 1, 0), ("AUTO", 0, 0), ("DATA", 0, 0)]
)
def test_the_chief_says_once_that_batches_depend_on_the_number_of_workers(
    policy: str, rank: int, notes: int, caplog: pytest.LogCaptureFixture
) -> None:
    policies._note_order.cache_clear()
    with caplog.at_level(logging.WARNING, "drumbeat"):
        for _ in range(2):
            policies.shard(of(policy), rank, 2, bool)
    said = [message for message in caplog.messages if "depends on the number of workers" in message]
    assert len(said) == notes
