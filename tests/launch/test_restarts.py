"""Jobs whose workers fail and are started again: real processes, tiny scripts."""

from __future__ import annotations

import json
import re

import pytest

# A script that counts its steps as training does, and what it begins with.
HEAD = """
    import os, signal, sys, time
    from drumbeat.state.progress import Activity, ProgressPage
    rank, attempt = int(os.environ["DRUMBEAT_RANK"]), int(os.environ["DRUMBEAT_ATTEMPT"])
    page = ProgressPage.from_env(os.environ)
    def at(step):
        page.update(Activity.TRAINING, step=step, phase=0, epoch=1)
    print("attempt", attempt, "seed", os.environ["DRUMBEAT_SEED"], flush=True)
"""
NODE = re.compile(r" on \S+ ")


def notes(out: str) -> list[str]:
    """What drumbeat itself said of failures, without the machine's name."""
    return [NODE.sub(" ", line) for line in out.splitlines() if "Starting all workers" in line]


def test_a_killed_worker_is_started_again_and_all_others_with_it(jobs):
    result = jobs.run(
        HEAD
        + """
    if attempt == 1:
        at(37 if rank == 1 else 38)
        if rank == 0:
            open("up", "w").close()
        if rank == 1:
            while not os.path.exists("up"):
                time.sleep(0.01)
            print("going", time.time(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)
    print("began", time.time(), flush=True)
    """
    )
    assert result.code == 0, result.out
    assert notes(result.out) == [
        "[drumbeat] worker 1 was killed by SIGKILL (out of memory?) after step 37 (epoch 2). "
        "Starting all workers again from the start of the script (attempt 2)."
    ]
    assert ", after 1 restart. Logs are in" in result.out
    for name in ("worker-0", "worker-1"):
        first, _, second = result.log(name).partition("--- attempt 2 ---\n")
        assert first.startswith("attempt 1 seed ")
        assert second.startswith(first.splitlines()[0].replace("attempt 1", "attempt 2"))
    went = float(re.findall(r"going (\S+)", result.out)[0])
    began = max(float(text) for text in re.findall(r"began (\S+)", result.out))
    assert began - went < 2  # 0.1 s on a machine that has nothing else to do
    record = json.loads((result.run_dir / "job.json").read_text())
    assert [ended["kind"] for ended in record["failures"]] == ["killed"]
    assert record["failures"][0]["furthest"] == 38


def test_ranks_of_mpi_meet_again(jobs):
    result = jobs.run(
        HEAD
        + """
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    total = comm.allreduce(rank + 1)
    at(1)
    if attempt == 1:
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        comm.Barrier()
    print("sum", total, flush=True)
    """
    )
    assert result.code == 0, result.out
    assert len(re.findall(r"\] sum 3$", result.out, re.M)) == 2


@pytest.mark.parametrize(
    ("text", "options", "code", "starts", "why"),
    [
        pytest.param("raise ValueError('bad')", (), 1, 1, "", marks=pytest.mark.slow),
        pytest.param("sys.exit(4)", (), 4, 1, "", marks=pytest.mark.slow),
        (
            "at(5); raise ValueError('bad')",
            (),
            1,
            2,
            "This has happened 2 times in a row after step 5",
        ),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGSEGV)",
            (),
            139,
            2,
            "This has happened 2 times in a row before the first step",
            marks=pytest.mark.slow,
        ),
        (
            "at(5); os.kill(os.getpid(), 9)",
            ("--max-restarts", "1"),
            137,
            2,
            "The workers were started again once and got no further than step 5.",
        ),
        pytest.param(
            "at(5); os.kill(os.getpid(), 9)",
            ("--max-restarts", "0"),
            137,
            1,
            "",
            marks=pytest.mark.slow,
        ),
        (
            "at(5)\nfrom drumbeat.errors import DataError; raise DataError('Use more.')",
            (),
            1,
            1,
            "",
        ),
    ],
)
def test_there_is_an_end_to_restarts(jobs, text, options, code, starts, why):
    body = "\n".join(f"    {line}" for line in text.splitlines())
    result = jobs.run(f"{HEAD}\n{body}\n", options=("-n", "1", *options))
    assert result.code == code, result.out
    assert result.out.count("] attempt ") == starts, result.out
    assert why in result.report
    if "ValueError" in text:
        assert result.report.endswith("ValueError: bad")
    assert ("again" in result.report) is bool(why)


@pytest.mark.slow
def test_progress_starts_the_count_anew(jobs):
    result = jobs.run(
        HEAD
        + """
    at(attempt)
    if attempt < 5:
        os.kill(os.getpid(), signal.SIGKILL)
    """,
        options=("-n", "1", "--max-restarts", "1"),
    )
    assert result.code == 0, result.out
    assert len(notes(result.out)) == 4
    assert result.seconds < 5 + 1  # none of them has waited


def test_a_parent_that_is_killed_while_it_imports_is_started_again(jobs):
    (jobs.folder / "fragile.py").write_text(
        "import os\n"
        "if not os.path.exists('killed'):\n"
        "    open('killed', 'w').close()\n"
        "    os.kill(os.getpid(), 9)\n"
        "def install(): pass\n"
    )
    result = jobs.run("print('ran')", preload="fragile", options=("-n", "1"))
    assert result.code == 0, result.out
    assert "ended. It was killed by SIGKILL. It is started again." in result.out
    (jobs.folder / "killed").unlink()
    never = jobs.run("1", preload="fragile", options=("-n", "1", "--max-restarts", "0"))
    assert never.code == 1
    assert never.report.endswith(
        "The process that starts the workers ended. It was killed by SIGKILL."
    )


def test_the_parent_is_started_again_too(jobs):
    result = jobs.run(
        HEAD
        + """
    print("hash", hash("a"), flush=True)
    at(1)
    if attempt == 1:
        if rank == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(100)
    """
    )
    assert result.code == 0, result.out
    assert len(set(re.findall(r"hash (\S+)", result.out))) == 1
    assert (
        "The agent lost the process that starts its workers after step 1." in notes(result.out)[0]
    )
