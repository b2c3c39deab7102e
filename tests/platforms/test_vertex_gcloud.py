"""The command in a rendered file's first line, run by the real gcloud against a stand-in."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from drumbeat.platforms import registry
from drumbeat.platforms.ai_platform import render as ai_platform
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.vertex import render as vertex

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not on PATH"),
]

JOB = {
    "name": "digits",
    "script": "train.py",
    "image": "gcr.io/p/digits:1",
    "workers": 3,
    "ps": 1,
    "machine_type": "n1-standard-8",
    "output": "gs://bucket/digits",
    "vertex": {"region": "us-central1", "labels": {"team": "a"}, "spot": True},
}
CONFIG = """
jobId: old_1
labels: {team: a}
trainingInput:
  scaleTier: CUSTOM
  region: us-central1
  masterType: standard
  masterConfig: {imageUri: "gcr.io/p/digits:1"}
  workerType: standard
  workerCount: "2"
  encryptionConfig:
    kmsKeyName: projects/p/locations/us-central1/keyRings/r/cryptoKeys/k
"""


@pytest.fixture
def service():
    """An HTTP server that takes jobs; `asked` are the paths and bodies of what came."""
    asked: list[tuple[str, dict]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path.partition("?")[0], body))
            made = json.dumps(
                {**body, "name": "projects/1/locations/us-central1/customJobs/7"}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(made)))
            self.end_headers()
            self.wfile.write(made)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, asked
    server.shutdown()
    thread.join()
    server.server_close()


def gcloud(text: str, folder, port: int) -> subprocess.CompletedProcess[str]:
    (folder / vertex.FILE).write_text(text)
    (folder / "token").write_text("anything")
    words = shlex.split(text.splitlines()[0].removeprefix("# "))
    env = {
        **os.environ,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM": f"http://127.0.0.1:{port}/",
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "CLOUDSDK_CORE_PROJECT": "my-project",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "true",
    }
    env.pop("PYTHONPATH", None)
    return subprocess.run(
        [*words, f"--access-token-file={folder}/token", "--quiet"],
        cwd=folder, env=env, text=True, capture_output=True, timeout=200, check=False,
    )  # fmt: skip


def test_what_gcloud_sends_is_the_job(service, tmp_path):
    port, asked = service
    job = Job.model_validate(JOB)
    rendered = vertex.render(job)
    done = gcloud(rendered.main, tmp_path, port)
    assert done.returncode == 0, done.stderr
    ((path, body),) = asked
    assert path == "/v1/projects/my-project/locations/us-central1/customJobs"
    assert body["displayName"] == "digits"
    assert body["labels"] == {"team": "a"}
    spec = registry.read_manifest(tmp_path / vertex.FILE).documents[0].value
    pools = body["jobSpec"]["workerPoolSpecs"]
    assert [int(pool["replicaCount"]) for pool in pools] == [1, 3, 1]
    for sent, written in zip(pools, spec["workerPoolSpecs"], strict=True):
        assert sent["containerSpec"] == written["containerSpec"]
        assert sent["machineSpec"] == written["machineSpec"]
    assert body["jobSpec"]["scheduling"]["strategy"] == "SPOT"
    assert body["jobSpec"]["baseOutputDirectory"] == spec["baseOutputDirectory"]


def test_what_gcloud_sends_of_a_converted_job_is_whole(service, tmp_path):
    port, asked = service
    (tmp_path / "config.yaml").write_text(CONFIG)
    rendered = ai_platform.convert(registry.read_manifest(tmp_path / "config.yaml"))
    done = gcloud(rendered.main, tmp_path, port)
    assert done.returncode == 0, done.stderr
    ((_, body),) = asked
    assert body["displayName"] == "old_1"
    assert body["labels"] == {"team": "a"}
    assert body["encryptionSpec"]["kmsKeyName"].endswith("/cryptoKeys/k")
    assert [int(each["replicaCount"]) for each in body["jobSpec"]["workerPoolSpecs"]] == [1, 2]


def test_gcloud_refuses_a_pool_that_is_left_out_so_curl_sends_it(service, tmp_path):
    port, asked = service
    config = CONFIG.replace("workerType", "parameterServerType")
    (tmp_path / "config.yaml").write_text(config.replace("workerCount", "parameterServerCount"))
    rendered = ai_platform.convert(registry.read_manifest(tmp_path / "config.yaml"))
    command = f"# gcloud ai custom-jobs create --region=r --display-name=d --config={vertex.FILE}\n"
    done = gcloud(command + rendered.main, tmp_path, port)
    assert done.returncode, "gcloud takes it now: no second file is needed any more"
    assert asked == []
    (tmp_path / vertex.JSON_FILE).write_text(rendered.files[vertex.JSON_FILE])
    words = shlex.split(rendered.main.splitlines()[1].removeprefix("# "))
    words[-1] = f"http://127.0.0.1:{port}/" + words[-1].partition("googleapis.com/")[2]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    ((path, body),) = asked
    assert path == "/v1/projects/PROJECT/locations/us-central1/customJobs"
    assert body["jobSpec"]["workerPoolSpecs"][1] == {}
    assert body["displayName"] == "old_1"
