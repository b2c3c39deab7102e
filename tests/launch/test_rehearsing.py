"""What agents do in a rehearsal: end the job after a few steps, all together, and report."""

from __future__ import annotations

import pytest

from drumbeat.cluster.rehearsing import Rehearsing, Report
from drumbeat.launch.outcome import preempted

# A script that counts its steps as training does.
HEAD = """
    import os, signal, sys, time
    from drumbeat.state.progress import Activity, ProgressPage
    rank = int(os.environ["DRUMBEAT_RANK"])
    page = ProgressPage.from_env(os.environ)
    def at(step):
        page.update(Activity.TRAINING, step=step, phase=0, epoch=1)
"""
FOREVER = """
    while True:
        time.sleep(0.1)
"""


@pytest.fixture
def rehearse(pair, tmp_path):
    """Runs a script on two nodes, with an order of 3 steps: both results, both reports."""

    def run(text: str):
        orders = [Rehearsing(steps=3, report=tmp_path / f"report-{n}.json") for n in (0, 1)]
        script = pair.jobs.script(HEAD + text)
        jobs = [
            pair.start(rank, script, env={**pair.token, **orders[rank].to_env()}) for rank in (1, 0)
        ][::-1]
        return [job.end() for job in jobs], [Report.read(order.report) for order in orders]

    return run


def test_all_end_together_once_all_have_made_the_steps(rehearse):
    """Steps of `fit`, or updates that were counted in a loop of the script's own."""
    results, reports = rehearse(
        """
    for step in range(1, 4):
        time.sleep(0.3 * rank)
        page.updated(step, together=True) if rank else at(step)
    """
        + FOREVER
    )
    for rank, (result, report) in enumerate(zip(results, reports, strict=True)):
        assert result.code == 0, result.out
        assert "The rehearsal ended after 3 steps" in result.out
        assert report == Report(
            node_rank=rank, nodes=2, workers=2, steps=3, apart=False, task="", code=0
        )


def test_what_a_worker_does_after_its_steps_is_no_failure(rehearse):
    """The others are ended as soon as all nodes have made the steps, here or there first."""
    results, _ = rehearse(
        """
    time.sleep(0 if rank else 0.7)
    at(3)
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    """
        + FOREVER
    )
    assert [result.code for result in results] == [0, 0], results[0].out


def test_a_script_that_ends_before_has_succeeded(rehearse):
    results, reports = rehearse("    at(2)\n")
    assert [result.code for result in results] == [0, 0]
    assert "Finished in" in results[0].out
    assert [report.steps for report in reports] == [2, 2]


def test_a_failure_is_not_tried_again(rehearse):
    results, reports = rehearse(
        """
    at(2)
    if rank:
        sys.exit(9)
    """
        + FOREVER
    )
    for result, report in zip(results, reports, strict=True):
        assert result.code == report.code == 9
        assert "Starting all workers again" not in result.out
        assert "worker 1" in result.report


def test_a_rehearsal_that_is_stopped_does_not_go_on(tmp_path):
    order = Rehearsing(steps=3, report=tmp_path / "report.json")
    assert "goes on from there" in preempted(None)
    assert preempted(order) == "The workers have stopped."
