"""What holds for every cluster, and for every broken one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumbeat.cluster import ClusterSpec, Task
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.timeout(60)


def read(source: Any) -> ClusterSpec:
    spec = ClusterSpec.from_tf_config(source)
    assert spec is not None
    return spec


HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True).filter(
    lambda host: host != "localhost"
)
ADDRESSES = st.builds("{}:{}".format, HOSTS, st.integers(1, 65535))


@st.composite
def specs(draw: st.DrawFn) -> ClusterSpec:
    chief = draw(st.integers(0, 1))
    workers = draw(st.integers(0 if chief else 1, 12))
    sizes = {
        "worker": workers,
        "ps": draw(st.integers(0, 2)),
        "chief": chief,
        "evaluator": draw(st.integers(0, 1)),
    }
    total = sum(sizes.values())
    pool = iter(draw(st.lists(ADDRESSES, min_size=total, max_size=total, unique=True)))
    jobs = {job: [next(pool) for _ in range(size)] for job, size in sizes.items() if size}
    own = draw(st.sampled_from([*ClusterSpec(jobs).tasks, Task("evaluator", 0)]))
    text = st.none() | st.text(max_size=5)
    return ClusterSpec(jobs, task=own, rpc_layer=draw(text), environment=draw(text))


@settings(deadline=None)
@given(specs())
def test_round_trip(spec: ClusterSpec) -> None:
    assert read(spec.to_json()) == spec
    assert read(json.loads(spec.to_json())) == spec
    assert all(json.loads(spec.to_json())["cluster"].values())


@settings(deadline=None)
@given(specs())
def test_ranks_are_chief_then_workers_by_index(spec: ClusterSpec) -> None:
    ranks = [spec.rank_of(task) for task in spec.sync_tasks]
    assert ranks == list(range(spec.world_size))
    assert spec.is_chief(spec.sync_tasks[0])
    offset = 1 if "chief" in spec.jobs else 0
    for index in spec.jobs.get("worker", ()):
        assert spec.rank_of(Task("worker", index)) == index + offset
    others = set(spec.tasks) - set(spec.sync_tasks)
    assert {task.type for task in others} <= {"ps", "evaluator"}
    assert all(spec.rank_of(task) == -1 for task in others)


@settings(deadline=None)
@given(specs(), st.randoms(use_true_random=False))
def test_list_and_index_forms_are_equal(spec: ClusterSpec, random: Any) -> None:
    raw = json.loads(spec.to_json())
    for job, addresses in raw["cluster"].items():
        pairs = [(str(i), address) for i, address in enumerate(addresses)]
        random.shuffle(pairs)
        raw["cluster"][job] = dict(pairs)
    assert read(json.dumps(raw)) == spec
    assert hash(read(raw)) == hash(spec)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["worker", "chief", "ps", "evaluator", "0", "1", "a:1", "a:1", ":1", "[::1]:"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["worker", "chief", "ps", "0", "1", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value inside a JSON value, itself not included."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, (dict, list)):
            found += places(inner, (*path, key))
    return found


def read_or_refuse(text: str) -> ClusterSpec | None:
    """The cluster, or None if there is none or the text is refused; any other error escapes."""
    refused = ""
    try:
        return ClusterSpec.from_tf_config(text)
    except ConfigError as error:
        refused = str(error)
    assert refused.startswith("TF_CONFIG: ")
    return None


@settings(deadline=None, max_examples=400)
@given(specs(), st.data())
def test_any_mutated_config_parses_or_is_refused(spec: ClusterSpec, data: st.DataObject) -> None:
    raw = json.loads(spec.to_json())
    *parents, last = data.draw(st.sampled_from(places(raw)))
    holder = raw
    for key in parents:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[last] = data.draw(JSON)
    else:
        del holder[last]
    text = json.dumps(raw)
    if data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(text) - 1))
        text = text[:cut] + data.draw(st.text(max_size=2)) + text[cut + 1 :]
    parsed = read_or_refuse(text)
    assert parsed is None or read(parsed.to_json()) == parsed


@settings(deadline=None)
@given(st.text(max_size=30) | JSON.map(json.dumps))
def test_any_text_parses_or_is_refused(text: str) -> None:
    read_or_refuse(text)
