"""What drumbeat knows of a platform, and the forms in which it says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile.documents import Document
from drumbeat.platforms.jobfile.model import Job


class Advice(str):
    """One of `Platform.problems` that may well be meant, or costs only time; others are errors."""

    __slots__ = ()


class NoCommand(ConfigError):
    """What runs is said elsewhere (in the image, on a command line), so it can't be rehearsed."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """The files that describe a job to a platform.

    Attributes:
        files: Text by file name, the main one first.
        notes: What the user should know: what has no equivalent, what is still to be done.
    """

    files: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def main(self) -> str:
        """The text of the first file."""
        return next(iter(self.files.values()))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A file that a platform would run.

    Attributes:
        path: Where it is.
        text: What is in it.
        documents: The same as YAML or JSON; none where it is something else (a script).
    """

    path: Path
    text: str
    documents: tuple[Document, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Process:
    """What one pod, container or task runs, as a process of this machine.

    Attributes:
        name: As the platform calls it: worker-1.
        command: The program and its arguments.
        env: The variables that the manifest and the platform set. Of the machine that rehearses
            it has those that any process needs: PATH, HOME, and so on.
        is_main: The job ends when these have ended; the others (ps) are stopped then.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    is_main: bool = True


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A manifest as processes of this machine.

    Attributes:
        platform: Its name.
        processes: By rank, then those without one.
        differences: What would be different on the platform, a sentence each.
    """

    platform: str
    processes: tuple[Process, ...]
    differences: tuple[str, ...] = ()


class Places(Protocol):
    """Addresses of this machine that stand for the job's hosts in a rehearsal."""

    def port(self) -> int:
        """A port of 127.0.0.1 that is free, another one each time."""
        ...


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a submitted job is.

    Attributes:
        job_id: As the platform calls it.
        state: "pending", "running", "succeeded", "failed", "stopped" or "unknown".
        detail: The platform's own word for it and its reason.
        tasks: State of each pod, container or task by its name, in the platform's words.
    """

    job_id: str
    state: str
    detail: str = ""
    tasks: Mapping[str, str] = field(default_factory=dict)


def check_task(job_id: str, task: str, tasks: Collection[str]) -> None:
    """Refuses a task that the job has not.

    Raises:
        ConfigError: It is none of `tasks`.
    """
    if task not in tasks:
        raise ConfigError(
            f"{job_id} has no task {shown(task)}; expected one of {listed(tasks) or 'none'}."
        )


class Client(Protocol):
    """A platform's own client. All methods have deadlines and raise DrumbeatErrors alone."""

    def plan(self, job: Job, rendered: Rendered) -> list[str]:
        """The calls that `submit` would make, one line or block each, without secrets."""
        ...

    def submit(self, job: Job, rendered: Rendered) -> str:
        """Starts the job and returns the id for the other methods.

        Raises:
            ConfigError: No credentials, no client program, or refused by the platform.
        """
        ...

    def status(self, job_id: str) -> Status:
        """How the job is.

        Raises:
            ConfigError: There is no such job.
        """
        ...

    def logs(self, job_id: str, *, task: str | None, follow: bool) -> Iterator[str]:
        """Lines of the job's output, each after its task's name; of one task, or of all.

        Args:
            job_id: As `submit` returned it.
            task: A name in `Status.tasks`, or None for all.
            follow: Go on until the job has ended.
        """
        ...

    def stop(self, job_id: str) -> None:
        """Ends the job and removes what it holds; one that has ended already is fine."""
        ...


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A platform, as the commands know it.

    Attributes:
        name: On the command line.
        title: In sentences.
        render: From a job to what the platform reads; None where only its old files are read.
        convert: From a file of the platform's own to another one's; None for all but AI Platform.
        recognises: Whether a manifest is one of this platform.
        problems: What the platform would refuse in a manifest of its own, or would do otherwise
            than its author means, a sentence each, `Advice` where that may be meant; None where
            nothing is known. It raises nothing, whatever is in the manifest.
        rehearse: From a manifest to processes of this machine; None where there is none.
        connect: The client of the platform for a job; None where there is none.
        has_own_disk: Whether a job's nodes are containers there, of the job's image and with a
            disk that is gone with them.
    """

    name: str
    title: str
    render: Callable[[Job], Rendered] | None = None
    convert: Callable[[Manifest], Rendered] | None = None
    recognises: Callable[[Manifest], bool] = lambda manifest: False
    problems: Callable[[Manifest], list[str]] | None = None
    rehearse: Callable[[Manifest, Places], Rehearsal] | None = None
    connect: Callable[[Job], Client] | None = None
    has_own_disk: Callable[[Job], bool] = lambda job: True
