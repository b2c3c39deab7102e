"""Processes that run Python without drumbeat: whether they train alone, or can't."""

import json
from pathlib import Path

import pytest

from drumbeat.platforms import plain_python
from drumbeat.platforms.platform import Process

MULTI = "s = tf.distribute.MultiWorkerMirroredStrategy()\nmodel.fit(x)\n"
PLAIN = "import keras\nmodel.fit(x)\n"
SLURM = [
    {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_ID": "0",
        "SLURM_NODEID": str(rank),
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "a[0-1]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NUM_TASKS": "2",
    }
    for rank in range(2)
]


def tf_config(rank):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": rank}}
    return {"TF_CONFIG": json.dumps(cluster)}


TOLD = [tf_config(0), tf_config(1)]


def processes(command, *envs):
    return [
        Process(name=f"w-{n}", command=tuple(command.split("|")), env=env)
        for n, env in enumerate(envs)
    ]


def alone(folder, script, envs, command="python|train.py"):
    (folder / "train.py").write_text(script)
    return plain_python.alone(processes(command, *envs), folder, "trained")


@pytest.mark.parametrize(
    ("script", "envs", "why"),
    [
        (MULTI, [{}, {}], "alone, as nothing in the environment says that the 2 processes"),
        (MULTI, SLURM, "goes by TF_CONFIG, which nobody sets, and not by SLURM"),
        ('"""On SLURM_PROCID, with horovod."""\n# TF_CONFIG\n' + MULTI, SLURM, "and not by SLURM"),
        (PLAIN, TOLD, "the script has no strategy"),
    ],
)
def test_who_trains_alone(tmp_path, script, envs, why):
    found = alone(tmp_path, script, envs)
    assert found is not None
    assert found.names == ("w-0", "w-1")
    assert str(found).startswith("w-0, w-1 trained alone")
    assert why in str(found)


@pytest.mark.parametrize(
    "command",
    [
        "python3.11|-u|/app/src/train.py",
        "sh|-c|exec python train.py",
        "python|-m|train",
        "/usr/bin/python|train.py",
    ],
)
def test_however_python_is_started(tmp_path, command):
    assert alone(tmp_path, MULTI, [{}, {}], command) is not None
    assert alone(tmp_path, "import horovod", [{}, {}], command) is None


@pytest.mark.parametrize(
    ("script", "envs", "command"),
    [
        (MULTI, TOLD, "python|train.py"),
        (MULTI, [{}], "python|train.py"),
        ("import horovod.keras", SLURM, "python|train.py"),
        ("from tensorflow.distribute.cluster_resolver import SlurmClusterResolver", SLURM,
         "python|train.py"),
        ("import os\nrank = os.environ['SLURM_PROCID']", SLURM, "python|train.py"),
        ("import os\nrank = os.environ['TASK']", [{"TASK": "0"}, {"TASK": "1"}], "python|train.py"),
        ("import drumbeat.auto", SLURM, "python|train.py"),
        ("from own import meet", SLURM, "python|train.py"),
        ("import no python", SLURM, "python|train.py"),
        (MULTI, SLURM, "python|of_the_image.py"),
        (MULTI, [{}, {}], "drumbeat|run|train.py"),
        (MULTI, [{}, {}], "python|-m|drumbeat|train.py"),
        (MULTI, [{}, {}], "bash|-c|drumbeat run train.py"),
        (MULTI, [{}, {}], "bash|start.sh"),
        (MULTI, [{"TF_CONFIG": "{"}] * 2, "python|train.py"),
    ],
)  # fmt: skip
def test_where_they_may_find_each_other(tmp_path, script, envs, command):
    (tmp_path / "own.py").write_text("import own, socket\nsocket.gethostname()")
    assert alone(tmp_path, script, envs, command) is None


def test_different_programs_need_not_find_each_other(tmp_path):
    (tmp_path / "train.py").write_text(MULTI)
    one, two = processes("python|train.py", {}, {})
    other = Process(name="web", command=("python", "web.py"), env={})
    assert plain_python.alone([one, other], tmp_path, "trained") is None
    two = Process(name="w-1", command=("python", "train.py", "--task_index=1"), env={})
    assert plain_python.alone([one, two], tmp_path, "trained") is None
    helper = Process(name="ps-0", command=one.command, env={}, is_main=False)
    assert plain_python.alone([one, helper], tmp_path, "trained") is None


@pytest.mark.parametrize(
    ("script", "env", "cannot"),
    [
        (MULTI, {}, True),
        (None, {}, True),
        ("from own import x\nmodel.fit(x)", {}, True),
        ("import drumbeat.auto\n" + MULTI, {}, False),
        ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + MULTI, {}, False),
        ("import tf_keras\n" + MULTI, {}, False),
        (MULTI, {"TF_USE_LEGACY_KERAS": "1"}, False),
        (MULTI, {"KERAS_BACKEND": "jax"}, False),
        (PLAIN, {}, False),
        (MULTI.replace("fit", "step"), {}, False),
        (MULTI, {"TF_CONFIG": ""}, False),
    ],
)
def test_what_keras_3_refuses(tmp_path, script, env, cannot):
    if script is not None:
        (tmp_path / "train.py").write_text(script)
    (tmp_path / "own.py").write_text(MULTI)
    given = [{**each, **env} for each in TOLD]
    found = plain_python.keras_cannot(processes("python|train.py", *given), tmp_path)
    assert found == (("w-0", "w-1") if cannot else ())
    assert not plain_python.keras_cannot(processes("drumbeat|run|train.py", *given), tmp_path)


@pytest.mark.parametrize("word", ["", "/", "..", "a\0b.py", "x" * 5000 + ".py"])
def test_paths_that_no_file_has(tmp_path, word):
    assert plain_python.find_script(word, tmp_path) is None
    assert not plain_python.is_file(Path(word) / "train.py")
