"""The agents' secret in a file, for platforms that have no secrets for a job.

`submit` writes it beside the job's output, and the job reads it by DRUMBEAT_TOKEN_FILE: who may
read the output may take part in the job, and nobody else.
"""

from __future__ import annotations

import secrets

from drumbeat.errors import ConfigError
from drumbeat.platforms import command
from drumbeat.platforms.command import EXTRAS, TOKEN_FILE
from drumbeat.platforms.deadline import within
from drumbeat.platforms.jobfile.model import Job

NAME = "drumbeat-token"
TIMEOUT_S = 60.0


def is_needed(job: Job) -> bool:
    """Whether the job has agents that must know each other."""
    return job.nodes > 1 or job.ps > 0


def url(output: str) -> str:
    """Where it lies."""
    return f"{output.rstrip('/')}/{NAME}"


def environment(job: Job, place: str | None) -> dict[str, str]:
    """The job's variables, with where the secret lies; None where it has none."""
    told = {} if place is None else {TOKEN_FILE: place}
    return command.environment(job) | told


def put(place: str) -> None:
    """Writes a new secret there, unless there is one already.

    Jobs with the same output have the same secret, so that a second one takes none away from a
    first one that is still running.

    Raises:
        ConfigError: It can't be written: no driver, no credentials, no such bucket.
        DrumbeatError: No answer in time.
    """
    within(TIMEOUT_S, lambda: _put(place), f"Writing {place}")


def _put(place: str) -> None:
    # Imported here: a tenth of a second that only these platforms are worth.
    import fsspec.core

    kind = place.partition("://")[0]
    try:
        driver, path = fsspec.core.url_to_fs(place)
        if driver.exists(path) and driver.cat_file(path).strip():
            return
        driver.pipe_file(path, secrets.token_hex(32).encode())
    except ImportError as error:
        extra = EXTRAS.get(kind)
        hint = f'pip install "drumbeat[{extra}]"' if extra else "install it beside drumbeat"
        raise ConfigError(
            f"{place} needs a driver that is not installed: {error}. {hint}"
        ) from None
    # Drivers raise errors of their own for logins, networks and missing buckets.
    except Exception as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"The agents' secret can't be written to {place}: {said}. Check that the bucket is "
            "there, and that your credentials may write to it."
        ) from None
