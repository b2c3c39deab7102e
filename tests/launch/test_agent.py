"""Jobs on one node: how they end, what is shown, and that nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

TENSORFLOW = ("-n", "2", "--collectives", "tensorflow")
ONCE = ("--max-restarts", "0")
SLEEPER = """
    import os, subprocess, sys, time, signal
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in sys.argv:
        subprocess.Popen(["sleep", "1000"])
    print("up", os.getpid(), flush=True)
    time.sleep(1000)
"""
MPI = """
    import os, sys, time
    from mpi4py import MPI
    import numpy as np
    comm = MPI.COMM_WORLD
    total = np.zeros(4)
    comm.Allreduce(np.full(4, comm.rank + 1.0), total)
    print("sum", comm.size, total[0], flush=True)
    maps = open("/proc/self/maps").read().split()
    print("memory", sorted({part for part in maps if "mpich_shm" in part}), flush=True)
"""


def test_all_workers_run_the_script_and_the_job_succeeds(jobs):
    result = jobs.run('import os; print("rank", os.environ["DRUMBEAT_RANK"])')
    assert result.code == 0, result.out
    assert "[worker 0] rank 0\n" in result.out
    assert "[worker 1] rank 1\n" in result.out
    last = result.out.splitlines()[-1]
    assert last.startswith("[drumbeat] Finished in")
    assert last.endswith(str(result.run_dir))


def test_the_record_tells_what_was_run(jobs):
    result = jobs.run("import sys; sys.exit(4)", "--epochs", "3", options=("-n", "1"))
    record = json.loads((result.run_dir / "job.json").read_text())
    assert record["command"] == "script.py"
    assert record["args"] == ["--epochs", "3"]
    assert record["exit_code"] == 4
    assert record["versions"]["tensorflow"]
    assert record["started"] <= record["ended"]


@pytest.mark.parametrize(
    ("script", "code", "last"),
    [
        ("raise ValueError('bad value')", 1, "ValueError: bad value"),
        ("import sys; sys.exit(7)", 7, "worker 1 on HOST failed with exit code 7."),
        ("import sys; sys.exit('told why')", 1, "told why"),
        ("import os; os._exit(9)", 9, "worker 1 on HOST failed with exit code 9."),
        ("import os; os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL (out of memory?)."),
        ("import os; os.abort()", 134, 'File "<string>", line 5 in <module>'),
        ("import signal, os; os.kill(os.getpid(), signal.SIGINT)", 130, "KeyboardInterrupt"),
        ("this is no Python", 1, "SyntaxError: invalid syntax"),
        (
            "from drumbeat.errors import DataError; raise DataError('Batch too small. Do this.')",
            1,
            "DataError: Batch too small. Do this.",
        ),
        (
            "from drumbeat.errors import ConfigError; raise ConfigError('Wrong. Do that.')",
            2,
            "ConfigError: Wrong. Do that.",
        ),
    ],
)
def test_a_failed_worker_ends_the_job_and_is_shown_last(jobs, script, code, last):
    text = f"import os, time\nif os.environ['DRUMBEAT_RANK'] == '0': time.sleep(100)\n{script}"
    if script == "this is no Python":
        text = script
    result = jobs.run(text, options=(*TENSORFLOW, *ONCE))
    assert result.code == code, result.out
    tail = result.out.rstrip().splitlines()[-1].replace(os.uname().nodename, "HOST")
    assert tail.endswith(last), result.out
    assert result.seconds < 8


def test_the_traceback_is_the_scripts_own(jobs):
    result = jobs.run(
        """
        import os, time
        def train():
            raise RuntimeError("no more data")
        if os.environ["DRUMBEAT_RANK"] == "0":
            time.sleep(100)
        try:
            {}["missing"]
        except KeyError as error:
            print("noise on stderr", file=__import__("sys").stderr)
            train()
        """
    )
    heading, *report = result.report.splitlines()
    assert heading == f"worker 1 on {os.uname().nodename} failed with exit code 1."
    assert report[0] == "Traceback (most recent call last):"
    assert "KeyError: 'missing'" in report
    assert report[-1] == "RuntimeError: no more data"
    assert "drumbeat/" not in result.report
    assert "runpy" not in result.report


def test_a_drumbeat_error_has_no_traceback(jobs):
    result = jobs.run("from drumbeat.errors import DataError; raise DataError('Use more data.')")
    assert result.code == 1
    assert "Traceback" not in result.out
    assert result.report.endswith("DataError: Use more data.")


def test_the_cause_is_shown_not_its_echo(jobs):
    result = jobs.run(
        """
        import os, time
        from drumbeat.errors import CollectiveTimeout
        if os.environ["DRUMBEAT_RANK"] == "0":
            raise CollectiveTimeout("worker 1 never came")
        time.sleep(0.3)
        raise ZeroDivisionError("the cause")
        """
    )
    assert result.report.splitlines()[-1] == "ZeroDivisionError: the cause"
    note = json.loads((result.run_dir / "worker-0" / "failure.json").read_text())
    assert note["consequence"] is True


def test_an_echo_alone_is_shown_all_the_same(jobs):
    result = jobs.run(
        """
        import os, time
        from drumbeat.errors import CollectiveTimeout
        if os.environ["DRUMBEAT_RANK"] == "0":
            raise CollectiveTimeout("worker 1 never came")
        time.sleep(100)
        """
    )
    assert result.code == 1
    assert result.report.endswith("CollectiveTimeout: worker 1 never came")
    assert result.seconds < 8


def test_a_worker_may_finish_early(jobs):
    result = jobs.run(
        """
        import os, time
        if os.environ["DRUMBEAT_RANK"] == "0":
            time.sleep(1)
            print("late")
        """
    )
    assert result.code == 0
    assert "[worker 0] late" in result.out


def test_exit_handlers_run_and_output_is_flushed(jobs):
    result = jobs.run(
        """
        import atexit, sys, threading, time
        atexit.register(print, "at exit", end="")
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread done"))).start()
        sys.stdout.write("no newline;")
        """,
        options=("-n", "1"),
    )
    assert result.code == 0
    assert result.log("worker-0") == "no newline;thread done\nat exit"
    assert "[worker 0] at exit\n" in result.out


@pytest.mark.parametrize(
    ("number", "arguments"),
    [(signal.SIGINT, []), (signal.SIGHUP, []), (signal.SIGTERM, ["child", "stubborn"])],
)
def test_a_signal_to_the_agent_stops_everything(jobs, number, arguments):
    job = jobs.start(jobs.script(SLEEPER), *arguments)
    for worker in ("worker-0", "worker-1"):
        job.wait_for_output(worker, "up")
    sent = time.monotonic()
    job.process.send_signal(number)
    result = job.end(10)
    assert result.code == 128 + number
    assert time.monotonic() - sent < 5
    assert job.alive_after(0.5) == []
    assert "Traceback" not in result.out


def test_a_second_signal_kills_at_once(jobs):
    job = jobs.start(jobs.script(SLEEPER), "stubborn")
    for worker in ("worker-0", "worker-1"):
        job.wait_for_output(worker, "up")
    sent = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    job.process.send_signal(signal.SIGINT)
    assert job.end(10).code == 130
    assert time.monotonic() - sent < 1.5
    assert job.alive_after(0.5) == []


@pytest.mark.parametrize("after_s", [0.1, 0.4, 0.8])
def test_a_signal_during_the_start_stops_everything(jobs, after_s):
    (jobs.folder / "slow.py").write_text("import time\ntime.sleep(60)\n")
    job = jobs.start(jobs.script(SLEEPER), preload="slow")
    time.sleep(after_s)
    job.family()
    sent = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    result = job.end(10)
    # So early, Python itself may not have got as far as our handler.
    assert result.code in ((143, -15) if after_s < 0.3 else (143,)), result.out
    assert time.monotonic() - sent < 5
    assert job.alive_after(2) == []
    assert "Traceback" not in result.out


def test_a_killed_agent_leaves_nothing(jobs):
    job = jobs.start(jobs.script(SLEEPER), "child", "stubborn")
    for worker in ("worker-0", "worker-1"):
        job.wait_for_output(worker, "up")
    assert len(job.family()) == 5  # parent, 2 workers, 2 children of theirs
    job.process.kill()
    job.process.wait(5)
    assert job.alive_after(3) == []


def test_a_killed_agent_leaves_no_shared_memory(jobs, eventually):
    script = jobs.script(MPI + "    time.sleep(1000)\n")
    job = jobs.start(script, options=("-n", "2", "--collectives", "mpi"))
    for worker in ("worker-0", "worker-1"):
        job.wait_for_output(worker, "]")
    memory = memory_of(job.run_dir)
    assert [path for path in memory if path.exists()]
    job.process.kill()
    job.process.wait(5)
    assert job.alive_after(3) == []
    assert not [path for path in memory if path.exists()]


def memory_of(run_dir: Path) -> list[Path]:
    """The shared memory that a worker running `MPI` said it uses."""
    log = (run_dir / "worker-0" / "output.log").read_text()
    names = log.partition("memory ")[2].splitlines()[0]
    return [Path(name) for name in json.loads(names.replace("'", '"'))]


def test_a_killed_agent_leaves_nothing_while_the_parent_imports(jobs, eventually):
    (jobs.folder / "slow.py").write_text("import time\ntime.sleep(60)\n")
    job = jobs.start(jobs.script(SLEEPER), preload="slow")
    eventually(job.family, 10)
    time.sleep(0.5)
    job.process.kill()
    job.process.wait(5)
    assert job.alive_after(3) == []


def test_a_killed_worker_ends_the_others_within_two_seconds(jobs):
    job = jobs.start(jobs.script(SLEEPER), "child", "stubborn", options=("-n", "2", *ONCE))
    for worker in ("worker-0", "worker-1"):
        job.wait_for_output(worker, "up")
    log = (job.run_dir / "worker-1" / "output.log").read_text()
    psutil.Process(int(log.split()[1])).kill()
    others = job.family()
    killed = time.monotonic()
    assert job.alive_after(4) == [], others
    assert time.monotonic() - killed < 3.5  # 2 for the workers; the parent follows
    result = job.end(10)
    assert result.code == 137
    assert "worker 1 on" in result.report.splitlines()[0]


def test_a_killed_parent_is_a_failure(jobs):
    job = jobs.start(jobs.script(SLEEPER), options=("-n", "2", *ONCE))
    job.wait_for_output("worker-0", "up")
    job.wait_for_output("worker-1", "up")
    job.family()[0].kill()
    result = job.end(10)
    assert result.code == 1
    assert "killed by SIGKILL" in result.report
    assert job.alive_after(1) == []


def test_mpi_ranks_find_each_other(jobs):
    result = jobs.run(MPI, options=("-n", "3", "--collectives", "mpi"))
    assert result.code == 0, result.out
    assert result.out.count("sum 3 6.0") == 3


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise ValueError('one fails')", 1),
        ("sys.exit(5)", 5),
        ("os.kill(os.getpid(), 9)", 137),
        ("comm.Abort(6)", 6),
    ],
)
def test_an_mpi_rank_that_fails_ends_the_job_and_leaves_no_memory(jobs, end, code):
    # The others wait in a collective; MPI's own end of the failed rank would wait for them.
    script = MPI + f"    if comm.rank == 1: {end}\n    comm.Barrier()\n"
    result = jobs.run(script, options=("-n", "2", "--collectives", "mpi", *ONCE))
    assert result.code == code, result.out
    assert result.report.startswith("worker 1 on")
    assert result.seconds < 8
    memory = memory_of(result.run_dir)
    assert memory
    assert not [path for path in memory if path.exists()]


@pytest.mark.parametrize(
    ("absent", "report"),
    [
        ("time.sleep(100)", "waited for worker 1 at the strategy, for 1.5 s"),
        ("sys.exit(0)", "waited for worker 1 at the strategy, which ended without it"),
        ("raise ValueError('the cause')", "ValueError: the cause"),
    ],
)
def test_a_rank_that_never_starts_mpi_is_named(jobs, absent, report):
    script = (
        f"\n    import os, sys, time\n    if os.environ['DRUMBEAT_RANK'] == '1': {absent}" + MPI
    )
    options = ("-n", "3", "--collectives", "mpi", "--collective-timeout", "1.5")
    result = jobs.run(script, options=options)
    assert result.code == 1, result.out
    assert result.report.startswith("worker 1 on")
    assert report in result.report
    assert result.seconds < 8


def test_runs_at_the_same_time_have_their_own_folders(jobs):
    script = jobs.script("print('hello')")
    trio = [jobs.start(script, options=("-n", "1"), run_dir=None) for _ in range(3)]
    assert [job.end().code for job in trio] == [0, 0, 0]
    logs = list((jobs.folder / "runs").glob("script-*/worker-0/output.log"))
    assert [log.read_text() for log in logs] == ["hello\n"] * 3


def test_on_a_terminal_the_chief_has_one_too_and_its_bar_stays_whole(jobs):
    script = jobs.script(
        """
        import os, shutil, sys, time
        chief = os.environ["DRUMBEAT_RANK"] == "0"
        print("terminal", sys.stdout.isatty(), flush=True)
        print("columns", shutil.get_terminal_size().columns, flush=True)
        for i in range(1, 5):
            if chief:
                sys.stdout.write(f"\\r{i}/4 ━━━")
                sys.stdout.flush()
            elif i == 3:
                print("from worker 1", flush=True)
            time.sleep(0.2)
        if chief:
            print()
        """
    )
    screen = jobs.on_terminal(script, options=("-n", "2"))
    assert "terminal True" in screen
    assert "terminal False" in screen
    assert screen.count("columns 69") == 2  # of 80, without the prefix
    erased = "\r\x1b[K"
    drawn = [part for part in screen.split(erased) if "/4 ━━━" in part]
    assert len(drawn) >= 4
    for line in screen.replace(erased, "\n").splitlines():
        assert not ("━━━" in line and "worker 1" in line), "glued to the bar"
    assert screen.count("from worker 1") == 1


def test_ten_jobs_at_once_have_no_port_in_common(jobs):
    script = jobs.script(
        """
        import json, os, socket, time
        config = json.loads(os.environ["TF_CONFIG"])
        host, port = config["cluster"]["worker"][config["task"]["index"]].split(":")
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", int(port)))
        server.listen()
        print("port", port, flush=True)
        time.sleep(1)
        """
    )
    ten = [jobs.start(script, options=TENSORFLOW, run_dir=f"run{i}") for i in range(10)]
    results = [job.end(60) for job in ten]
    assert [result.code for result in results] == [0] * 10
    ports = [
        result.log(worker).split()[1] for result in results for worker in ("worker-0", "worker-1")
    ]
    assert len(set(ports)) == 20


def test_ps_and_workers_with_servers_of_their_own_end_with_the_chief(jobs):
    result = jobs.run(
        """
        import json, os, time
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        print("rank", os.environ["DRUMBEAT_RANK"], "of", os.environ["DRUMBEAT_WORLD_SIZE"])
        time.sleep(1 if task["type"] == "chief" else 100)
        """,
        options=("-n", "2", "--ps", "1", "--keep-tf-strategies"),
    )
    assert result.code == 0, result.out
    for line in ("[chief 0] rank 0 of 3", "[worker 1] rank 2 of 3", "[ps 0] rank -1 of 3"):
        assert line in result.out
    assert result.seconds < 8


def test_an_evaluator_is_started_again_alone_and_ends_after_the_others(jobs):
    result = jobs.run(
        """
        import json, os, signal, time
        from drumbeat.state.progress import ProgressPage, Request
        if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "evaluator":
            while not os.path.exists("second life"):
                time.sleep(0.02)
            raise SystemExit(print("rank", os.environ["DRUMBEAT_RANK"], "ends"))
        if not os.path.exists("first life"):
            open("first life", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        open("second life", "w").close()
        page = ProgressPage.from_env(os.environ)
        while not page.requests() & Request.FINISH:
            time.sleep(0.02)
        print("rank", os.environ["DRUMBEAT_RANK"], "has evaluated all")
        """,
        options=("-n", "2", "--evaluator"),
    )
    assert result.code == 0, result.out
    assert "evaluator 0 on" in result.out
    assert "It is started again; the others go on." in result.out
    assert "[evaluator 0] rank -1 has evaluated all" in result.out
    assert result.out.index("] rank 1 ends") < result.out.index("has evaluated all")


def test_a_ps_that_fails_ends_the_job(jobs):
    result = jobs.run(
        """
        import json, os, time
        if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "ps":
            raise MemoryError("ps is full")
        time.sleep(100)
        """,
        options=("-n", "1", "--ps", "1", "--keep-tf-strategies"),
    )
    assert result.code == 1
    assert result.report.startswith("ps 0 on")


def test_a_preload_that_fails_is_explained(jobs):
    (jobs.folder / "broken.py").write_text("raise ImportError('libfoo.so is missing')\n")
    result = jobs.run("print('never')", preload="broken")
    assert result.code == 1
    assert "Its exit code was 1" in result.report
    assert "ImportError: libfoo.so is missing" in result.report
    assert "never" not in result.out


def test_a_preload_that_takes_too_long_is_explained(jobs):
    (jobs.folder / "slow.py").write_text(
        "import time\nprint('loading', flush=True)\ntime.sleep(60)\n"
    )
    result = jobs.run("1", preload="slow", options=("-n", "1", "--start-timeout", "1"))
    assert result.code == 1
    assert "took longer than 1 s" in result.report
    assert "loading" in result.report
    assert result.seconds < 8


def test_a_failing_install_is_the_workers_failure(jobs):
    (jobs.folder / "picky.py").write_text(
        "from drumbeat.errors import ConfigError\n"
        "def install():\n    raise ConfigError('Use Keras 3.')\n"
    )
    result = jobs.run("print('never')", preload="picky", options=("-n", "1"))
    assert result.code == 2
    assert result.report.endswith("ConfigError: Use Keras 3.")
    assert "never" not in result.out


def test_a_reader_that_goes_away_does_not_end_the_training(jobs):
    job = jobs.start(
        jobs.script("for i in range(20000): print('line', i)\nopen('finished', 'w').close()"),
        options=("-n", "1"),
    )
    assert job.process.stdout is not None
    job.process.stdout.read(1)
    job.process.stdout.close()
    assert job.process.wait(20) == 0
    assert (jobs.folder / "finished").exists()


def test_a_reader_that_stops_reading_can_be_interrupted(jobs, eventually):
    script = "import itertools\nfor i in itertools.count(): print('line', i, '.' * 1000)"
    job = jobs.start(jobs.script(script), options=("-n", "1"))
    log = job.run_dir / "worker-0" / "output.log"
    eventually(lambda: log.exists() and log.stat().st_size > 50_000, 20)
    time.sleep(1)
    memory = psutil.Process(job.process.pid).memory_info().rss
    size = log.stat().st_size
    time.sleep(0.5)
    assert log.stat().st_size == size, "what the reader does not take is not written on and on"
    assert memory < 300e6
    job.family()
    sent = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(10) == 130
    assert time.monotonic() - sent < 5
    assert job.alive_after(0.5) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_does_not_end_the_training(jobs):
    folder = jobs.folder / "run" / "worker-0"
    folder.mkdir(parents=True)
    (folder / "output.log").symlink_to("/dev/full")
    result = jobs.run("for i in range(2000): print('line', i)", options=("-n", "1"))
    assert result.code == 0
    assert result.out.count("No space left on device. The run goes on without it.") == 1
    assert "[worker 0] line 1999" in result.out


@pytest.mark.parametrize("leader", ["chief", "worker"])
@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("ps", ("--keep-tf-strategies",), "[ps 0] ran"),
        ("ps", ("--strategy", "multi-worker"), "ps 0 has nothing to do"),
        ("evaluator", (), "[evaluator 0] ran"),
    ],
)
def test_a_platforms_other_tasks_run_the_script_once(jobs, leader, task, options, says):
    cluster = {leader: ["127.0.0.1:2350"], "ps": ["127.0.0.1:2351"]}
    config = {"cluster": cluster, "task": {"type": task, "index": 0}}
    result = jobs.run("print('ran')", options=options, env={"TF_CONFIG": json.dumps(config)})
    assert result.code == 0
    assert says in result.out
