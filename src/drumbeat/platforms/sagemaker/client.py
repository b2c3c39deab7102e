"""Submits to SageMaker through boto3, and reads logs from CloudWatch.

Source: boto3 1.43; SageMaker's Developer Guide, "Log Groups and Streams" (/aws/sagemaker/…).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import token_file
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Rendered, Status, check_task
from drumbeat.platforms.sagemaker import render as sagemaker

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10, 30
POLL_S = 5.0
_STATES = {
    "InProgress": "running",
    "Completed": "succeeded",
    "Failed": "failed",
    "Stopping": "running",
    "Stopped": "stopped",
    "Deleting": "stopped",
}
_PENDING = (
    "Starting",
    "Pending",
    "LaunchingMLInstances",
    "PreparingTrainingStack",
    "DownloadingTrainingImage",
)
_ENDED = ("succeeded", "failed", "stopped")


@dataclass(frozen=True, kw_only=True)
class SageMakerClient:
    """Training jobs of one region and account.

    Attributes:
        region: Such as eu-west-1; None for the one of AWS's own configuration.
        now: What is added to a job's name, which can be had once.
    """

    region: str | None = None
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)

    def plan(self, job: Job, rendered: Rendered) -> list[str]:
        """See `Client.plan`."""
        lines = []
        if (place := sagemaker.token_place(job)) is not None:
            lines.append(f"write a new secret to {place}, unless there is one already")
        body = json.dumps(self._request(job, rendered), indent=2)
        where = f" in {self.region}" if self.region else ""
        return [*lines, f"sagemaker:CreateTrainingJob{where}\n{body}"]

    def submit(self, job: Job, rendered: Rendered) -> str:
        """See `Client.submit`."""
        service = self._service("sagemaker")
        request = self._request(job, rendered)
        if (place := sagemaker.token_place(job)) is not None:
            token_file.put(place)
        _call(lambda: service.create_training_job(**request), "TrainingJobArn")
        return request["TrainingJobName"]

    def status(self, job_id: str) -> Status:
        """See `Client.status`; SageMaker says nothing of single hosts."""
        found = self._found(job_id)
        word, second = found["TrainingJobStatus"], found.get("SecondaryStatus", "")
        state = _STATES.get(word, "unknown")
        if state == "running" and second in _PENDING:
            state = "pending"
        detail = ": ".join(filter(None, (second or word, found.get("FailureReason", ""))))
        return Status(job_id=job_id, state=state, detail=detail)

    def logs(self, job_id: str, *, task: str | None, follow: bool) -> Iterator[str]:
        """See `Client.logs`; tasks are the hosts, algo-1 and so on."""
        found = self._found(job_id)  # an unknown job is explained before anything is shown
        if task is not None:
            check_task(job_id, task, _hosts(found))
        return self._logs(job_id, task, follow)

    def stop(self, job_id: str) -> None:
        """See `Client.stop`."""
        if self.status(job_id).state in _ENDED:
            return
        service = self._service("sagemaker")
        _call(lambda: service.stop_training_job(TrainingJobName=job_id))

    def _found(self, job_id: str) -> dict[str, Any]:
        call = self._service("sagemaker").describe_training_job
        return _call(lambda: call(TrainingJobName=job_id), "TrainingJobStatus")

    def _request(self, job: Job, rendered: Rendered) -> dict[str, Any]:
        request = json.loads(rendered.main)
        return request | {"TrainingJobName": f"{job.name}-{self.now():%Y%m%d-%H%M%S}"}

    def _service(self, name: str) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise ConfigError(
                f"SageMaker needs boto3, which is not installed ({error}): "
                'pip install "drumbeat[sagemaker,s3]"'
            ) from None
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"total_max_attempts": 3, "mode": "standard"},
        )
        # boto3's own default session would keep the first credentials that it found.
        return _call(lambda: boto3.Session().client(name, region_name=self.region, config=config))

    def _logs(self, job_id: str, task: str | None, follow: bool) -> Iterator[str]:
        service = self._service("logs")
        begin, shown = 0, set()
        while True:
            # Asked before reading, so that the last lines of a job that ends are not missed.
            ended = not follow or self.status(job_id).state in _ENDED
            for event in _events(service, job_id, task, begin):
                if event["eventId"] in shown:
                    continue
                shown.add(event["eventId"])
                # Lines may come in late, but not that late.
                begin = max(begin, event["timestamp"] - 60_000)
                host = event["logStreamName"].partition("/")[2].rpartition("-")[0]
                if task not in (None, host):
                    continue
                for line in event["message"].splitlines():
                    yield f"{host}: {line}"
            if ended:
                return
            time.sleep(POLL_S)


def _hosts(found: dict[str, Any]) -> list[str]:
    resources = found.get("ResourceConfig", {})
    groups = resources.get("InstanceGroups") or [resources]
    count = sum(int(group.get("InstanceCount", 0)) for group in groups)
    return [f"algo-{number + 1}" for number in range(count)]


def _events(service: Any, job_id: str, task: str | None, begin: int) -> Iterator[dict[str, Any]]:
    prefix = f"{job_id}/{task}-" if task else f"{job_id}/"
    given = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": prefix, "startTime": begin}
    token: dict[str, str] = {}
    while True:
        page = _call(lambda asked={**given, **token}: _page(service, asked))
        yield from page.get("events", ())
        if not page.get("nextToken"):
            return
        token = {"nextToken": page["nextToken"]}


def _page(service: Any, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return service.filter_log_events(**asked)
    except service.exceptions.ResourceNotFoundException:
        return {}  # no job of the account has printed anything yet


def _call(call: Callable[[], Any], key: str | None = None) -> Any:
    """What AWS answers, which has `key`: boto3 reads a proxy's page as an answer without keys."""
    try:
        answer = call()
    except Exception as error:
        return _refuse(error)
    if key is not None and key not in answer:
        raise DrumbeatError(
            f"AWS gave an answer without {key}. Is it AWS that answers, and not a proxy or what "
            "AWS_ENDPOINT_URL names?"
        )
    return answer


def _refuse(error: Exception) -> Any:
    from botocore import exceptions

    text = str(error)
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        raise ConfigError(
            f"There are no credentials of AWS: {text}. Run `aws configure`, or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from None
    if isinstance(error, exceptions.NoRegionError):
        raise ConfigError(
            "No region of AWS is known; expected sagemaker.region in the job file, such as "
            "eu-west-1, or AWS_DEFAULT_REGION."
        ) from None
    if isinstance(error, exceptions.ParamValidationError):
        raise ConfigError(f"AWS's own model refuses the request: {text}") from None
    if isinstance(error, exceptions.ClientError):
        raise ConfigError(f"AWS refuses it: {text}") from None
    if isinstance(error, (exceptions.BotoCoreError, OSError)):
        raise DrumbeatError(
            f"AWS can't be reached: {text}. Check sagemaker.region and the network."
        ) from None
    raise error
