"""Vertex AI's CLUSTER_SPEC, which every replica has; TF_CONFIG only those of several pools.

Pool 0 is the chief, pool 1 the workers, pool 2 parameter servers (or a reduction server, which
runs an image of Google's), pool 3 evaluators.

Source: Vertex AI, "Distributed training", format of CLUSTER_SPEC.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumbeat.cluster.address import parse_address
from drumbeat.cluster.launched_by.found import DEFAULT_PORT, Found, json_in, place_in
from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

SPEC = "CLUSTER_SPEC"
_POOLS = ("workerpool0", "workerpool1", "workerpool2", "workerpool3")
_TASKS = {"workerpool2": "ps", "workerpool3": "evaluator"}
_EXAMPLE = (
    '{"cluster": {"workerpool0": ["host-0:2222"], "workerpool1": ["host-1:2222"]}, '
    '"task": {"type": "workerpool1", "index": 0}}'
)


def find(env: Mapping[str, str]) -> Found | None:
    """The replica among those that train.

    Raises:
        ConfigError: CLUSTER_SPEC is not as Vertex AI writes it.
    """
    if SPEC not in env:
        return None
    spec = json_in(env, SPEC)
    cluster, task = (spec.get("cluster"), spec.get("task")) if isinstance(spec, dict) else (0, 0)
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise ConfigError(f"{SPEC} is {shown(env[SPEC])}; expected an object like {_EXAMPLE}.")
    pools = {name: _addresses(name, cluster.get(name, [])) for name in _POOLS}
    pool, index = task.get("type"), task.get("index", 0)
    size = len(pools[pool]) if isinstance(pool, str) and pool in pools else 0
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
        sizes = ", ".join(f"{name}: {len(found)}" for name, found in pools.items() if found)
        raise ConfigError(
            f"{SPEC} says that this is task {shown(index)} of {shown(pool)}; expected one of its "
            f"cluster, {sizes}."
        )
    training = [*pools["workerpool0"], *pools["workerpool1"]]
    if pool in _TASKS and "TF_CONFIG" in env:
        return None  # which says so, too
    if pool in _TASKS:
        raise ConfigError(
            f"{SPEC} says that this is {_TASKS[pool]} {index}, but TF_CONFIG is not set, which "
            "Vertex AI sets in such jobs. Was it unset on the way?"
        )
    rank = index + (len(pools["workerpool0"]) if pool == "workerpool1" else 0)
    host, port = place_in(training[0], SPEC) if len(training) > 1 else ("", DEFAULT_PORT)
    return Found(
        platform="Vertex AI",
        nodes=len(training),
        node_rank=rank,
        host=host,
        port=port,
        source=SPEC,
    )


def _addresses(pool: str, given: object) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ConfigError(
            f"{SPEC} has {shown(given)} for {pool}; expected a list of addresses HOST:PORT."
        )
    for each in given:
        parse_address(each, f"{SPEC}, {pool}")
    return given
