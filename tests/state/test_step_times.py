"""What step times say in words, and how they reach the agent."""

from __future__ import annotations

import os

import pytest

from drumbeat.state.progress import ProgressPage
from drumbeat.state.step_times import (
    EpochTimes,
    StepTimes,
    TimesNote,
    callback_advice,
    epoch_callback_advice,
    input_advice,
    read_file,
    summary,
    worker_file,
)


def times(steps: int = 100, **parts: float) -> StepTimes:
    return StepTimes(steps=steps, **parts)


@pytest.mark.parametrize(
    ("workers", "lines"),
    [
        ([], []),
        ([("worker 0", times(0))], []),
        (
            [("worker 0", times(compute_s=0.75, input_s=0.2, other_s=0.05))],
            ["A step took 10.0 ms: compute 75%, input 20%, rest 5% (100 steps)."],
        ),
        (
            [
                ("worker 0", times(compute_s=0.5, waiting_s=0.5)),
                ("worker 1", times(compute_s=0.55, waiting_s=0.45)),
            ],
            [
                "A step took 10.0 ms: compute 52%, waiting for other workers 48% "
                "(mean of 2 workers, 100 steps)."
            ],
        ),
        (
            [
                ("worker 0", times(compute_s=0.5, waiting_s=0.5)),
                ("worker 1", times(compute_s=0.5, input_s=0.5)),
            ],
            [
                "A step took 10.0 ms: compute 50%, input 25%, waiting for other workers 25% "
                "(mean of 2 workers, 100 steps).",
                "The others wait for worker 1, which is busy for 10.0 ms a step (mean 7.5): "
                "compute 50%, input 50%.",
            ],
        ),
    ],
)
def test_the_summary_names_the_parts_and_who_is_waited_for(workers, lines):
    assert summary(workers).splitlines() == lines


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (times(input_s=1.0, compute_s=3.0), "25% of the time of 100 steps"),
        (times(input_s=0.7, compute_s=3.3), ""),
        (times(20, input_s=3.0, compute_s=1.0), ""),
        (times(input_s=1.0, compute_s=1.0), ""),  # too short a time
        (times(0), ""),
    ],
)
def test_a_slow_input_is_told_of_when_it_matters(given, told):
    advice = input_advice(given)
    assert told in advice if told else advice == ""
    if told:
        assert "(10.0 of 40.0 ms a step)" in advice


def test_a_slow_callback_is_named():
    assert callback_advice("Mine", 0.05, 100, 1.0) == ""
    assert "callback Mine takes 50% of the time of a step (5.0 of 10.0 ms)" in callback_advice(
        "Mine", 0.5, 100, 1.0
    )
    assert epoch_callback_advice("Mine", 1.0, 20.0) == ""
    assert epoch_callback_advice("Mine", 0.5, 1.0) == ""  # too short an epoch
    assert "callback Mine took 5.0 s" in epoch_callback_advice("Mine", 5.0, 20.0)


def test_the_agent_reads_what_the_worker_wrote_beside_the_rest_of_the_page():
    page = ProgressPage.create()
    worker, agent = TimesNote(page.fd), TimesNote(page.fd)
    try:
        assert agent.read() == StepTimes()
        page.update(step=7, detail="x" * 600)
        page.accept_stop()
        worker.write(times(3, input_s=0.5, waiting_s=0.25))
        assert agent.read() == times(3, input_s=0.5, waiting_s=0.25)
        assert page.read().step == 7
        assert page.accepts_stop
        assert not page.requests()
    finally:
        worker.close()
        agent.close()
        page.close()


def test_sums_differences_and_means():
    one, two = times(2, compute_s=1.0, input_s=0.5), times(4, compute_s=3.0)
    assert one + two == times(6, compute_s=4.0, input_s=0.5)
    assert two - one == times(2, compute_s=2.0, input_s=-0.5)
    assert one.means()["total"] == one.step_s == 0.75
    assert one.means()["input"] == 0.25


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    epoch = EpochTimes(
        steps=1, fit=0, epoch=2, attempt=1, epoch_s=3.0, validation_s=0.0, epoch_callbacks_s=0.0
    )
    path = worker_file(tmp_path, "worker 1")
    assert os.path.relpath(path, tmp_path) == os.path.join("worker-1", "times.jsonl")
    assert read_file(path) == []
    path.parent.mkdir()
    import json

    path.write_text(json.dumps(epoch.to_json()) + '\n{"steps": 3')
    assert [found["epoch"] for found in read_file(path)] == [2]
