from __future__ import annotations

import pytest

from drumbeat.cli.whoami import describe

TF_CONFIG = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
SKYPILOT = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "a b"}


@pytest.mark.parametrize(
    ("env", "wrong", "said"),
    [
        ({}, False, ["on this machine alone"]),
        (
            {"TF_CONFIG": TF_CONFIG, **SKYPILOT, "DRUMBEAT_TOKEN": "x"},
            False,
            ["TF_CONFIG: this is worker 1, node 1 of 2", "goes by TF_CONFIG"],
        ),
        (
            {"TF_CONFIG": TF_CONFIG, **SKYPILOT, "SKYPILOT_NODE_RANK": "0"},
            True,
            ["SkyPilot says node 0 of 2, TF_CONFIG says node 1 of 2", "DRUMBEAT_TOKEN is not set"],
        ),
        ({"TF_CONFIG": "{"}, True, ["TF_CONFIG can't be used"]),
        ({"SM_HOSTS": "x", **SKYPILOT}, True, ["SageMaker: can't be used", "what SkyPilot says"]),
    ],
)
def test_all_that_says_who_this_is_is_shown(env, wrong, said):
    lines, found = describe(env)
    assert found is wrong
    for text in said:
        assert any(text in line for line in lines), lines
