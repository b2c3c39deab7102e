"""What a platform can't do without and a job file may lack, told all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile.model import Job, Mount

First = TypeVar("First")
Second = TypeVar("Second")


class Missing(ConfigError):
    """The job file does not say what a platform can't do without.

    Attributes:
        keys: An example by key, as in {"vertex.region": "us-central1"}.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self.keys = dict(keys)
        names = list(self.keys)
        if len(names) == 1:
            key, example = names[0], self.keys[names[0]]
            super().__init__(
                f"The job file has no {key}; expected one such as {example}. Write it there, or "
                f"give --set {key}={example}."
            )
            return
        lines = "".join(f"\n  {line}" for line in _as_in_the_file(self.keys))
        super().__init__(
            f"The job file has no {', '.join(names[:-1])} and {names[-1]}. Write such as these "
            f"there, or give them by --set KEY=VALUE:{lines}"
        )


def _as_in_the_file(keys: Mapping[str, str]) -> Iterator[str]:
    sections: dict[str, list[str]] = {}
    for key, example in keys.items():
        section, dot, inner = key.partition(".")
        if dot:
            sections.setdefault(section, []).append(f"{inner}: {example}")
        else:
            yield f"{key}: {example}"
    for section, inner in sections.items():
        yield f"{section}: {{{', '.join(inner)}}}"


def needs(value: str | None, key: str, example: str) -> str:
    """`value`, where the platform can't do without it.

    Raises:
        Missing: The job file does not say.
    """
    if value is None:
        raise Missing({key: example})
    return value


def folder_of_nodes(mount: Mount) -> str:
    """A mount's folder of the host, where each node is one: there is no job file's folder there.

    Raises:
        ConfigError: It has no absolute path.
    """
    source = str(mount.source)
    if not source.startswith("/"):
        raise ConfigError(
            f"The mount {mount.name} has the source {shown(source)}, and a path from the job "
            "file's folder means something to Docker Compose alone. Expected a folder of the "
            f"nodes by its absolute path, such as /mnt/{mount.name}, SERVER:/EXPORT of NFS, or no "
            f"source for Kubernetes' claim {mount.name}."
        )
    return source


def needs_all(job: Job, keys: Mapping[str, str]) -> None:
    """Looks for all that a platform can't do without, before the first of it is used.

    Args:
        job: The job.
        keys: An example by key.

    Raises:
        Missing: The job file does not say all.
    """
    missing = {}
    for key, example in keys.items():
        section, dot, inner = key.partition(".")
        value = getattr(getattr(job, section), inner) if dot else getattr(job, section)
        if value is None:
            missing[key] = example
    if missing:
        raise Missing(missing)


def both(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """Takes two steps that each need some keys of a job file.

    Raises:
        Missing: What is missing for either.
        ConfigError: As the steps do.
    """
    try:
        done = first()
    except Missing as problem:
        try:
            second()
        except Missing as more:
            raise Missing(problem.keys | more.keys) from None
        except ConfigError:
            pass  # is told once nothing is missing
        raise
    return done, second()
