"""Gradients between two nodes that a network joins: begun early, summed alike."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.tensorflow, pytest.mark.timeout(150)]
SCRIPT = Path(__file__).parents[1] / "collectives" / "early_checks.py"
TOKEN = {"DRUMBEAT_TOKEN": "0123456789abcdef" * 2}
THREADS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}


@pytest.mark.parametrize(
    "workers", [(1, 1), (2, 1), pytest.param((2, 2), marks=pytest.mark.slow)], ids=str
)
def test_gradients_are_summed_as_they_come(jobs, namespaces, workers: tuple[int, int]) -> None:
    started = [
        jobs.start(
            str(SCRIPT),
            options=(
                *("-n", str(workers[rank]), "--nodes", "2", "--node-rank", str(rank)),
                *("--rendezvous", f"{namespaces[0][1]}:2222", "--max-restarts", "0"),
            ),
            env={**TOKEN, **THREADS},
            preload="drumbeat.training.unmodified",
            prefix=("ip", "netns", "exec", namespaces[rank][0]),
            run_dir=f"node{rank}",
        )
        for rank in (1, 0)
    ]
    results = [job.end(120) for job in started]
    for result in results:
        assert result.code == 0, result.out
    out = "\n".join(result.out for result in results)
    operations = {line.split()[-1] for line in out.splitlines() if "operations" in line}
    # Where a node has several workers they meet in memory first: one operation for all, and
    # on all nodes.
    assert operations == ({"5"} if workers == (1, 1) else {"1"}), out
    assert out.count("Every worker must run the same") == sum(workers), out
