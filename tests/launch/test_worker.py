"""A script can't tell that a forked process runs it instead of `python script.py`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ONE = ("-n", "1")
FACTS = """
    import __main__, json, os, sys
    facts = {
        "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
        "package": __package__, "same": __main__.__dict__ is globals(),
        "annotations": "__annotations__" in globals(), "doc": __doc__, "folder": os.getcwd(),
        "spec": getattr(__spec__, "name", None), "stdin": sys.stdin.read(),
        "builtins": hasattr(__builtins__, "print"),
    }
    with open(os.environ["FACTS"], "w") as file:
        json.dump(facts, file)
"""


def facts(jobs, *command, options=ONE, python=None):
    seen = []
    for run in ("worker", "python"):
        path = jobs.folder / f"{run}.json"
        env = {**jobs.environ(), "FACTS": str(path)}
        if run == "worker":
            result = jobs.start(*command, options=options, env=env).end()
            assert result.code == 0, result.out
        else:
            subprocess.run(
                [sys.executable, *(python or command)],
                cwd=jobs.folder,
                env=env,
                check=True,
                stdin=subprocess.DEVNULL,
                timeout=30,
            )
        seen.append(json.loads(path.read_text()))
    return seen


def test_a_script_sees_what_python_shows_it(jobs):
    (jobs.folder / "sub").mkdir()
    jobs.script('"""Its docstring."""\nx: int = 1\n', "sub/helper.py")
    script = jobs.script(FACTS, "sub/train.py")
    worker, python = facts(jobs, script, "-n", "3", "--flag", "--", "ünïcode", "")
    assert worker == python
    assert worker["argv"] == ["sub/train.py", "-n", "3", "--flag", "--", "ünïcode", ""]
    assert worker["path"] == str(jobs.folder / "sub")


def test_a_module_sees_what_python_shows_it(jobs):
    (jobs.folder / "pkg").mkdir()
    (jobs.folder / "pkg" / "__init__.py").touch()
    jobs.script(FACTS, "pkg/__main__.py")
    jobs.script(FACTS, "pkg/train.py")
    for name in ("pkg", "pkg.train"):
        worker, python = facts(
            jobs, name, "-m", "x", options=(*ONE, "-m"), python=("-m", name, "-m", "x")
        )
        assert worker == python
        assert worker["package"] == "pkg"


@pytest.mark.parametrize("name", ["no.such.module", "json", "pkg"])
def test_a_module_that_can_not_be_run(jobs, name):
    (jobs.folder / "pkg").mkdir()
    (jobs.folder / "pkg" / "__init__.py").touch()
    result = jobs.start(name, options=(*ONE, "-m")).end()
    assert result.code == 1
    assert f"No module named {name} can be run" in result.report


def test_neighbours_can_be_imported_and_the_current_folder_does_not_hide_modules(jobs):
    (jobs.folder / "sub").mkdir()
    jobs.script("VALUE = 42", "sub/helper.py")
    jobs.script("raise SystemError('the wrong json')", "json.py")
    script = jobs.script("import helper, json; print(helper.VALUE, json.dumps(1))", "sub/train.py")
    # Only the script's folder is on sys.path. PYTHONPATH has the folder of json.py here, so:
    env = {"PYTHONPATH": jobs.environ()["PYTHONPATH"].partition(":")[0] + f":{jobs.folder}/lib"}
    (jobs.folder / "lib").mkdir()
    (jobs.folder / "standin.py").rename(jobs.folder / "lib" / "standin.py")
    (jobs.folder / "command.py").rename(jobs.folder / "lib" / "command.py")
    process = subprocess.run(
        [sys.executable, "lib/command.py", "standin", "run", *ONE, "--run-dir", "run", script],
        cwd=jobs.folder,
        env={**jobs.environ(), **env},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "[worker 0] 42 1" in process.stdout


def test_objects_of_main_can_be_pickled_also_by_other_processes(jobs):
    result = jobs.run(
        """
        import multiprocessing, pickle
        class Thing:
            value = 3
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(Thing())).value == 3
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(method, pool.map(double, [1, 2]))
        """,
        options=ONE,
    )
    assert result.code == 0, result.out
    assert "fork [2, 4]" in result.out
    assert "spawn [2, 4]" in result.out


def test_output_of_any_kind_arrives(jobs):
    result = jobs.run(
        r"""
        import os, sys
        print("größe ━ 漢字")
        sys.stdout.flush()
        os.write(1, b"\xff\xfe bytes\n")
        os.system("echo from a child")
        print("x" * 100_000)
        print("to stderr", file=sys.stderr)
        sys.stdout.write("unfinished")
        """,
        options=ONE,
    )
    assert result.code == 0
    for line in ("größe ━ 漢字", r"\xff\xfe bytes", "from a child", "to stderr", "unfinished"):
        assert f"[worker 0] {line}\n" in result.out
    shown = "".join(
        line.removeprefix("[worker 0] ") for line in result.out.splitlines() if "xxx" in line
    )
    assert shown == "x" * 100_000
    raw = (result.run_dir / "worker-0" / "output.log").read_bytes()
    assert b"\xff\xfe bytes\n" in raw
    assert b"x" * 100_000 in raw


def test_progress_of_others_is_only_in_their_file(jobs):
    result = jobs.run(
        """
        import os, sys
        print("Epoch 1/2")
        for i in range(1, 4):
            sys.stdout.write("\\b" * 9 + f"\\r{i}/3 ━━━ {os.environ['DRUMBEAT_RANK']}")
        print()
        print("saved")
        """
    )
    assert result.code == 0
    assert result.out.count("Epoch 1/2") == 1
    assert "[worker 0] 3/3 ━━━ 0\n" in result.out
    assert "━━━ 1" not in result.out
    assert "1/3" not in result.out
    assert "[worker 1] saved\n" in result.out
    assert "2/3 ━━━ 1" in result.log("worker-1")


def test_many_lines_arrive_completely(jobs):
    result = jobs.run("for i in range(50_000): print('line', i)", timeout_s=60)
    assert result.code == 0
    for worker in ("worker 0", "worker 1"):
        lines = [line for line in result.out.splitlines() if line.startswith(f"[{worker}]")]
        assert lines == [f"[{worker}] line {i}" for i in range(50_000)]


def test_workers_draw_different_numbers(jobs):
    result = jobs.run(
        "import random, numpy; print('drew', random.random(), numpy.random.random())",
        options=("-n", "2"),
        preload="with_numpy"
        if (jobs.folder / "with_numpy.py").write_text("import numpy\ndef install():\n    pass\n")
        else "",
    )
    assert result.code == 0, result.out
    drawn = [line.split()[3:] for line in result.out.splitlines() if "drew" in line]
    assert len(drawn) == 2
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_a_worker_keeps_to_its_cpus_and_environment(jobs):
    result = jobs.run(
        """
        import os
        cpus = sorted(os.sched_getaffinity(0))
        print("cpus", cpus, os.environ["TF_NUM_INTRAOP_THREADS"], os.environ.get("DRUMBEAT_TOKEN"))
        print("mine", os.environ["MINE"], os.getpgrp() == os.getpid(), os.getcwd())
        """,
        env={"DRUMBEAT_TOKEN": "secret", "MINE": "yes"},
    )
    assert result.code == 0, result.out
    lines = [line for line in result.out.splitlines() if "] cpus" in line]
    assert len(lines) == 2
    assert all(line.endswith("None") for line in lines)
    assert result.out.count(f"mine yes True {jobs.folder}") == 2


def test_a_worker_has_no_more_open_files_than_under_python_but_its_agents_memory(jobs):
    result = jobs.run(
        """
        import os
        names = ("DRUMBEAT_PROGRESS_FD", "DRUMBEAT_MEMORY_FDS")
        memory = [fd for name in names for fd in os.environ[name].split(",")]
        print("fds", sorted({*os.listdir("/proc/self/fd")} - {*memory}, key=int))
        """,
        options=(*ONE, "--collectives", "tensorflow"),
    )
    # 3 is the listing itself.
    assert "fds ['0', '1', '2', '3']" in result.out


def test_a_traceback_leaves_drumbeat_out_unless_drumbeat_failed(jobs):
    script = """
        from drumbeat.launch.output import Line, Screen
        def width():
            raise ValueError("user's mistake")
        Screen(color=False, live=True, chief="w", width=WIDTH).draw("w", Line(text="x"))
    """
    users = jobs.run(script.replace("WIDTH", "width"), options=ONE).report
    assert users.endswith("ValueError: user's mistake")
    assert users.count("  File ") == 2
    assert "output.py" not in users
    ours = jobs.run(script.replace("WIDTH", "lambda: 'not a number'"), options=ONE).report
    assert "TypeError" in ours
    assert "output.py" in ours
    assert "worker.py" not in ours
