"""`drumbeat rehearse`, with a platform made up for it, and commands that do little."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.cli.options import app
from drumbeat.cli.rehearsing import LAST_LINES, LINE_WIDTH, _last_lines, together
from drumbeat.cluster.rehearsing import Rehearsing, Report
from drumbeat.errors import ConfigError
from drumbeat.platforms import registry, rehearsing
from drumbeat.platforms.platform import Platform, Process, Rehearsal


def _rehearse(manifest, places):
    document = manifest.documents[0].value
    port = str(places.port())
    processes = [
        Process(
            name=each["name"],
            command=tuple(each["command"]),
            env={k: v.replace("PORT", port) for k, v in each.get("env", {}).items()},
            is_main=each.get("main", True),
        )
        for each in document["processes"]
    ]
    differences = tuple(document.get("differences", ()))
    return Rehearsal(platform="fake", processes=tuple(processes), differences=differences)


FAKE = Platform(
    name="fake",
    title="a fake",
    rehearse=_rehearse,
    recognises=lambda m: "processes" in m.documents[0].value,
    problems=lambda m: list(m.documents[0].value.get("problems", ())),
)
"""Its manifest is a list of processes."""
FILES = Platform(name="files", title="a platform of files")


@dataclass
class Done:
    returncode: int
    stdout: str


FIT = """
import keras, numpy as np, tensorflow as tf
x = np.random.rand(6400, 8).astype("float32")
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(x, x.sum(1), batch_size=64, epochs=100_000, verbose=2)
"""
PLAIN = """
import keras, numpy as np
x = np.random.rand(6400, 8).astype("float32")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x.sum(1), batch_size=64, epochs=100_000, verbose=2)
"""
PLAIN_LOOP = """
import keras, numpy as np, tensorflow as tf
x = np.random.rand(64, 8).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(1e-3)
while True:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x)[:, 0] - x.sum(1)) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.weights), model.weights))
"""
LOOP = """
import keras, numpy as np, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.rand(64, 8).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).repeat().batch(64)

@tf.function(jit_compile=True)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x)[:, 0] - y) ** 2)
    return tape.gradient(loss, model.trainable_variables)

@tf.function
def train(iterator):
    def one(x, y):
        optimizer.apply_gradients(zip(step(x, y), model.trainable_variables))
    strategy.run(one, args=next(iterator))

iterator = iter(strategy.experimental_distribute_dataset(data))
while True:
    train(iterator)
"""


@pytest.fixture
def rehearse(tmp_path, monkeypatch, capfd):
    """The command, with two platforms made up for it, in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "PLATFORMS", {"fake": lambda: FAKE, "files": lambda: FILES})

    def run(*arguments, env=None):
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            app(["rehearse", *arguments], prog_name="drumbeat")
        return Done(int(ended.value.code or 0), capfd.readouterr().out)

    return run


def manifest(folder, *processes, **more):
    path = folder / "job.yaml"
    path.write_text(json.dumps({"processes": list(processes), **more}))
    return str(path)


def python(name, text, **more):
    return {"name": name, "command": ["python", "-c", textwrap.dedent(text)], **more}


def test_lines_come_after_names_and_all_succeed(rehearse, tmp_path):
    path = manifest(
        tmp_path,
        python("worker-0", "print('first')"),
        python("worker-1", "print('second')"),
        differences=["There is a network."],
        problems=["It has a problem."],
    )
    done = rehearse(path, "--folder", str(tmp_path / "logs"))
    assert done.returncode == 0, done.stdout
    assert "[worker-0] first" in done.stdout
    assert "[worker-1] second" in done.stdout
    assert "It has a problem." in done.stdout
    assert "without drumbeat run" in done.stdout
    assert "  - There is a network." in done.stdout
    assert (tmp_path / "logs" / "worker-1.log").read_text() == "second\n"


def test_environment_is_exact(rehearse, tmp_path):
    path = manifest(
        tmp_path,
        python(
            "worker-0",
            "import json, os; open('env.json', 'w').write(json.dumps(dict(os.environ)))",
            env={"TF_CONFIG": "{}", "PLACE": "127.0.0.1:PORT"},
        ),
    )
    own = {"KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "7", "AWS_PROFILE": "mine", "LC_ALL": "C"}
    done = rehearse(path, "--env", "AWS_PROFILE", "--env", "KEY=a=b", env=own)
    assert done.returncode == 0, done.stdout
    found = json.loads((tmp_path / "env.json").read_text())
    assert found.pop("TF_CONFIG") == "{}"
    assert found.pop("PLACE").startswith("127.0.0.1:")
    assert found.pop("AWS_PROFILE") == "mine"
    assert found.pop("KEY") == "a=b"
    assert found.pop("DRUMBEAT_REHEARSAL").startswith("5:")
    assert found.pop("LC_ALL") == "C"
    found.pop("LC_CTYPE", None)  # Python's own
    found.pop("COLUMNS", None)  # the screen's
    assert set(found) <= set(rehearsing.KEPT)
    assert found["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_a_token_is_made_up_only_where_there_is_one(rehearse, tmp_path):
    """Else agents say what they would say there."""
    show = "import os; print('token', len(os.environ.get('DRUMBEAT_' + 'TOKEN', '')))"
    # What an agent is recognised by, in a shell's text.
    agents = [{"name": f"worker-{i}", "command": ["bash", "-c", f'python -c "{show}" drumbeat run']}
              for i in range(2)]  # fmt: skip
    done = rehearse(manifest(tmp_path, *agents))
    assert "[worker-0] token 0" in done.stdout
    assert "Nothing gives worker-0 a DRUMBEAT_TOKEN, so it has none here either" in done.stdout
    given = [{**each, "env": {"DRUMBEAT_TOKEN_FILE": "gs://b/x"}} for each in agents]
    for parts, more, env in (
        (given, {}, []),
        (agents, {"note": "the shell reads DRUMBEAT_TOKEN"}, []),
        (agents, {"differences": ["DRUMBEAT_TOKEN is made up."]}, []),
        (agents, {}, ["--env", "DRUMBEAT_TOKEN=" + 64 * "x"]),
    ):
        done = rehearse(manifest(tmp_path, *parts, **more), *env)
        assert done.stdout.count("token 64") == 2
        assert "Nothing gives" not in done.stdout
    done = rehearse(manifest(tmp_path, given[0], agents[1]))
    assert "[worker-0] token 64" in done.stdout
    assert "[worker-1] token 0" in done.stdout
    assert "Nothing gives worker-1" in done.stdout


def test_agents_without_a_token_fail_as_they_would_there(rehearse, tmp_path):
    (tmp_path / "noop.py").write_text("")
    cluster = {"worker": ["127.0.0.1:PORT", "127.0.0.2:PORT"]}
    agents = []
    for index in range(2):
        tf_config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        agents.append(
            {"name": f"worker-{index}", "command": ["drumbeat", "run", "/app/noop.py"],
             "env": {"TF_CONFIG": tf_config}}
        )  # fmt: skip
    done = rehearse(manifest(tmp_path, *agents))
    assert done.returncode == 2
    assert "DRUMBEAT_TOKEN is not set" in done.stdout
    assert "Nothing gives worker-0 a DRUMBEAT_TOKEN, so it has none here either" in done.stdout


def test_failure_ends_all_and_is_told(rehearse, tmp_path):
    path = manifest(
        tmp_path,
        python("worker-0", "import time; time.sleep(600)"),
        python("worker-1", "import sys; print('about to fail'); sys.exit(7)"),
    )
    done = rehearse(path)
    assert done.returncode == 7
    assert "Failed: worker-1 ended with exit code 7" in done.stdout
    # Little was written, and all of that is on the screen.
    assert done.stdout.count("about to fail") == 1
    assert "last lines" not in done.stdout


def test_last_lines_are_bounded(rehearse, tmp_path):
    path = manifest(
        tmp_path,
        python("w", "[print(i) for i in range(500)]; raise SystemExit(1)"),
        python("v", "import time; time.sleep(600)"),
    )
    done = rehearse(path)
    assert "Its last lines:" in done.stdout
    after = done.stdout.partition("Its last lines:\n")[2].partition("[drumbeat] Logs are in")[0]
    assert after.splitlines()[-1] == "499"
    assert len(after.splitlines()) <= LAST_LINES + 1
    long = _last_lines("\n".join(["a"] * 100 + ["b" * 5000])).splitlines()
    assert long[0] == "… (71 lines before)"
    assert len(long) == LAST_LINES + 1
    assert len(long[-1]) == LINE_WIDTH + 1


@pytest.mark.parametrize(("code", "explains"), [(0, True), (1, True), (2, False)])
def test_differences_are_told_where_they_can_explain(rehearse, tmp_path, code, explains):
    path = manifest(tmp_path, python("w", f"raise SystemExit({code})"), differences=["It rains."])
    done = rehearse(path)
    assert done.returncode == code
    assert ("  - It rains." in done.stdout) == explains


@pytest.mark.parametrize(
    ("data", "code", "is_told"), [("gs://b/d", 1, True), ("gs://b/d", 2, False), ("d", 1, False)]
)
def test_data_in_a_bucket(rehearse, tmp_path, data, code, is_told):
    process = python("w", f"raise SystemExit({code})", env={"DRUMBEAT_DATA": data})
    done = rehearse(manifest(tmp_path, process))
    assert ("--set data=./sample" in done.stdout) == is_told


def test_killed_part_has_the_code_of_shells(rehearse, tmp_path):
    path = manifest(tmp_path, python("w", "import os; os.kill(os.getpid(), 9)"))
    assert rehearse(path).returncode == 137


def test_what_no_program_can_be_given(rehearse, tmp_path):
    path = manifest(tmp_path, python("w", "pass", env={"A=B": "1"}))
    with pytest.raises(ConfigError, match="w can't be started"):
        rehearse(path)


def test_deadline(rehearse, tmp_path):
    path = manifest(tmp_path, python("w", "import time; time.sleep(600)"))
    done = rehearse(path, "--timeout", "0.5")
    assert done.returncode == 124
    assert "after 0.5 s (--timeout)" in done.stdout


def test_the_rest_is_ended_with_the_last_main_process(rehearse, tmp_path):
    path = manifest(
        tmp_path,
        python("worker-0", "pass"),
        python("ps-0", "import time; time.sleep(600)", main=False),
    )
    assert rehearse(path).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_all(tmp_path, number):
    """One ignores SIGTERM, and has a child that has left its group and its parent."""
    (tmp_path / "orphan.py").write_text(
        "import pathlib, subprocess\n"
        "child = subprocess.Popen(['sleep', '601'], start_new_session=True)\n"
        "pathlib.Path('pid.new').write_text(str(child.pid))\n"
        "pathlib.Path('pid.new').rename('pid')\n"
    )
    (tmp_path / "job.sh").write_text("trap '' TERM INT\npython orphan.py\nsleep 600\n")
    (tmp_path / "rehearse.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "from drumbeat.launch import together\n"
        "together.TERM_S = together.SECOND_TERM_S = 0.2\n"
        "part = together.Part(name='w', argv=('bash', 'job.sh'), env=dict(os.environ))\n"
        "found = together.run_together([part], logs=Path(), timeout_s=60, environ={})\n"
        "raise SystemExit(found.code)\n"
    )
    job = subprocess.Popen([sys.executable, "rehearse.py"], cwd=tmp_path)
    try:
        wait_for(lambda: (tmp_path / "pid").exists())
        job.send_signal(number)
        assert job.wait(timeout=60) == 128 + number
    finally:
        job.kill()
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_kill_ends_all(tmp_path):
    (tmp_path / "rehearse.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "from drumbeat.launch.together import Part, run_together\n"
        "one = ('bash', '-c', 'trap \"\" TERM; echo $$ > $0.new; mv $0.new $0; sleep 602; true')\n"
        "parts = [Part(name=n, argv=(*one, n), env=dict(os.environ)) for n in ('a', 'b')]\n"
        "run_together(parts, logs=Path(), timeout_s=60, environ={})\n"
    )
    job = subprocess.Popen([sys.executable, "rehearse.py"], cwd=tmp_path)
    files = [tmp_path / name for name in ("a", "b")]
    try:
        wait_for(lambda: all(file.exists() for file in files))
    finally:
        job.kill()
        job.wait()
    pids = [int(file.read_text()) for file in files]
    try:
        wait_for(lambda: not any(map(psutil.pid_exists, pids)))
    finally:
        for pid in filter(psutil.pid_exists, pids):
            os.killpg(pid, signal.SIGKILL)


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def refused(rehearse, tmp_path, capfd):
    """The message of a command that is refused before anything starts."""

    def run(*arguments):
        with pytest.raises(ConfigError) as error:
            rehearse(*arguments)
        assert not (tmp_path / "runs").exists()
        return str(error.value)

    return run


def test_missing_script_is_refused_before_anything_starts(refused, tmp_path):
    path = manifest(
        tmp_path,
        python("worker-0", "open('started', 'w')"),
        {"name": "worker-1", "command": ["python", "/app/train.py"]},
    )
    error = refused(path)
    assert "worker-1 runs '/app/train.py', which is not here" in error
    assert not (tmp_path / "started").exists()


def test_what_else_is_refused(refused, tmp_path):
    def only(words):
        return manifest(tmp_path, {"name": "w", "command": words})

    assert "not on this machine" in refused(only(["no-such-program"]))
    assert "has no command" in refused(only([]))
    assert "module 'package.train'" in refused(only(["python", "-m", "package.train"]))
    many = manifest(tmp_path, *(python(f"w-{i}", "pass") for i in range(9)))
    assert "-n 2" in refused(many)
    assert "called a" in refused(manifest(tmp_path, python("a", "pass"), python("a", "pass")))
    assert "called '../a'" in refused(manifest(tmp_path, python("../a", "pass")))
    assert "no process that trains" in refused(manifest(tmp_path))
    servers = manifest(tmp_path, python("ps-0", "pass", main=False))
    assert "no process that trains" in refused(servers)
    one = manifest(tmp_path, python("a", "pass"))
    assert "--steps is 0" in refused(one, "--steps", "0")
    assert "--timeout is" in refused(one, "--timeout", "0")
    assert "no such variable" in refused(one, "--env", "NO_SUCH_VARIABLE")
    assert "as it is" in refused(one, "-n", "2")
    assert "is unknown" in refused(one, "--as", "fakes")
    assert "can't be rehearsed" in refused(one, "--as", "files")
    (tmp_path / "other.yaml").write_text("a: b\n")
    assert "no manifest of a platform" in refused(str(tmp_path / "other.yaml"))
    assert "does not exist" in refused("no-such-file.yaml")
    (tmp_path / "t.py").write_text("x: int = {}: 3")
    assert "`drumbeat check" in refused(str(tmp_path / "t.py"))
    for name in ("j.yaml", "drumbeat.yaml"):
        (tmp_path / name).write_text("script: t.py\n")
        said = refused(str(tmp_path / name))
        assert "is a job file, which many platforms can run" in said
        assert said.endswith(f"{name}.")


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [("services: {a: {image: i}}", "slurm", "a.yaml is for Docker Compose, and --as is slurm"),
     ("a: 1", "slurm", "a.yaml is YAML or JSON, and --as is slurm; expected a batch script"),
     ("- 1", "slurm", "expected a batch script"),
     ("#!/bin/bash\n#SBATCH -N1\nsrun a", "compose", "a.yaml is for Slurm, and --as is compose")],
)  # fmt: skip
def test_a_platform_that_is_not_the_files(tmp_path, text, name, said):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        app(["rehearse", str(path), "--as", name], standalone_mode=False)


def test_a_script_without_options_is_slurms_if_that_is_said(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.sh").write_text("echo one $SLURM_JOB_ID\n")
    app(["rehearse", "plain.sh", "--as", "slurm"], standalone_mode=False)
    assert re.search(r"\] one \d+$", capfd.readouterr().out, re.MULTILINE)


MACHINE = {"PATH": "/usr/bin:/bin", "HOME": "/home/me"}


def at_home(folder, *words, env=None, environ=None):
    machine = rehearsing.Machine(
        folder=folder, python="/venv/bin/python", environ={**MACHINE, **(environ or {})}
    )
    process = Process(name="w", command=words, env=env or {})
    return rehearsing.at_home(process, machine)


@pytest.mark.parametrize("given", ["/app/src/train.py", "src/train.py", "/train.py", "./train.py"])
def test_script_of_the_image_is_found_by_its_tail(tmp_path, given):
    (tmp_path / "train.py").write_text("")
    process, notes = at_home(tmp_path, "/opt/conda/bin/python3.11", given, "--data", "/data/x.py")
    assert process.command == (
        "/venv/bin/python",
        str(Path(given).name),
        "--data",
        "/data/x.py",
    ) or (given == "./train.py" and process.command[1] == given)
    assert bool(notes) == (given != "./train.py")


@pytest.mark.parametrize("words", [["-m", "drumbeat"], ["-m", "drumbeat", "run", "-n", "2"]])
def test_script_behind_the_module_is_found_too(tmp_path, words):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    process, notes = at_home(tmp_path, "python", *words, "/app/src/train.py", "--x", "/app/y.py")
    assert process.command[-4:] == (words[-1], "src/train.py", "--x", "/app/y.py")
    assert notes == [f"/app/src/train.py is src/train.py of {tmp_path} here."]


def test_longest_tail_wins(tmp_path):
    (tmp_path / "src").mkdir()
    for name in ("train.py", "src/train.py"):
        (tmp_path / name).write_text("")
    process, _ = at_home(tmp_path, "python", "/app/src/train.py")
    assert process.command[1] == "src/train.py"


def test_drumbeat_and_python_are_this_environments(tmp_path):
    (tmp_path / "train.py").write_text("")
    process, _ = at_home(tmp_path, "/usr/local/bin/drumbeat", "run", "-n", "2", "/app/train.py")
    assert process.command[:2] == ("/venv/bin/python", "-c")
    assert process.command[3:] == ("run", "-n", "2", "train.py")
    process, _ = at_home(tmp_path, "bash", "-c", "drumbeat run /app/train.py")
    assert process.command == ("bash", "-c", "drumbeat run /app/train.py")
    assert process.env["PATH"].startswith("/venv/bin:")


def test_variables_of_the_image_do_not_hide_this_machines(tmp_path):
    env = {"PATH": "/opt/bin", "PYTHONPATH": "/app", "HOME": "/root", "X": "1"}
    process, notes = at_home(
        tmp_path, "python", "-c", "pass", env=env, environ={"PYTHONPATH": "/own", "Y": "2"}
    )
    assert process.env == {
        "PATH": "/venv/bin:/usr/bin:/bin",
        "HOME": "/home/me",
        "PYTHONPATH": "/app:/own",
        "X": "1",
    }
    assert any("HOME" in note for note in notes)


def test_credentials_that_are_mounted_there(tmp_path):
    name = "GOOGLE_APPLICATION_CREDENTIALS"
    env = {name: "/secrets/gcp/sa.json", "DRUMBEAT_TOKEN_FILE": "gs://bucket/token"}
    process, notes = at_home(tmp_path, "python", "-c", "pass", env=env)
    assert name not in process.env
    assert "DRUMBEAT_TOKEN_FILE" not in process.env
    assert any(name in note for note in notes)
    process, _ = at_home(tmp_path, "python", "-c", "pass", env=env, environ={name: "/me/key.json"})
    assert process.env[name] == "/me/key.json"


_WORDS = st.sampled_from(
    ["", "python", "drumbeat", "run", "-m", "-c", "--backup-dir", "--backup-dir=", "/", "..", ".py",
     "a.py", "/app/a.py", "../" * 9 + "a.py", "a" * 5000 + ".py", "\0.py", "\udcff.sh", "a..b",
     "x/y", "b/", "gs://b", "=", "-"]
)  # fmt: skip


@given(
    st.lists(_WORDS, max_size=5),
    st.dictionaries(
        st.sampled_from(["DRUMBEAT_OUTPUT", "PATH", "GOOGLE_APPLICATION_CREDENTIALS", "A"]), _WORDS
    ),
)
def test_any_command_is_taken_or_explained(words, env):
    folder = Path(__file__).parent
    try:
        process, _ = at_home(folder, *words, env=env)
    except ConfigError:
        return
    rehearsing.with_outputs(process, folder)


def test_outputs_are_the_rehearsals_own(tmp_path):
    process = Process(
        name="w",
        command=("drumbeat", "run", "--backup-dir", "s3://b/run/backups", "t.py", "--model",
                 "s3://b/run/model.keras", "--data", "s3://b/runs", "--at=s3://b/run"),
        env={"DRUMBEAT_OUTPUT": "s3://b/run/", "LOGS": "s3://b/run/logs", "OTHER": "xs3://b/run"},
    )  # fmt: skip
    out = tmp_path / "outputs"
    found, notes = rehearsing.with_outputs(process, out)
    assert found.command == (
        "drumbeat", "run", "--backup-dir", f"{out}/backups", "t.py", "--model",
        f"{out}/model.keras", "--data", "s3://b/runs", f"--at={out}",
    )  # fmt: skip
    assert found.env == {
        "DRUMBEAT_OUTPUT": str(out),
        "LOGS": f"{out}/logs",
        "OTHER": "xs3://b/run",
    }
    assert len(notes) == 1


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("script", "are_together"),
    [(FIT, True), (LOOP, True), (PLAIN, True), (PLAIN_LOOP, False)],
    ids=["fit", "loop", "fit without a strategy", "loop without a strategy"],
)
def test_two_processes_train_their_first_steps(rehearse, tmp_path, script, are_together):
    """A script that would never end is ended after some steps, on both at once and with code 0."""
    (tmp_path / "train.py").write_text(script)
    processes = [
        {
            "name": f"worker-{rank}",
            "command": ["drumbeat", "run", "--backup-dir", "gs://b/x", "/app/train.py"],
            "env": {
                "DRUMBEAT_NODES": "2",
                "DRUMBEAT_NODE_RANK": str(rank),
                "DRUMBEAT_RENDEZVOUS": "127.0.0.1:PORT",
                "DRUMBEAT_TOKEN": "secret",
            },
        }
        for rank in range(2)
    ]
    done = rehearse(manifest(tmp_path, *processes), "--steps", "3", "--timeout", "300")
    if not are_together:
        assert done.returncode == 1, done.stdout
        assert "Failed: each of the 2 workers trained a model of its own" in done.stdout
        return
    assert done.returncode == 0, done.stdout
    assert "The agents of 2 processes found each other. 2 workers trained together" in done.stdout
    assert int(done.stdout.partition("together: ")[2].split()[0]) >= 3


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(400)
def test_processes_that_do_not_know_of_each_other(rehearse, tmp_path):
    (tmp_path / "train.py").write_text(FIT)
    processes = [
        {"name": f"worker-{rank}", "command": ["drumbeat", "run", "train.py"]} for rank in range(2)
    ]
    done = rehearse(manifest(tmp_path, *processes), "--steps", "1", "--timeout", "300")
    assert done.returncode == 1, done.stdout
    assert "Failed: worker-0, worker-1 trained alone" in done.stdout


@pytest.mark.parametrize("index", [None, 0])
def test_python_without_drumbeat_that_trains_alone(rehearse, tmp_path, index):
    (tmp_path / "train.py").write_text("import os\nrank = os.environ.get('RANK')")
    processes = [
        {
            "name": f"w-{rank}",
            "command": ["python", "train.py"],
            "env": {} if index is None else {"RANK": str(rank)},
        }
        for rank in range(2)
    ]
    done = rehearse(manifest(tmp_path, *processes))
    assert done.returncode == (1 if index is None else 0), done.stdout
    said = "Failed: w-0, w-1 trained alone, as nothing in the environment says that the 2"
    assert (said in done.stdout) == (index is None)


def test_what_keras_refuses_is_told_after_it_has_failed(rehearse, tmp_path):
    (tmp_path / "train.py").write_text(
        "raise SystemExit(1)\ns = tf.distribute.MultiWorkerMirroredStrategy()\nmodel.fit()"
    )
    cluster = {"worker": ["a:1", "b:1"]}
    processes = [
        {
            "name": f"w-{rank}",
            "command": ["python", "train.py"],
            "env": {
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": rank}}
                )
            },
        }
        for rank in range(2)
    ]
    done = rehearse(manifest(tmp_path, *processes))
    assert done.returncode == 1
    assert done.stdout.count("put drumbeat run (or python -m drumbeat) before the script") == 1


def test_platform_that_has_files_of_its_own_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in ([], ["-f", "config.yaml"]):
        with pytest.raises(ConfigError, match=r"expected one: drumbeat rehearse config\.yaml"):
            app(["rehearse", "ai-platform", *arguments], standalone_mode=False)


def test_an_image_that_is_not_named(tmp_path):
    given = registry.parse_manifest(
        "#!/bin/bash\nrunai training tensorflow submit d -i t:1 --workers 2 --no-master "
        "--command -- drumbeat run t.py\n",
        tmp_path / "run.sh",
    )
    ports = iter(range(20_000, 20_010))

    class Ports:
        def port(self):
            return next(ports)

    platform = registry.get("runai")
    assert platform.rehearse is not None
    said = " ".join(platform.rehearse(given, Ports()).differences)
    assert "there they are the image's" in said
    assert "none" not in said


def report(**changed):
    said = {"node_rank": 0, "nodes": 2, "workers": 2, "steps": 5, "apart": False}
    return Report(**{**said, "task": "", "code": 0, **changed})


def test_verdict_on_what_agents_report():
    both = {"a": report(), "b": report(node_rank=1, steps=4)}
    text, alone = together(both)
    assert not alone
    assert "2 processes found each other" in text
    assert text.endswith("4 steps.")
    text, alone = together({"a": report(), "b": report(nodes=1, workers=1)})
    assert alone
    assert "b trained alone" in text
    assert not together({"a": report(nodes=1, workers=1)})[1]
    text, alone = together({"a": report(apart=True), "b": report(node_rank=1)})
    assert alone
    assert "each of the 2 workers trained a model of its own" in text
    assert together({"chief": report(), "ps": report(steps=0)})[0].endswith("5 steps.")
    # An evaluator of TF_CONFIG belongs to no node.
    assert not together({**both, "c": report(nodes=1, task="evaluator 0")})[1]
    assert "nobody counted" in together({})[0]


@pytest.mark.parametrize("text", ["", "5", "0:/f", "x:/f", "-1:/f", "5:"])
def test_order_that_is_malformed(text):
    with pytest.raises(ConfigError, match="DRUMBEAT_REHEARSAL is"):
        Rehearsing.from_env({"DRUMBEAT_REHEARSAL": text})


def test_order_and_report_come_back(tmp_path):
    order = Rehearsing(steps=5, report=tmp_path / "a:b.json")
    assert Rehearsing.from_env(order.to_env()) == order
    assert Report.read(order.report) is None
    order.report.write_bytes(report().to_bytes())
    assert Report.read(order.report) == report()
