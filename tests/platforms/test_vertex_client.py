"""Vertex AI's client against a stand-in of JobService that speaks gRPC with the real messages."""

from __future__ import annotations

import json
import os
import stat
from concurrent import futures

import pytest

from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import token_file
from drumbeat.platforms.jobfile import Job
from drumbeat.platforms.vertex import client as vertex_client
from drumbeat.platforms.vertex import render as vertex
from drumbeat.platforms.vertex.client import ENDPOINT, VertexClient

grpc = pytest.importorskip("grpc", reason="google-cloud-aiplatform is not installed")

SERVICE = "google.cloud.aiplatform.v1.JobService"
PARENT = "projects/my-project/locations/us-central1"


def job(tmp_path, **changes) -> Job:
    section = {"project": "my-project", "region": "us-central1", "labels": {"team": "a"}}
    return Job.model_validate(
        {
            "name": "digits",
            "script": "train.py",
            "image": "gcr.io/p/digits:1",
            "machine_type": "n1-standard-8",
            "workers": 2,
            "output": "gs://bucket/digits",
            "vertex": section,
            **changes,
        }
    )


class JobService:
    """Keeps the jobs that it is given; their state is the test's to change."""

    def __init__(self):
        from google.cloud.aiplatform_v1.types import CustomJob, job_service

        self.jobs = {}
        self.types = {
            "CreateCustomJob": (job_service.CreateCustomJobRequest, CustomJob.serialize),
            "GetCustomJob": (job_service.GetCustomJobRequest, CustomJob.serialize),
            "CancelCustomJob": (job_service.CancelCustomJobRequest, lambda _: b""),
        }
        self.refusal = None
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._call(name),
                request_deserializer=request.deserialize,
                response_serializer=serialize,
            )
            for name, (request, serialize) in self.types.items()
        }
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def _call(self, name):
        def call(request, context):
            if self.refusal is not None:
                context.abort(*self.refusal)
            return getattr(self, name)(request, context)

        return call

    def CreateCustomJob(self, request, context):
        made = request.custom_job
        made.name = f"{request.parent}/customJobs/{len(self.jobs) + 1}"
        made.state = "JOB_STATE_PENDING"
        self.jobs[made.name] = made
        return made

    def GetCustomJob(self, request, context):
        if request.name not in self.jobs:
            context.abort(grpc.StatusCode.NOT_FOUND, "The job does not exist.")
        return self.jobs[request.name]

    def CancelCustomJob(self, request, context):
        self.jobs[request.name].state = "JOB_STATE_CANCELLED"


@pytest.fixture
def service(monkeypatch):
    made = JobService()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{made.port}/")
    yield made
    made.server.stop(None).wait(10)


@pytest.fixture
def written(monkeypatch):
    """Places that a secret was written to."""
    found: list[str] = []
    monkeypatch.setattr(token_file, "put", found.append)
    return found


def test_a_job_is_submitted_watched_and_stopped(service, written, tmp_path):
    asked = job(tmp_path)
    client = VertexClient.of(asked, {})
    name = client.submit(asked, vertex.render(asked))
    assert name == f"{PARENT}/customJobs/1"
    assert written == ["gs://bucket/digits/drumbeat-token"]
    made = service.jobs[name]
    assert made.display_name == "digits"
    assert dict(made.labels) == {"team": "a"}
    assert [pool.replica_count for pool in made.job_spec.worker_pool_specs] == [1, 1]
    assert made.job_spec.worker_pool_specs[0].container_spec.command[0] == "drumbeat"
    assert client.status(name).state == "pending"
    assert client.status("1").job_id == name
    client.stop(name)
    assert client.status(name).state == "stopped"
    client.stop(name)  # one that has ended is fine


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("QUEUED", "pending"),
        ("PENDING", "pending"),
        ("RUNNING", "running"),
        ("SUCCEEDED", "succeeded"),
        ("FAILED", "failed"),
        ("CANCELLING", "running"),
        ("CANCELLED", "stopped"),
        ("PAUSED", "pending"),
        ("EXPIRED", "failed"),
        ("UPDATING", "running"),
        ("PARTIALLY_SUCCEEDED", "failed"),
        ("UNSPECIFIED", "unknown"),
    ],
)
def test_states(service, written, tmp_path, state, expected):
    asked = job(tmp_path, workers=1)
    client = VertexClient.of(asked, {})
    name = client.submit(asked, vertex.render(asked))
    assert written == []
    service.jobs[name].state = f"JOB_STATE_{state}"
    service.jobs[name].error.message = "out of quota"
    found = client.status(name)
    assert found.state == expected
    assert found.detail.endswith(": out of quota")


@pytest.mark.filterwarnings("ignore:Unrecognized JobState")
def test_a_state_that_the_library_does_not_know(service, written, tmp_path):
    asked = job(tmp_path, workers=1)
    client = VertexClient.of(asked, {})
    name = client.submit(asked, vertex.render(asked))
    service.jobs[name].state = 99
    found = client.status(name)
    assert (found.state, found.detail) == ("unknown", "99")


def test_every_state_of_the_service_is_known():
    from google.cloud.aiplatform_v1.types import JobState

    words = {state.name.removeprefix("JOB_STATE_") for state in JobState} - {"UNSPECIFIED"}
    assert words == set(vertex_client._STATES)


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("PERMISSION_DENIED", ConfigError, "the role Vertex AI User in my-project"),
        ("UNAUTHENTICATED", ConfigError, "refuses these credentials"),
        ("INVALID_ARGUMENT", ConfigError, "refuses it: no quota"),
        ("UNAVAILABLE", DrumbeatError, "can't be reached"),
        ("DEADLINE_EXCEEDED", DrumbeatError, "can't be reached"),
        ("RESOURCE_EXHAUSTED", ConfigError, "refuses it: no quota"),
    ],
)
def test_refusals_are_explained(service, written, tmp_path, code, kind, message):
    service.refusal = (grpc.StatusCode[code], "no quota")
    asked = job(tmp_path)
    with pytest.raises(kind) as caught:
        VertexClient.of(asked, {}).submit(asked, vertex.render(asked))
    assert message in str(caught.value)


def test_an_unknown_job_is_explained(service, tmp_path):
    client = VertexClient.of(job(tmp_path), {})
    with pytest.raises(ConfigError, match="knows nothing of it"):
        client.status("7")
    with pytest.raises(ConfigError, match="expected its number"):
        client.status("digits")


def test_no_server_is_explained(monkeypatch, written, tmp_path):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    asked = job(tmp_path)
    with pytest.raises(DrumbeatError, match="can't be reached"):
        VertexClient.of(asked, {}).submit(asked, vertex.render(asked))


def test_no_credentials_are_explained(monkeypatch, tmp_path):
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    asked = job(tmp_path)
    with pytest.raises(ConfigError, match="gcloud auth application-default login"):
        VertexClient.of(asked, {}).submit(asked, vertex.render(asked))


def test_a_service_that_never_answers_has_a_deadline(monkeypatch, tmp_path):
    monkeypatch.setattr(vertex_client, "TIMEOUT_S", 0.2)
    never = futures.Future()
    client = VertexClient(project="p", region="r", open_service=lambda _: never.result(timeout=20))
    with pytest.raises(DrumbeatError, match="took longer than"):
        client.status("1")
    never.set_result(None)


@pytest.mark.parametrize(
    ("section", "env", "message"),
    [
        ({"region": "us-central1"}, {}, "no vertex.project"),
        ({"project": "p"}, {}, "no vertex.region"),
    ],
)
def test_where_is_asked_for(tmp_path, section, env, message):
    with pytest.raises(ConfigError, match=message):
        VertexClient.of(job(tmp_path, vertex=section), env)


def test_the_project_may_come_from_the_environment(tmp_path):
    asked = job(tmp_path, vertex={"region": "r"})
    assert VertexClient.of(asked, {"GOOGLE_CLOUD_PROJECT": "p"}).parent == "projects/p/locations/r"


def test_the_plan_is_the_request_and_needs_no_credentials(tmp_path):
    asked = job(tmp_path)
    secret, request = VertexClient.of(asked, {}).plan(asked, vertex.render(asked))
    assert "gs://bucket/digits/drumbeat-token" in secret
    call, _, body = request.partition("\n")
    assert call == f"POST https://us-central1-aiplatform.googleapis.com/v1/{PARENT}/customJobs"
    assert json.loads(body)["displayName"] == "digits"
    assert json.loads(body)["labels"] == {"team": "a"}


def test_a_missing_library_names_the_extra(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "google.cloud.aiplatform_v1.services.job_service", None)
    asked = job(tmp_path)
    with pytest.raises(ConfigError, match=r"pip install \"drumbeat\[vertex,gcs\]\""):
        VertexClient.of(asked, {}).submit(asked, vertex.render(asked))


class TestLogs:
    @staticmethod
    def gcloud(tmp_path, monkeypatch, script):
        """A gcloud that notes its arguments and does what `script` says."""
        path = tmp_path / "bin" / "gcloud"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return lambda: (tmp_path / "words").read_text().splitlines()

    def test_past_lines_have_their_replica(self, service, written, tmp_path, monkeypatch):
        entries = [
            {"textPayload": "Job is preparing."},
            {
                "resource": {"labels": {"task_name": "workerpool1-0"}},
                "jsonPayload": {"message": "Epoch 1\nEpoch 2"},
            },
        ]
        (tmp_path / "entries").write_text(json.dumps(entries))
        words = self.gcloud(tmp_path, monkeypatch, f"cat {tmp_path}/entries")
        client, asked = VertexClient.of(job(tmp_path), {}), job(tmp_path)
        job_id = client.submit(asked, vertex.render(asked))
        lines = list(client.logs(job_id, task="workerpool1-0", follow=False))
        assert lines == [
            "service: Job is preparing.",
            "workerpool1-0: Epoch 1",
            "workerpool1-0: Epoch 2",
        ]
        assert words()[:3] == [
            "logging",
            "read",
            'resource.type="ml_job" resource.labels.job_id="1" '
            'resource.labels.task_name="workerpool1-0"',
        ]
        with pytest.raises(ConfigError, match="no task 'worker-1'; expected one of workerpool0-0"):
            client.logs(job_id, task="worker-1", follow=False)

    @pytest.mark.parametrize("said", ["<html>", "5", "[5]", "[{}, null]", '[{"resource": []}]'])
    def test_answers_that_are_none(self, tmp_path, monkeypatch, said):
        (tmp_path / "entries").write_text(said)
        self.gcloud(tmp_path, monkeypatch, f"cat {tmp_path}/entries")
        with pytest.raises(ConfigError, match="gcloud printed no entries as JSON"):
            list(VertexClient.of(job(tmp_path), {}).logs("7", task=None, follow=False))

    @pytest.mark.parametrize("follow", [False, True])
    def test_bytes_that_are_no_text(self, tmp_path, monkeypatch, follow):
        said = b"caf\xe9\n" if follow else b'[{"textPayload": "caf\xe9"}]'
        (tmp_path / "entries").write_bytes(said)
        self.gcloud(tmp_path, monkeypatch, f"cat {tmp_path}/entries")
        [line] = VertexClient.of(job(tmp_path), {}).logs("7", task=None, follow=follow)
        assert line.endswith("caf\ufffd")

    def test_following_streams(self, tmp_path, monkeypatch):
        words = self.gcloud(tmp_path, monkeypatch, "echo one; echo two")
        client = VertexClient.of(job(tmp_path), {})
        assert list(client.logs(f"{PARENT}/customJobs/7", task=None, follow=True)) == ["one", "two"]
        assert words() == [
            "ai",
            "custom-jobs",
            "stream-logs",
            "7",
            "--project=my-project",
            "--region=us-central1",
            '--format=value[separator=": "](task_name,message)',
        ]

    @pytest.mark.parametrize("follow", [False, True])
    def test_a_failure_is_explained(self, tmp_path, monkeypatch, follow):
        self.gcloud(tmp_path, monkeypatch, "echo no login >&2; exit 1")
        with pytest.raises(ConfigError, match="gcloud failed"):
            list(VertexClient.of(job(tmp_path), {}).logs("7", task=None, follow=follow))

    def test_without_gcloud_the_command_is_said(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="gcloud ai custom-jobs stream-logs 7 --project"):
            list(VertexClient.of(job(tmp_path), {}).logs("7", task=None, follow=True))


class TestTheSecret:
    def test_is_written_once(self, tmp_path):
        place = f"file://{tmp_path}/out/drumbeat-token"
        (tmp_path / "out").mkdir()
        token_file.put(place)
        first = (tmp_path / "out" / "drumbeat-token").read_text()
        assert len(first) == 64
        token_file.put(place)
        assert (tmp_path / "out" / "drumbeat-token").read_text() == first

    def test_a_place_that_cant_be_written_is_explained(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="can't be written to"):
            token_file.put(f"file://{tmp_path}/file/drumbeat-token")

    def test_an_unknown_kind_of_place_is_explained(self):
        with pytest.raises(ConfigError, match="can't be written to"):
            token_file.put("nowhere://bucket/drumbeat-token")

    def test_a_missing_driver_names_the_extra(self, monkeypatch):
        def missing(url):
            raise ImportError("Please install gcsfs")

        monkeypatch.setattr("fsspec.core.url_to_fs", missing)
        with pytest.raises(ConfigError, match=r"drumbeat\[gcs\]"):
            token_file.put("gs://bucket/drumbeat-token")
