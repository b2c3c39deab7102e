"""The docker and docker compose commands, for `drumbeat submit compose` and its like.

Compose starts the containers. All else is asked of docker itself by the label that Compose gives
them, so that it needs neither the file nor its variables.
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drumbeat.cluster.wording import printed_by, shown
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import command
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.merged import Merged
from drumbeat.platforms.platform import Rendered, Status, check_task

PROJECT, SERVICE = "com.docker.compose.project", "com.docker.compose.service"
_REQUIRED = re.compile(r"\$\{(\w+):\?([^}]*)\}")
_CALL_TIMEOUT_S = 60.0
_UP_TIMEOUT_S = 3600.0
"""An image may have to be fetched or built."""
_STOPPED_CODES = (75, 130, 137, 143)
_POLL_S = 1.0
_LIVING = ("running", "restarting", "paused")


class ComposeClient:
    """A job as a Compose project of its name; the id of a job is that name."""

    def __init__(
        self, job: Job, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self._job = job
        self._environ = os.environ if environ is None else environ
        self._folder = folder or Path.cwd()

    def plan(self, job: Job, rendered: Rendered) -> list[str]:
        """See `Client.plan`."""
        token = f"{command.TOKEN}=(made anew) " if command.TOKEN in rendered.main else ""
        try:
            compose = self._compose()
        except DrumbeatError:  # it is shown what would run where that is
            compose = ["docker", "compose"]
        words = [*compose, *_up(job.name, self._folder)]
        return [f"{token}{command.shell(words)} < {next(iter(rendered.files))}"]

    def submit(self, job: Job, rendered: Rendered) -> str:
        """See `Client.submit`."""
        env = dict(self._environ)
        env.setdefault(command.TOKEN, secrets.token_hex(32))
        _check_variables(rendered.main, env)
        compose = self._compose()
        # With another token Compose would make them anew, and the job begin again.
        if any(each["State"]["Status"] in _LIVING for each in self._inspected(job.name)):
            raise ConfigError(
                f"{job.name} runs here already. Give the job another name, or end that one: "
                f"drumbeat stop compose {job.name}"
            )
        process = self._run(
            [*compose, *_up(job.name, self._folder)],
            timeout_s=_UP_TIMEOUT_S,
            env=env,
            text_in=rendered.main,
            is_shown=True,
        )
        if process.returncode:
            raise ConfigError(
                f"{' '.join(compose)} up ended with code {process.returncode}; what it says is "
                "above."
            )
        return job.name

    def status(self, job_id: str) -> Status:
        """See `Client.status`."""
        containers = self._found(job_id)
        states = [each["State"] for each in containers]
        return Status(
            job_id=job_id,
            state=_state(states),
            detail=_detail(states),
            tasks={_service(each): _words(each) for each in containers},
        )

    def logs(self, job_id: str, *, task: str | None, follow: bool) -> Iterator[str]:
        """See `Client.logs`."""
        containers = self._found(job_id)
        names = [_service(each) for each in containers]
        if task is not None:
            check_task(job_id, task, names)
        chosen = [each for each in containers if task in (None, _service(each))]
        merged = Merged()
        for each in chosen:
            merged.start(functools.partial(self._lines, merged, each, follow))
        yield from merged.lines()

    def stop(self, job_id: str) -> None:
        """See `Client.stop`."""
        containers = self._found(job_id)
        ids = [each["Id"] for each in containers]
        grace_s = max(each["Config"].get("StopTimeout") or 10 for each in containers)
        self._docker(["stop", *ids], timeout_s=grace_s + _CALL_TIMEOUT_S)
        self._docker(["rm", "--force", *ids])
        networks = self._docker(["network", "ls", "-q", "--filter", _label(job_id)]).split()
        if networks:
            self._docker(["network", "rm", *networks])

    def _lines(self, merged: Merged, container: Any, follow: bool) -> Iterator[str]:
        """A container's lines; it is followed over its restarts."""
        since = "0"
        while not merged.is_ended:
            words = ["docker", "logs", "--timestamps", "--since", since]
            words += ["--follow", container["Id"]] if follow else [container["Id"]]
            for text in merged.run(words, self._environ):
                at, _, line = text.partition(" ")
                if at != since:  # --since means "from"
                    since = at
                    yield f"{_service(container)}: {line}"
            if not follow or not self._lives(container["Id"]):
                return
            merged.wait(_POLL_S)

    def _lives(self, container: str) -> bool:
        """Whether the container runs, or will again."""
        try:
            text = self._docker(["inspect", "--format", "{{.State.Status}}", container])
        except DrumbeatError:
            return False
        return text.strip() in _LIVING

    def _found(self, job_id: str) -> list[Any]:
        containers = self._inspected(job_id)
        if not containers:
            raise ConfigError(
                f"docker has no containers of a project {job_id}; expected one that was submitted "
                "here and not stopped. `docker compose ls --all` lists them."
            )
        return containers

    def _inspected(self, job_id: str) -> list[Any]:
        """What docker knows of the project's containers, by service."""
        ids = self._docker(["ps", "--all", "--quiet", "--filter", _label(job_id)]).split()
        text = self._docker(["inspect", *ids]) if ids else "[]"
        try:
            found = sorted(json.loads(text), key=_service)
            for each in found:
                _ = each["Id"], each["State"]["Status"], each["State"]["ExitCode"], _words(each)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                f"docker inspect gave an answer that can't be read: {shown(text, 200)}. Is it "
                "Docker's own program?"
            ) from None
        return found

    def _compose(self) -> list[str]:
        """The command that there is: the plugin, or the older program."""
        self._check_docker()
        if self._run(["docker", "compose", "version"]).returncode == 0:
            return ["docker", "compose"]
        if shutil.which("docker-compose", path=self._environ.get("PATH")) is not None:
            return ["docker-compose"]
        raise ConfigError(
            "Docker Compose is not on this machine; expected docker's compose plugin, or "
            "docker-compose. Install docker-compose-plugin (Docker's packages) or docker-compose "
            "(Debian's)."
        )

    def _check_docker(self) -> None:
        if shutil.which("docker", path=self._environ.get("PATH")) is None:
            raise ConfigError(
                "docker is not on this machine, or not in PATH. Install Docker "
                "(Debian: docker.io), and let it run."
            )

    def _docker(self, words: Sequence[str], timeout_s: float = _CALL_TIMEOUT_S) -> str:
        self._check_docker()
        process = self._run(["docker", *words], timeout_s=timeout_s)
        if process.returncode:
            said = printed_by(process.stderr or "", f"code {process.returncode}")
            raise ConfigError(f"docker {words[0]} failed:{said}")
        return process.stdout or ""

    def _run(
        self,
        words: Sequence[str],
        *,
        timeout_s: float = _CALL_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
        text_in: str = "",
        is_shown: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words,
                input=text_in,
                stdout=2 if is_shown else subprocess.PIPE,
                stderr=None if is_shown else subprocess.PIPE,
                env=dict(self._environ if env is None else env),
                cwd=self._folder,
                timeout=timeout_s,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DrumbeatError(
                f"{' '.join(words[:2])} did not end within {timeout_s:g} s. Does docker's daemon "
                "answer? `docker version` tells."
            ) from None
        except OSError as error:
            raise ConfigError(f"{words[0]} can't be started: {error.strerror or error}.") from None


def _up(name: str, folder: Path) -> list[str]:
    return ["-p", name, "--project-directory", str(folder), "-f", "-", "up", "-d"]


def _label(job_id: str) -> str:
    return f"label={PROJECT}={job_id}"


def _check_variables(text: str, env: Mapping[str, str]) -> None:
    """Says what Compose would, sooner.

    Raises:
        ConfigError: A variable that the file requires is not set, or names no file.
    """
    for name, why in dict(_REQUIRED.findall(text)).items():
        value = env.get(name, "")
        if not value:
            raise ConfigError(f"{name} is not set; expected {why}.")
        if "path of a file" in why and not Path(value).is_file():
            raise ConfigError(f"{name} is {value}, which is no file; expected {why}.")


def _service(container: Mapping[str, Any]) -> str:
    return container["Config"]["Labels"].get(SERVICE, container["Name"].lstrip("/"))


def _words(container: Mapping[str, Any]) -> str:
    state = container["State"]
    words = str(state["Status"])
    if state["Status"] == "exited":
        words += f" with code {state['ExitCode']}"
    if state.get("OOMKilled"):
        words += ", out of memory"
    if health := (state.get("Health") or {}).get("Status"):
        words += f", {health}" if state["Status"] == "running" else ""
    if count := container.get("RestartCount"):
        words += f", restarted {count} times"
    return words


def _state(states: Sequence[Mapping[str, Any]]) -> str:
    if any(each["Status"] in _LIVING for each in states):
        return "running"
    if any(each["Status"] == "created" for each in states):
        return "pending"
    codes = {each["ExitCode"] for each in states} - {0}
    if not codes:
        return "succeeded"
    return "stopped" if codes <= set(_STOPPED_CODES) else "failed"


def _detail(states: Sequence[Mapping[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for each in states:
        counts[each["Status"]] = counts.get(each["Status"], 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counts.items())
