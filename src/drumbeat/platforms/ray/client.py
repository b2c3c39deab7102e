"""Ray's job server, for `drumbeat submit ray` and its like."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms.deadline import within
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Rendered, Status, check_task

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_CALL_TIMEOUT_S = 60.0
_UPLOAD_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.5
_SILENCE_S = 30.0
"""Without output, after which the server is asked whether the job goes on."""
_STATES = {
    "PENDING": "pending",
    "RUNNING": "running",
    "STOPPED": "stopped",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
}
_ENDED = ("STOPPED", "SUCCEEDED", "FAILED")
_TASK = re.compile(r"node-\d+")


class RayClient:
    """Jobs at one server; the id of a job is Ray's submission id."""

    def __init__(self, job: Job, *, environ: Mapping[str, str] | None = None) -> None:
        self._job = job
        self._environ = os.environ if environ is None else environ

    @property
    def address(self) -> str:
        """Of the server, from the job file, RAY_ADDRESS, or the default."""
        given = self._job.ray.address or self._environ.get("RAY_ADDRESS") or DEFAULT_ADDRESS
        if not given.startswith(("http://", "https://", "ray://")):
            raise ConfigError(
                f"Ray's address is {shown(given)}; expected that of its job server, such as "
                "http://head:8265, in ray.address of the job file or in RAY_ADDRESS."
            )
        return given

    def plan(self, job: Job, rendered: Rendered) -> list[str]:
        """See `Client.plan`."""
        request = _request(rendered)
        body = json.dumps(request, indent=1)
        return [f"JobSubmissionClient({self.address!r}).submit_job:\n{body}"]

    def submit(self, job: Job, rendered: Rendered) -> str:
        """See `Client.submit`."""
        request = _request(rendered)
        job_id = f"{job.name}-{secrets.token_hex(4)}"
        client = self._client()
        self._call(
            lambda: client.submit_job(submission_id=job_id, **request),
            "Submitting the job, and uploading its folder",
            timeout_s=_UPLOAD_TIMEOUT_S,
        )
        return job_id

    def status(self, job_id: str) -> Status:
        """See `Client.status`."""
        client = self._client()
        info = self._call(lambda: client.get_job_info(job_id), "Asking for the job")
        word = str(getattr(info.status, "value", info.status))
        first = (info.message or "").strip().partition("\n")[0]
        # Ray appends the log's end, which `logs` shows.
        said = re.sub(r",? last available logs\b.*", "", first).rstrip(" :,")
        detail = f"{word}: {said}" if said else word
        return Status(job_id=job_id, state=_STATES.get(word, "unknown"), detail=detail)

    def logs(self, job_id: str, *, task: str | None, follow: bool) -> Iterator[str]:
        """See `Client.logs`."""
        if task is not None and not _TASK.fullmatch(task):
            raise ConfigError(f"--task is {shown(task)}; expected one such as node-0.")
        client = self._client()
        text = self._call(lambda: client.get_job_logs(job_id), "Reading the job's output")
        named = sorted(set(re.findall(r"^(node-\d+): ", str(text), re.MULTILINE)))
        if task is not None and not follow and named:
            check_task(job_id, task, named)
        lines = self._followed(client, job_id) if follow else iter(str(text).splitlines())
        for line in lines:
            if task is None or line.startswith(f"{task}: "):
                yield line

    def stop(self, job_id: str) -> None:
        """See `Client.stop`."""
        client = self._client()
        self._call(lambda: client.stop_job(job_id), "Stopping the job")
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while True:
            if self._is_over(client, job_id):
                return
            if time.monotonic() > deadline:
                raise DrumbeatError(f"{job_id} has not ended within {_STOP_TIMEOUT_S:g} s.")
            time.sleep(_POLL_S)

    def _followed(self, client: Any, job_id: str) -> Iterator[str]:
        loop = asyncio.new_event_loop()
        chunks = client.tail_job_logs(job_id)
        rest, coming = "", None
        try:
            while True:
                coming = asyncio.ensure_future(chunks.__anext__(), loop=loop)
                if not self._comes(loop, coming, client, job_id):
                    break
                try:
                    rest += coming.result()
                except StopAsyncIteration:
                    break
                except Exception as error:  # of several libraries
                    why = _first_line(error)
                    raise DrumbeatError(f"Ray's job server ended the output: {why}") from None
                *lines, rest = rest.split("\n")
                yield from lines
            if rest:
                yield rest
        finally:
            if coming is not None:
                coming.cancel()
                loop.run_until_complete(asyncio.wait({coming}))
            loop.run_until_complete(chunks.aclose())
            loop.close()

    def _comes(self, loop: Any, coming: Any, client: Any, job_id: str) -> bool:
        """Waits for more output, as long as the server says that the job goes on.

        Raises:
            DrumbeatError: The server does not answer any more.
        """
        is_over = False
        while True:
            loop.run_until_complete(asyncio.wait({coming}, timeout=_SILENCE_S))
            if coming.done() or is_over:
                return coming.done()
            is_over = self._is_over(client, job_id)

    def _is_over(self, client: Any, job_id: str) -> bool:
        status = self._call(lambda: client.get_job_status(job_id), "Asking for the job")
        return str(getattr(status, "value", status)) in _ENDED

    def _client(self) -> Any:
        address = self.address
        try:
            from ray.job_submission import JobSubmissionClient
        except ImportError:
            raise ConfigError(
                'Ray is not installed; expected: pip install "drumbeat[ray]".'
            ) from None
        return self._call(lambda: JobSubmissionClient(address), f"Connecting to {address}")

    def _call(self, call: Any, what: str, timeout_s: float = _CALL_TIMEOUT_S) -> Any:
        try:
            return within(timeout_s, call, what)
        except DrumbeatError:
            raise
        except Exception as error:
            raise ConfigError(_explained(error, what, self.address)) from None


def _explained(error: Exception, what: str, address: str) -> str:
    text, first = str(error), _first_line(error)
    if type(error).__name__ == "AuthenticationError":
        return (
            f"Ray's job server at {address} wants a token. Set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as for `ray job submit`."
        )
    if isinstance(error, ConnectionError):
        return (
            f"No job server of Ray answers at {address}. Is the cluster up, with its dashboard, "
            "and the port forwarded? Set ray.address in the job file, or RAY_ADDRESS."
        )
    if re.search(r"\b413\b", text):
        return (
            "The folder is larger than the 100 MB that Ray's job server takes. Leave more out by "
            "ray.runtime_env.excludes, or put the folder's archive where working_dir can name it."
        )
    if re.search(r"\b404\b", text) or "does not exist" in text:
        return f"Ray knows no such job at {address}: {first}"
    return f"{what} failed: {first}"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _request(rendered: Rendered) -> dict[str, Any]:
    documents = parse_yaml(rendered.main, "ray.yaml")
    return dict(documents[0].value)
