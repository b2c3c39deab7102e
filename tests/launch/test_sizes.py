"""How many workers: of a node, or from the least to the most of a job."""

from __future__ import annotations

from datetime import datetime

import pytest

from drumbeat.errors import ConfigError
from drumbeat.launch.settings import RunArguments, RunSettings, plan_run
from drumbeat.launch.sizes import Range, parse_workers


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


def plan(workers: str, **given: object) -> RunSettings:
    given = {"nodes": 3, "node_rank": 0, "rendezvous": "a:1", **given}
    arguments = RunArguments(command=("train.py",), workers=parse_workers(workers), **given)  # type: ignore[arg-type]
    return plan_run(arguments, {"DRUMBEAT_TOKEN": "x"}, cpus=8, now=datetime(2030, 1, 2))


@pytest.mark.parametrize(
    ("text", "expected"), [(None, None), ("4", 4), ("2:4", Range(2, 4)), (" 2 : 4", Range(2, 4))]
)
def test_a_number_or_a_range_is_read(text, expected):
    assert parse_workers(text) == expected


@pytest.mark.parametrize("text", ["", "many", "2:", ":4", "2:3:4", "1.5"])
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match="expected a number of workers such as 4, or"):
        parse_workers(text)


@pytest.mark.parametrize(
    ("text", "own", "fewest"),
    [("2:3", 1, 2), ("1:3", 1, 1), ("3:3", 1, 3), ("2:6", 2, 1), ("3:6", 2, 2), ("5:6", 2, 3)],
)
def test_each_node_has_as_many(text, own, fewest):
    settings = plan(text)
    assert (settings.workers, settings.min_nodes, settings.nodes) == (own, fewest, 3)


def test_without_a_range_all_nodes_are_needed():
    assert (plan("2").workers, plan("2").min_nodes) == (2, 3)


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("2:4", {}, "4 workers can't be shared evenly by 3 nodes.*such as 2:3"),
        ("3:2", {}, "expected the least number of workers, from 1, first"),
        ("0:3", {}, "expected the least number of workers, from 1, first"),
        ("1:9999", {}, "expected 1 to 1024"),
        (
            "2:4",
            {"nodes": None, "node_rank": None, "rendezvous": None},
            "there is one node.*a worker that dies is started again.*Give -n 4, or --nodes",
        ),
        ("2:3", {"ps": 1}, "parameter servers.*Give the workers of each node, such as -n 1"),
        ("2:3", {"shares": "2,1,1"}, "Leave it out, or give --shares auto"),
        ("2:3", {"max_restarts": 0}, "--max-restarts is 0, but -n is 2:3"),
        ("2:3", {"snapshot_every": 0}, "--snapshot-every is 0, but -n is 2:3"),
        ("2:3", {"exact": 8}, "with 3 nodes there are 3 workers, which can't share 8"),
        ("2:3", {"exact": 3}, "with 2 nodes there are 2 workers, which can't share 3"),
    ],
)
def test_what_does_not_go_together_is_refused(text, given, expected):
    with pytest.raises(ConfigError, match=f"(?s){expected}"):
        plan(text, **given)


def test_what_does_go_together_is_not():
    assert plan("2:3", exact=6).min_nodes == 2
    assert plan("2:3", shares="auto").min_nodes == 2
