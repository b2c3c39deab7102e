from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    import os

    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", **variables}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


SHOW = """
import drumbeat, tensorflow as tf
strategy = drumbeat.strategy()
print(type(strategy).__name__, strategy.num_replicas_in_sync, strategy is drumbeat.strategy())
"""


def test_alone_it_is_tensorflows_default_strategy() -> None:
    done = run(SHOW)
    assert done.stdout.split()[:2] == ["_DefaultDistributionStrategy", "1"], done.stderr
    one = json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})
    assert run(SHOW, TF_CONFIG=one).stdout.split()[0] == "_DefaultDistributionStrategy"


def test_a_wrong_tf_config_is_an_error_that_says_so() -> None:
    done = run(SHOW, TF_CONFIG="{'cluster'")
    assert "ConfigError" in done.stderr
    assert "TF_CONFIG" in done.stderr


IN_A_CLUSTER_WITH_PS = """
import json, os
import drumbeat, tensorflow as tf
from drumbeat.errors import ConfigError
cluster = {"chief": ["a:1"], "worker": ["a:2", "b:1"], "ps": ["c:1"]}
for kind, name in (
    ("ps", None),
    ("ps", "multi-worker"),
    ("chief", "mirrored"),
    ("worker", None),
    ("evaluator", None),
):
    task = {"type": kind, "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    try:
        print(type(drumbeat.strategy(name)).__name__)
    except ConfigError as error:
        print(error)
"""


def test_tasks_that_can_not_have_the_strategy_are_told_why() -> None:
    done = run(IN_A_CLUSTER_WITH_PS)
    assert len(done.stdout.splitlines()) == 5, done.stderr
    ps, in_step, mirrored, worker, evaluator = done.stdout.splitlines()
    assert "This process is ps 0, which serves the chief" in ps
    assert "ps 0, which takes no part in synchronous training" in in_step
    assert "strategy mirrored was asked for, which trains in one process, but" in mirrored
    assert "This process is worker 0, which serves the chief" in worker
    assert evaluator == "_DefaultDistributionStrategy"


MISTAKES = {
    "exact=0": "exact is 0; expected the number of virtual shards",
    "exact=True": "exact is True; expected the number of virtual shards",
    "exact=4, shares=[2, 1]": "shares are for 2 workers",
    "exact=4, shares='fast'": "expected a whole number from 1 to 1000000 for each worker",
    "shares=[2, -1]": "shares are [2, -1]",
    "shares=['a']": "shares are ['a']",
    "exact=4, shares=[1.5]": "expected a whole number",
    "jit=True": "jit is True; expected one of auto, on, off",
    "exact=4, jit='on'": "exclude each other",
    "'mirored'": "strategy is 'mirored'; expected one of auto, .* Did you mean mirrored",
    "'parameter-server'": "no ps task.* Add --ps 1",
    "'mirrored', exact=4": "exact=4 is of the strategy multi-worker",
}
TRY_ALL = f"""
import drumbeat
from drumbeat.errors import ConfigError
for arguments in {list(MISTAKES)}:
    try:
        eval(f"drumbeat.strategy({{arguments}})")
    except ConfigError as error:
        print(arguments, "->", error)
"""


def test_exact_and_shares_that_do_not_fit() -> None:
    done = run(TRY_ALL)
    said = dict(line.split(" -> ") for line in done.stdout.splitlines())
    assert said.keys() == MISTAKES.keys(), done.stderr
    for arguments, part in MISTAKES.items():
        assert part in said[arguments] or re.search(part, said[arguments]), said[arguments]


@pytest.mark.slow
def test_exact_mode_comes_before_the_first_operation() -> None:
    done = run(
        "import drumbeat, tensorflow as tf; tf.zeros(1); drumbeat.strategy(exact=4)",
        TF_NUM_INTRAOP_THREADS="2",
    )
    assert "Make the strategy before the first operation" in done.stderr


@pytest.mark.slow
def test_exact_mode_once_for_all() -> None:
    done = run(
        "import drumbeat; s = drumbeat.strategy(exact=4); print(s.num_replicas_in_sync)\n"
        "assert drumbeat.strategy() is s; drumbeat.strategy(exact=8)"
    )
    assert done.stdout.split() == ["4"]
    assert "was made with exact=4 before" in done.stderr


def test_another_backend_is_refused() -> None:
    done = run(SHOW, KERAS_BACKEND="jax")
    assert "ConfigError" in done.stderr or "No module named 'jax'" in done.stderr
