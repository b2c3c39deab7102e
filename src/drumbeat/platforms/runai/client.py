"""The runai command, for `drumbeat submit runai` and its like."""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drumbeat.cluster.wording import printed_by
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import command
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.kubernetes.pods import TOKEN_KEY, token_secret
from drumbeat.platforms.merged import Merged
from drumbeat.platforms.platform import Rendered, Status

_CALL_TIMEOUT_S = 120.0
_STATES = {
    "pending": "pending creating initializing queued submitted",
    "running": "running active degraded",
    "succeeded": "completed succeeded",
    "failed": "failed error",
    "stopped": "stopped stopping suspended suspending deleting terminating preempted",
}
_LINE = re.compile(r"^\s*(?:status|phase)\s*[:|]?\s+([A-Za-z]+)", re.IGNORECASE | re.MULTILINE)
_KEYS = ("phase", "status", "actualphase", "state")
_TASK = re.compile(r"(worker|master)-\d+")


class RunaiClient:
    """Jobs of one project; the id of a job is its name."""

    def __init__(
        self, job: Job, words: Sequence[str], *, environ: Mapping[str, str] | None = None
    ) -> None:
        self._job = job
        self._words = list(words)
        self._environ = os.environ if environ is None else environ

    def plan(self, job: Job, rendered: Rendered) -> list[str]:
        """See `Client.plan`."""
        calls = [command.shell(self._words)]
        if job.nodes > 1 and job.runai.project is not None:
            look = self._kubectl("get", "secret", token_secret(job))
            make = self._kubectl("create", "-f", "-")
            note = f"(unless it is there: a Secret {token_secret(job)}, made anew)"
            calls = [command.shell(look), f"{command.shell(make)} {note}", *calls]
        return calls

    def submit(self, job: Job, rendered: Rendered) -> str:
        """See `Client.submit`."""
        self._check_runai()
        if job.nodes > 1:
            self._make_secret(job)
        self._call(self._words)
        return job.name

    def status(self, job_id: str) -> Status:
        """See `Client.status`."""
        said = self._call(self._verb("describe", job_id, "-o", "json"))
        try:
            found = json.loads(said)
        except ValueError:
            found = None
        word = _first(found, _KEYS) if found is not None else _in_text(said)
        return Status(
            job_id=job_id,
            state=_state(word),
            detail=word,
            tasks=_tasks(found, job_id) if found is not None else {},
        )

    def logs(self, job_id: str, *, task: str | None, follow: bool) -> Iterator[str]:
        """See `Client.logs`."""
        self._check_runai()
        if task is not None and not _TASK.fullmatch(task):
            raise ConfigError(f"--task is {task}; expected one such as worker-0.")
        tasks = [task] if task else [f"worker-{index}" for index in range(self._job.nodes)]
        merged = Merged()
        for each in tasks:
            words = self._verb("logs", job_id, "--pod", f"{job_id}-{each}")
            words += ["--follow"] if follow else []
            merged.start(functools.partial(self._lines, merged, each, words))
        yield from merged.lines()

    def stop(self, job_id: str) -> None:
        """See `Client.stop`."""
        try:
            self._call(self._verb("delete", job_id))
        except ConfigError as error:
            if "not found" not in str(error).lower():
                raise

    def _lines(self, merged: Merged, task: str, words: Sequence[str]) -> Iterator[str]:
        for line in merged.run(words, self._environ):
            yield f"{task}: {line}"

    def _verb(self, verb: str, job_id: str, *more: str) -> list[str]:
        if self._job.runai.cli == "v1":
            words = ["runai", verb, job_id] if verb == "logs" else ["runai", verb, "job", job_id]
        else:
            words = ["runai", "training", "tensorflow", verb, job_id]
        project = self._job.runai.project
        return [*words, *more, *(["-p", project] if project is not None else [])]

    def _kubectl(self, *words: str) -> list[str]:
        """A call in the namespace of the project, where Run:ai keeps its pods."""
        return ["kubectl", "-n", f"runai-{self._job.runai.project}", *words]

    def _make_secret(self, job: Job) -> None:
        """Makes the agents' Secret; says what to do where that can't be known."""
        name = token_secret(job)
        if job.runai.project is None or self._which("kubectl") is None:
            print(
                f"drumbeat: the pods need the Secret {name}, and it can't be seen here whether "
                "there is one (kubectl, and runai.project in the job file).",
                file=sys.stderr,
            )
            return
        if self._run(self._kubectl("get", "secret", name)).returncode == 0:
            return
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "stringData": {TOKEN_KEY: secrets.token_hex(32)},
        }
        self._call(self._kubectl("create", "-f", "-"), text_in=json.dumps(secret))

    def _which(self, program: str) -> str | None:
        return shutil.which(program, path=self._environ.get("PATH"))

    def _check_runai(self) -> None:
        if self._which("runai") is None:
            raise ConfigError(
                "runai is not on this machine, or not in PATH. Its administrators' page offers it "
                'under "Researcher command line interface"; then: runai login.'
            )

    def _call(self, words: Sequence[str], text_in: str = "") -> str:
        if words[0] == "runai":
            self._check_runai()
        process = self._run(words, text_in)
        if process.returncode:
            said = printed_by(process.stderr or process.stdout, f"code {process.returncode}")
            what = " ".join(word for word in words[:4] if not word.startswith("-"))
            raise ConfigError(f"{what} failed:{said}")
        return process.stdout

    def _run(self, words: Sequence[str], text_in: str = "") -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words,
                input=text_in,
                capture_output=True,
                text=True,
                errors="replace",
                env=dict(self._environ),
                timeout=_CALL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DrumbeatError(
                f"{words[0]} did not answer within {_CALL_TIMEOUT_S:g} s. Is the cluster reached?"
            ) from None
        except OSError as error:
            raise ConfigError(f"{words[0]} can't be started: {error.strerror or error}.") from None


def _state(word: str) -> str:
    states = (state for state, words in _STATES.items() if word.lower() in words.split())
    return next(states, "unknown")


def _in_text(said: str) -> str:
    found = _LINE.search(said)
    return found[1] if found else ""


def _first(value: Any, keys: Sequence[str]) -> str:
    """The text behind the outermost of the keys; how `describe` nests them is not documented."""
    level = [value]
    for _ in range(8):
        mappings = [each for each in level if isinstance(each, dict)]
        for mapping in mappings:
            for key, item in mapping.items():
                if key.lower() in keys and isinstance(item, str):
                    return item
        level = [item for mapping in mappings for item in mapping.values()]
    return ""


def _tasks(value: Any, job_id: str) -> dict[str, str]:
    """States of pods, where there is a list of them."""
    lists = [value] if isinstance(value, dict) else []
    for mapping in lists:
        for key, item in mapping.items():
            if key.lower() == "pods" and isinstance(item, list):
                return {
                    str(pod.get("name", "")).removeprefix(f"{job_id}-"): _first(pod, _KEYS)
                    for pod in item
                    if isinstance(pod, dict)
                }
            if isinstance(item, dict):
                lists.append(item)
    return {}
