"""Submits to Vertex AI through google-cloud-aiplatform's JobService, and reads logs with gcloud.

Source: google-cloud-aiplatform 2.7 (aiplatform_v1); gcloud 528 (`ai custom-jobs stream-logs`, and
the filter it reads Cloud Logging with).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drumbeat.cluster.wording import printed_by, shown
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import command, token_file
from drumbeat.platforms.deadline import within
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.needed import Missing
from drumbeat.platforms.platform import Rendered, Status, check_task
from drumbeat.platforms.vertex import render as vertex

ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM"
"""gcloud's own variable for another address of the service; http:// stands for one without TLS."""
PROJECTS = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
TIMEOUT_S = 60.0
LOGS_TIMEOUT_S = 120.0
_STATES = {
    "QUEUED": "pending",
    "PENDING": "pending",
    "PAUSED": "pending",
    "RUNNING": "running",
    "UPDATING": "running",
    "CANCELLING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "EXPIRED": "failed",
    "PARTIALLY_SUCCEEDED": "failed",
    "CANCELLED": "stopped",
}
_ENDED = ("succeeded", "failed", "stopped")


@dataclass(frozen=True, kw_only=True)
class VertexClient:
    """Jobs of one project and region.

    Attributes:
        project: Its id.
        region: Such as us-central1.
        open_service: Opens a connection to JobService; by default with Application Default
            Credentials.
    """

    project: str
    region: str
    open_service: Callable[[VertexClient], Any] | None = None

    @staticmethod
    def of(job: Job, env: Mapping[str, str] = os.environ) -> VertexClient:
        """The client for a job.

        Raises:
            Missing: Nobody says which project or region.
        """
        known = (env.get(name) for name in PROJECTS)
        project = job.vertex.project or next((each for each in known if each), None)
        region = job.vertex.region
        if project is None or region is None:
            missing = {"vertex.project": "my-project"} if project is None else {}
            raise Missing(missing | ({"vertex.region": "us-central1"} if region is None else {}))
        return VertexClient(project=project, region=region)

    @property
    def parent(self) -> str:
        """Where the jobs are."""
        return f"projects/{self.project}/locations/{self.region}"

    def plan(self, job: Job, rendered: Rendered) -> list[str]:
        """See `Client.plan`."""
        lines = []
        if (place := vertex.token_place(job)) is not None:
            lines.append(f"write a new secret to {place}, unless there is one already")
        body = json.dumps(_described(job, rendered), indent=2)
        url = f"https://{self.region}-aiplatform.googleapis.com/v1/{self.parent}/customJobs"
        return [*lines, f"POST {url}\n{body}"]

    def submit(self, job: Job, rendered: Rendered) -> str:
        """See `Client.submit`."""
        service = self._service()
        custom_job = _proto(_described(job, rendered))
        if (place := vertex.token_place(job)) is not None:
            token_file.put(place)
        call = service.create_custom_job
        made = self._call(lambda: call(parent=self.parent, custom_job=custom_job, **_limits()))
        return str(made.name)

    def status(self, job_id: str) -> Status:
        """See `Client.status`; Vertex AI says nothing of single replicas."""
        found = self._found(job_id)
        # One that the library does not know is a number.
        word = str(getattr(found.state, "name", found.state)).removeprefix("JOB_STATE_")
        detail = word.lower().replace("_", " ")
        if found.error.message:
            detail = f"{detail}: {found.error.message}"
        state = _STATES.get(word, "unknown")
        return Status(job_id=self._name(job_id), state=state, detail=detail)

    def logs(self, job_id: str, *, task: str | None, follow: bool) -> Iterator[str]:
        """See `Client.logs`; needs gcloud on PATH."""
        if task is not None:
            check_task(job_id, task, self._tasks(job_id))
        words = self.logs_command(job_id, task=task, follow=follow)
        if shutil.which("gcloud") is None:
            raise ConfigError(
                "Logs are read with gcloud, which is not on PATH. Install the Google Cloud CLI "
                f"here, or run this where it is: {command.shell(words)}"
            )
        return _followed(words) if follow else _entries(words)

    def logs_command(self, job_id: str, *, task: str | None, follow: bool) -> list[str]:
        """The command that shows a job's logs."""
        number = self._name(job_id).rpartition("/")[2]
        if follow:
            words = ["gcloud", "ai", "custom-jobs", "stream-logs", number]
            words += [f"--project={self.project}", f"--region={self.region}"]
            words += [f"--task-name={task}"] if task else []
            return [*words, '--format=value[separator=": "](task_name,message)']
        wanted = f'resource.type="ml_job" resource.labels.job_id="{number}"'
        if task:
            wanted += f" resource.labels.task_name={json.dumps(task)}"
        words = ["gcloud", "logging", "read", wanted, f"--project={self.project}"]
        return [*words, "--order=asc", "--freshness=30d", "--format=json"]

    def stop(self, job_id: str) -> None:
        """See `Client.stop`."""
        if self.status(job_id).state in _ENDED:
            return
        name, service = self._name(job_id), self._service()
        self._call(lambda: service.cancel_custom_job(name=name, **_limits()))

    def _found(self, job_id: str) -> Any:
        name, service = self._name(job_id), self._service()
        return self._call(lambda: service.get_custom_job(name=name, **_limits()))

    def _tasks(self, job_id: str) -> list[str]:
        """The replicas' names, as Vertex AI's logs have them."""
        pools = enumerate(self._found(job_id).job_spec.worker_pool_specs)
        return [f"workerpool{at}-{n}" for at, pool in pools for n in range(pool.replica_count)]

    def _name(self, job_id: str) -> str:
        if job_id.startswith("projects/") and "/customJobs/" in job_id:
            return job_id
        if job_id.isascii() and job_id.isdigit():
            return f"{self.parent}/customJobs/{job_id}"
        raise ConfigError(
            f"The job is {shown(job_id)}; expected its number, or "
            "projects/PROJECT/locations/REGION/customJobs/NUMBER."
        )

    def _service(self) -> Any:
        what = "Signing in to Google Cloud"
        return within(TIMEOUT_S, lambda: (self.open_service or _open)(self), what)

    def _call(self, call: Callable[[], Any]) -> Any:
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError

        where = f"Vertex AI in {self.region}"
        try:
            return within(TIMEOUT_S + 10, call, f"Asking {where}")
        except exceptions.NotFound as error:
            raise ConfigError(f"{where} knows nothing of it: {error.message}") from None
        except (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded) as error:
            raise DrumbeatError(
                f"{where} can't be reached: {error.message}. Check vertex.region and the network."
            ) from None
        except (exceptions.PermissionDenied, exceptions.Unauthenticated) as error:
            raise ConfigError(
                f"{where} refuses these credentials: {error.message}. Expected an account with the "
                f"role Vertex AI User in {self.project}."
            ) from None
        except exceptions.GoogleAPICallError as error:
            raise ConfigError(f"{where} refuses it: {error.message}") from None
        except GoogleAuthError as error:
            raise ConfigError(_no_credentials(error)) from None


def _open(client: VertexClient) -> Any:
    """JobService of a region.

    Raises:
        ConfigError: The library or the credentials are missing.
    """
    try:
        import google.auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.aiplatform_v1.services.job_service import JobServiceClient, transports
    except ImportError as error:
        raise ConfigError(
            f"Vertex AI needs google-cloud-aiplatform, which is not installed ({error}): "
            'pip install "drumbeat[vertex,gcs]"'
        ) from None
    scheme, _, host = os.environ.get(ENDPOINT, "").strip().rstrip("/").rpartition("://")
    if scheme == "http":
        import grpc

        channel = grpc.insecure_channel(host)
        transport = transports.JobServiceGrpcTransport(
            channel=channel, credentials=AnonymousCredentials()
        )
        return JobServiceClient(transport=transport)
    host = host or f"{client.region}-aiplatform.googleapis.com"
    try:
        credentials, _ = google.auth.default(
            scopes=["https://www.googleapis.com/auth/cloud-platform"]
        )
        return JobServiceClient(credentials=credentials, client_options={"api_endpoint": host})
    except GoogleAuthError as error:
        raise ConfigError(_no_credentials(error)) from None


def _no_credentials(error: Exception) -> str:
    return (
        "There are no credentials of Google Cloud that work. Run `gcloud auth application-default "
        f"login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file. Google's library: {error}"
    )


def _limits() -> dict[str, Any]:
    return {"timeout": TIMEOUT_S, "retry": None}


def _described(job: Job, rendered: Rendered) -> dict[str, Any]:
    """The CustomJob, as JSON has it."""
    (document,) = parse_yaml(rendered.main, vertex.FILE)
    described: dict[str, Any] = {"displayName": job.name, "jobSpec": document.value}
    return described | ({"labels": dict(job.vertex.labels)} if job.vertex.labels else {})


def _proto(described: dict[str, Any]) -> Any:
    from google.cloud.aiplatform_v1.types import CustomJob
    from google.protobuf import json_format

    try:
        return CustomJob.wrap(json_format.ParseDict(described, CustomJob.pb(CustomJob())))
    except json_format.ParseError as error:
        raise ConfigError(f"Vertex AI's types refuse the job: {error}") from None


def _entries(words: list[str]) -> Iterator[str]:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=LOGS_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise DrumbeatError(
            f"gcloud took longer than {LOGS_TIMEOUT_S:g} s: {command.shell(words)}"
        ) from None
    if done.returncode:
        raise ConfigError(f"gcloud failed:{printed_by(done.stderr)}")
    try:
        said = [_said(entry) for entry in json.loads(done.stdout or "[]")]
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"gcloud printed no entries as JSON: {shown(done.stdout)}") from None
    for task, text in said:
        for line in text.splitlines():
            yield f"{task}: {line}"


def _said(entry: Any) -> tuple[str, str]:
    task = entry.get("resource", {}).get("labels", {}).get("task_name", "service")
    payload = entry.get("jsonPayload") or {}
    return task, str(payload.get("message") or entry.get("textPayload") or "")


def _followed(words: list[str]) -> Iterator[str]:
    """What gcloud prints; it ends with the job."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, errors="replace") as run:
        assert run.stdout is not None  # noqa: S101
        try:
            for line in run.stdout:
                yield line.rstrip("\n")
            if code := run.wait():
                raise ConfigError(f"gcloud failed with code {code}: {command.shell(words)}")
        finally:
            run.terminate()
