"""`drumbeat rehearse` of manifests that are rendered, and of those that others write, trains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "platforms" / "examples"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
JOB = """
name: digits
script: train.py
image: team/digits:1
environment: {TF_CPP_MIN_LOG_LEVEL: "2", OMP_NUM_THREADS: "1"}
"""
# What somebody without drumbeat's platforms would write; python -m drumbeat is its own launcher.
INDEXED = """
apiVersion: batch/v1
kind: Job
metadata: {name: theirs}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  template:
    spec:
      subdomain: theirs
      restartPolicy: Never
      containers:
        - name: train
          image: theirs:1
          command: [drumbeat, run, train.py]
          env:
            - {name: OMP_NUM_THREADS, value: "1"}
            - name: TASK
              valueFrom:
                {fieldRef: {fieldPath: "metadata.annotations['INDEX']"}}
            - name: TF_CONFIG
              value: >-
                {"cluster": {"worker": ["theirs-0.theirs:2222", "theirs-1.theirs:2222"]},
                "task": {"type": "worker", "index": $(TASK)}}
            - {name: DRUMBEAT_TOKEN, valueFrom: {secretKeyRef: {name: s, key: t}}}
""".replace("INDEX", "batch.kubernetes.io/job-completion-index")


@pytest.fixture
def rehearse(tmp_path):
    shutil.copy(Path(__file__).parents[1] / "train_random.py", tmp_path / "train.py")
    (tmp_path / "drumbeat.yaml").write_text(JOB)

    def run(*words: str, steps: int = 3) -> str:
        options = ["--steps", str(steps), "--timeout", "400"]
        done = subprocess.run(
            [sys.executable, "-m", "drumbeat", "rehearse", *words, *options],
            cwd=tmp_path,
            env={**os.environ, **QUIET},
            text=True,
            capture_output=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("tfjob",), ("worker-0", "worker-1")),
        (("tfjob", "--set", "tfjob.chief=true"), ("chief-0", "worker-0")),
        (("jobset",), ("worker-0", "worker-1")),
        (("trainjob",), ("node-0", "node-1")),
    ],
)
def test_what_is_rendered(words, names, rehearse):
    said = rehearse(*words)
    assert f"2 processes on this machine ({', '.join(names)})" in said
    steps = re.search(r"2 workers trained together: (\d+) steps", said)
    assert steps is not None
    assert int(steps[1]) >= 3
    assert "DRUMBEAT_TOKEN is made up; there it comes from the Secret digits-drumbeat" in said


def test_parameter_servers_of_a_tfjob(rehearse, tmp_path):
    script = tmp_path / "train.py"
    text = script.read_text()
    assert "MultiWorkerMirroredStrategy" in text
    script.write_text(
        "import drumbeat\n"
        + text.replace("tf.distribute.MultiWorkerMirroredStrategy()", "drumbeat.strategy()")
    )
    said = rehearse("tfjob", "--set", "ps=1")
    assert "4 processes on this machine (chief-0, worker-0, worker-1, ps-0)" in said
    assert re.search(r"2 workers trained together: \d+ steps", said)


def test_an_indexed_job_of_somebody_s(rehearse, tmp_path):
    (tmp_path / "job.yaml").write_text(INDEXED)
    said = rehearse("job.yaml")
    assert "TF_CONFIG: this is worker 1, node 1 of 2" in said
    assert "2 workers trained together" in said


@pytest.mark.parametrize("platform", ["tfjob", "trainjob", "jobset"])
def test_the_example_of_the_docs_trains_the_digits(platform, rehearse, tmp_path):
    for name in ("demo.py", "digits.py", "recipe.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path / name)
    # The example's arguments are those of a script that takes them; the demo has none of them.
    (tmp_path / "train.py").write_text(
        "import runpy, sys\nassert '--epochs' in sys.argv, sys.argv\nsys.argv[1:] = []\n"
        "runpy.run_path('demo.py', run_name='__main__')\n"
    )
    (tmp_path / "job.yaml").write_text((EXAMPLES / platform / f"{platform}.yaml").read_text())
    said = rehearse("job.yaml", steps=2)
    assert "2 workers trained together" in said
    assert "gs://team-runs/digits there goes to" in said
