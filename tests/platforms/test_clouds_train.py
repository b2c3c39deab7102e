"""Rehearsals of the clouds' jobs that train: two replicas find each other by what they are told."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.platforms import registry
from drumbeat.platforms.jobfile.model import Job

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(600)]

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
JOB = {"name": "digits", "script": "train.py", "workers": 2, "environment": QUIET}
CONFIG = {
    "trainingInput": {
        "scaleTier": "CUSTOM",
        "region": "us-central1",
        "masterType": "standard",
        "masterConfig": {
            "imageUri": "gcr.io/p/digits:1",
            "containerCommand": ["drumbeat", "run"],
            "containerArgs": ["train.py"],
        },
        "workerType": "standard",
        "workerCount": "1",
        "workerConfig": {"containerCommand": ["drumbeat", "run", "train.py"]},
    }
}


def rendered(platform: str, **keys) -> str:
    make = registry.get(platform).render
    assert make is not None
    return make(Job.model_validate({**JOB, **keys})).main


def rehearse(folder: Path, file: str, *words: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(Path(__file__).parent / "train_random.py", folder / "train.py")
    return subprocess.run(
        [sys.executable, "-m", "drumbeat", "rehearse", file, "--timeout", "400", *words],
        cwd=folder, text=True, capture_output=True, timeout=500, check=False,
        env={**os.environ, **QUIET},
    )  # fmt: skip


def test_vertex(tmp_path):
    text = rendered(
        "vertex", image="gcr.io/p/digits:1", machine_type="n1-standard-8", output="gs://b/digits"
    )
    (tmp_path / "custom-job.yaml").write_text(text)
    done = rehearse(tmp_path, "custom-job.yaml", "--steps", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 workers trained together" in done.stdout
    assert "workerpool1-0" in done.stdout
    assert "There, the program runs in gcr.io/p/digits:1" in done.stdout


def test_vertex_with_one_replica_that_has_cluster_spec_alone(tmp_path):
    text = rendered("vertex", workers=1, image="gcr.io/p/digits:1", machine_type="n1-standard-8")
    (tmp_path / "custom-job.yaml").write_text(text)
    done = rehearse(tmp_path, "custom-job.yaml", "--steps", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 worker trained" in done.stdout


def test_an_old_config_of_ai_platform_whose_chief_is_a_master(tmp_path):
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    done = rehearse(tmp_path, "config.yaml", "--steps", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 workers trained together" in done.stdout
    assert "master-0, worker-0" in done.stdout


def test_sagemaker(tmp_path):
    text = rendered(
        "sagemaker",
        image="123456789012.dkr.ecr.eu-west-1.amazonaws.com/digits:1",
        machine_type="ml.m5.xlarge",
        output="s3://b/digits",
        sagemaker={"role": "arn:aws:iam::123456789012:role/SageMakerTraining"},
    )
    (tmp_path / "training-job.json").write_text(text)
    done = rehearse(tmp_path, "training-job.json", "--steps", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 workers trained together" in done.stdout
    assert "algo-1, algo-2" in done.stdout
