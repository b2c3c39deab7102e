"""Placeholders and URLs of a job file that are not what they look like. Pure."""

from __future__ import annotations

import difflib
import re

from drumbeat.control.doctor.credentials import cloud_of
from drumbeat.control.doctor.result import Result, error, warning
from drumbeat.platforms.jobfile.model import Job

_STAND_FOR = ("data", "output", "name")
_CLOSE = 0.7
_ONE_SLASH = re.compile(r"(gs|s3):/(?!/)")


def check(job: Job) -> list[Result]:
    """What is to be said of its arguments, data and outputs."""
    return [*_placeholders(job), *_urls(job)]


def lacks_slash(place: str) -> bool:
    """Whether it is a URL of a bucket, but for a slash."""
    return _ONE_SLASH.match(place) is not None


def _placeholders(job: Job) -> list[Result]:
    found: list[Result] = []
    for name in dict.fromkeys(re.findall(r"\{(\w+)\}", " ".join(job.args))):
        if name in _STAND_FOR:
            continue
        close = difflib.get_close_matches(name.lower(), _STAND_FOR, n=1, cutoff=_CLOSE)
        if close:
            found.append(
                warning(
                    "job file",
                    f"args have {{{name}}}, which is handed on as it is; did you mean "
                    f"{{{close[0]}}}?",
                )
            )
    return found


def _urls(job: Job) -> list[Result]:
    found: list[Result] = []
    places = {"data": job.data, "output": job.output, "run.backup_dir": job.run.backup_dir}
    for key, place in places.items():
        if place is None:
            continue
        check = "data" if key == "data" else "output"
        scheme, slashes, _ = place.partition("://")
        if lacks_slash(place):
            meant = place.replace(":/", "://", 1)
            found.append(error(check, f"{key} is {place}, a path; did you mean {meant}?"))
        elif slashes and scheme != "file" and key != "data" and cloud_of(place) is None:
            found.append(
                warning(
                    check,
                    f"{key} is {place}: drumbeat has no driver for {scheme}:// and checks no login "
                    "for it. Expected gs:// or s3://, or a path in a volume.",
                )
            )
    return found
