"""`make bench`: how runs become figures, ratios, tables and a plot."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "compare.py"


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of the comparison."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return lambda name: importlib.import_module(f"comparison.{name}")


def measured(peer: str, number: int, step_ms: float, **more: Any) -> dict[str, Any]:
    """A run as it is recorded: 10 steps an epoch."""
    return {
        "workload": "cnn",
        "group": "cnn",
        "peer": peer,
        "round": number,
        "steps": 10,
        "rows": 512,
        "epoch_s": [step_ms / 100] * 3,
        "measured_s": 3 * step_ms / 100,
        "cpu_s": 0.3,
        "counters": {},
        "first_step_s": 4.0,
        "first_loss": 2.5,
        "losses": [2.4, 2.3],
        "memory_mb": 900.0,
        "peak_rss_mb": 600.0,
        "parameters": 54_170,
        "others_cores": 0.02,
        "took_s": 9.0,
        **more,
    }


def failed(peer: str, number: int = 0) -> dict[str, Any]:
    wrong = {"exit_codes": [1, 1], "error": "ValueError: PerReplica", "log": "…"}
    keys = ("workload", "group", "peer", "round", "others_cores", "took_s")
    good = measured(peer, number, 1)
    return {**{key: good[key] for key in keys}, "failed": wrong}


# The second round is twice as slow for all, as when something else ran all the time.
RUNS = [
    measured(
        "drumbeat", 0, 10, counters={"waiting_s": 0.03, "transfer_s": 0.06, "calls": 1, "bytes": 1}
    ),
    measured("drumbeat-1", 0, 8),
    measured("drumbeat-apart", 0, 9),
    measured("tensorflow", 0, 60),
    measured("drumbeat", 1, 20),
    measured("drumbeat-1", 1, 18),
    measured("tensorflow", 1, 120),
    failed("ray"),
]
FLOORS = [{"group": "cnn", "round": 0, "ms": 1.0}]


def test_ratios_are_taken_within_a_round(comparison) -> None:
    peers = comparison("summary").summarize(RUNS, FLOORS)["groups"]["cnn"]["peers"]
    assert peers["tensorflow"]["faster"]["all"] == [6.0, 6.0]
    assert peers["drumbeat"]["efficiency"]["all"] == [0.8, 0.9]
    assert peers["drumbeat"]["exchange_ms"]["median"] == pytest.approx(2)
    assert peers["drumbeat"]["efficiency_at_once"]["all"] == [0.9]
    assert peers["drumbeat"]["over_floor"]["all"] == [1.0]
    assert peers["drumbeat"]["samples_s"]["max"] == pytest.approx(51_200)
    assert peers["drumbeat"]["transfer_share"]["median"] == pytest.approx(0.2)
    assert "efficiency" not in peers["tensorflow"]
    assert peers["ray"] == {"error": "ValueError: PerReplica"}


def test_report_shows_spread_and_failures(comparison) -> None:
    machine = dict.fromkeys(("cpu", "cores", "kernel", "python", "tensorflow", "keras", "mpich"))
    summary = comparison("summary").summarize(RUNS, FLOORS)
    text = comparison("tables").report({"machine": machine, "rounds": 2, "summary": summary})
    assert "| TensorFlow, as a user starts it | 6,400 (4,267 to 8,533) |" in text
    assert "0.85 (0.80 to 0.90)" in text
    assert "- cnn, ray: ValueError: PerReplica" in text
    assert "| Ray Train, TensorflowTrainer | failed |" in text


def test_plot_is_xml_with_all_peers(comparison) -> None:
    groups = comparison("summary").summarize(RUNS, FLOORS)["groups"]
    root = ElementTree.fromstring(comparison("plot").svg(groups))
    said = "".join(root.itertext())
    assert "TensorFlow, as a user starts it" in said
    assert "0.17" in said
    assert "failed" in said


def test_disturbed_runs_are_repeated_and_failing_ones_given_up(comparison) -> None:
    plan = comparison("plan")
    cases = plan.side_by_side("cnn", ["drumbeat", "torch"], 0, quick=True)
    disturbed = iter([0.9, 0.05, 0.05])

    def run(case: Any) -> dict[str, Any]:
        if case.name == "torch":
            return failed("torch")
        return measured(case.name, 0, 10, others_cores=next(disturbed))

    rounds = comparison("rounds").Rounds(100, run, lambda deadline: None)
    first = list(rounds.turns(0, cases))
    assert [(one["peer"], one["tries"], one["others_cores"]) for one in first] == [
        ("drumbeat", 2, 0.05),
        ("torch", 2, 0.02),
    ]
    assert [one["peer"] for one in rounds.turns(1, cases)] == ["drumbeat"]


@pytest.mark.parametrize(
    ("text", "names"), [("b,a", ["cnn", "dense"]), ("growth", ["growth"]), ("", [])]
)
def test_workloads_by_letter_or_name(comparison, text, names) -> None:
    plan = comparison("plan")
    known = list(plan.LETTERS.values())
    assert plan.named(text, known) == names
    with pytest.raises(ValueError, match="'z' is not one of cnn"):
        plan.named("a,z", known)


def test_docs_have_the_place_for_the_tables() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    for marker in ("<!-- make bench writes this -->", "<!-- until here -->"):
        assert page.count(marker) == 1


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_quick_comparison_of_ours(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    chosen = ["--quick", "--patience", "0", "--only", "a,f", "--peers", "drumbeat,drumbeat-1"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *chosen, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    assert record["summary"]["failed_runs"] == 0, record["runs"]
    runs = {(run["workload"], run["peer"]): run for run in record["runs"]}
    assert {key[0] for key in runs} == {"cnn", "images"}
    for workload in ("cnn", "images"):
        ours, alone = runs[workload, "drumbeat"], runs[workload, "drumbeat-1"]
        assert ours["replicas"] == 2
        assert ours["rows"] == 2 * alone["rows"]
        assert ours["memory_mb"] > 0
    assert runs["cnn", "drumbeat"]["parameters"] == 54_170
