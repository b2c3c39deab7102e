"""Where the processes of a manifest read and write: whether they can log in there, and share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from drumbeat.control.doctor.credentials import GOOGLE, cloud_of
from drumbeat.control.doctor.result import Result, error, ok, warning
from drumbeat.platforms.command import DATA, OUTPUT
from drumbeat.platforms.platform import Manifest, Process

BACKUPS = "--backup-dir"
_HAVE_LOGINS = frozenset({"ai-platform", "sagemaker", "vertex"})
"""Clouds whose jobs are somebody without being told."""
_CONTAINERS = frozenset({"compose", "jobset", "tfjob", "trainjob"})
"""Platforms whose processes see what is mounted, and no other folder of a machine."""
_ACCOUNTS = ("serviceAccountName", "service_account", "RoleArn")
_KEYS = {True: "GOOGLE_APPLICATION_CREDENTIALS", False: "AWS_ACCESS_KEY_ID"}


def check(manifest: Manifest, platform: str, processes: tuple[Process, ...]) -> list[Result]:
    """What is to be said of data, output and backups.

    Args:
        manifest: The file.
        platform: Whose it is, by name.
        processes: As the platform would start them; the first speaks for all.
    """
    if not processes:
        return []
    places = dict(_places(processes[0]))
    found = _logins(manifest, platform, processes[0], places)
    if platform in _CONTAINERS and len(processes) > 1:
        mounts = [each for document in manifest.documents for each in _mounts(document.value)]
        for name in (OUTPUT, BACKUPS):
            place = places.get(name)
            if place is not None and "://" not in place and not _is_within(place, mounts):
                found.append(
                    error(
                        "output",
                        f"{name} is {place}, in each container's own file system: the "
                        f"{len(processes)} of them do not share it, and it is gone with them. "
                        "Expected a URL (gs://, s3://), or a path in a volume that all mount.",
                    )
                )
    return found


def _places(process: Process) -> Iterator[tuple[str, str]]:
    for name in (DATA, OUTPUT):
        if process.env.get(name):
            yield name, process.env[name]
    words = process.command
    for word, following in zip(words, words[1:], strict=False):
        if word == BACKUPS and following:
            yield BACKUPS, following


def _logins(
    manifest: Manifest, platform: str, process: Process, places: dict[str, str]
) -> list[Result]:
    found: list[Result] = []
    clouds: dict[str, str] = {}
    for place in places.values():
        if (cloud := cloud_of(place)) is not None:
            clouds.setdefault(cloud, place)
    for cloud, url in clouds.items():
        key = _KEYS[cloud == GOOGLE]
        is_told = any(word in manifest.text for word in (key, *_ACCOUNTS))
        if platform in _HAVE_LOGINS or key in process.env or is_told:
            found.append(ok("credentials", f"{url}: its processes are told who they are."))
        else:
            found.append(
                warning(
                    "credentials",
                    f"{url} needs a login, and nothing in the file gives one: fine where the "
                    f"machines themselves have a role, not elsewhere. Expected {key}, from a "
                    "secret, or a service account.",
                )
            )
    return found


def _is_within(place: str, mounts: list[str]) -> bool:
    path = PurePosixPath(place)
    return any(path.is_relative_to(PurePosixPath(each)) for each in mounts if each.startswith("/"))


def _mounts(value: Any) -> Iterator[str]:
    """Paths at which something is mounted, in the forms of Kubernetes and Compose."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("mountPath", "target") and isinstance(item, str):
                yield item
            elif key == "volumes" and isinstance(item, list):
                yield from (each.split(":")[1] for each in item if _is_short(each))
            yield from _mounts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _mounts(item)


def _is_short(volume: Any) -> bool:
    return isinstance(volume, str) and ":" in volume
