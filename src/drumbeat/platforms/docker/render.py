"""A Dockerfile for the job's image, and what of the folder stays out of it.

Source: Dockerfile reference of Docker; tried with Debian's docker.io 20.10.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution, requires
from pathlib import Path

from drumbeat import __version__
from drumbeat.cluster.wording import listed
from drumbeat.platforms import command, left_out
from drumbeat.platforms.docker import rehearsal, rules
from drumbeat.platforms.jobfile import sections
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Platform, Rendered

# Exact tags, so that the same file makes the same image; each was published.
_PATCH = {"3.10": "3.10.16", "3.11": "3.11.11", "3.12": "3.12.8", "3.13": "3.13.1"}
_DEBIAN = "bookworm"
_REQUIREMENTS = "requirements.txt"
_USER, _UID = "drumbeat", sections.USER
_WORK = "/work"
_OWN = [
    ".git",
    ".gitignore",
    ".dockerignore",
    "Dockerfile*",
    "compose*.y*ml",
    "docker-compose*.y*ml",
]
_IGNORED = (
    (
        "All else goes into the image, for all who can pull it. !name takes one in again.",
        _OWN,
    ),
    ("Environments and what programs leave", left_out.LEFTOVERS),
    ("Data, logs and models: mounted, or read from a bucket", left_out.DATA),
)


def render(job: Job) -> Rendered:
    """The Dockerfile and .dockerignore of a job."""
    blocks = [
        _base(job),
        _environment(job),
        _packages(job),
        _user(job),
        _dependencies(job),
        _code(),
        ["CMD " + json.dumps(command.drumbeat_run(job))],
    ]
    text = "\n".join("\n".join(block) + "\n" for block in blocks if block)
    # Secrets behind what is let in: of a folder that is named, they stay out.
    named = left_out.exceptions(left_out.named(job, Path()))
    parts = [
        *_IGNORED,
        *([("But what the job file names", named)] if named else []),
        ("Secrets", left_out.SECRETS),
    ]
    ignored = "\n".join(f"# {what}\n" + _lines(names) for what, names in parts)
    ignored += _lines(left_out.exceptions(_needed(job)))
    notes = [f"Build it with: docker build -t {job.image or job.name + ':1'} ."]
    if job.devices.gpus:
        notes.append(
            "The machines need NVIDIA's driver and container toolkit; CUDA itself comes with "
            "tensorflow[and-cuda]."
        )
    if job.docker.drumbeat is None and distribution("drumbeat").read_text("direct_url.json"):
        notes.append(
            f"It installs drumbeat {__version__} of PyPI, and yours is from elsewhere. For yours, "
            "put its wheel (pip wheel --no-deps FOLDER) here, and its name into the job file as "
            "docker.drumbeat."
        )
    if job.environment:
        notes.append(
            f"Manifests set {listed(job.environment)}, and the image doesn't: a container that you "
            "start yourself takes docker run -e NAME=value."
        )
    return Rendered(
        files={"Dockerfile": text, ".dockerignore": ignored},
        notes=tuple(notes),
    )


def _lines(words: Iterable[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def extras(job: Job) -> list[str]:
    """Of drumbeat, those that the job's places need: gcs, s3."""
    places = (job.data, job.output, job.run.backup_dir, *job.args)
    schemes = {place.partition("://")[0] for place in places if place and "://" in place}
    return sorted({command.EXTRAS[each] for each in schemes if each in command.EXTRAS})


def _base(job: Job) -> list[str]:
    if job.docker.base is not None:
        return [f"FROM {job.docker.base}"]
    minor = ".".join(map(str, sys.version_info[:2]))
    return [
        f"# Python {minor} as where this was rendered; docker.base in the job file names another.",
        "# Tags can be moved: for the very same bytes add @sha256:… behind it, the digest that",
        "# `docker buildx imagetools inspect` shows.",
        f"FROM python:{_PATCH.get(minor, minor)}-slim-{_DEBIAN}",
    ]


def _environment(job: Job) -> list[str]:
    values = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }
    if job.devices.gpus:
        values |= {
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }
    lines = [f"{name}={value}" for name, value in values.items()]
    return ["ENV " + " \\\n    ".join(lines)]


def _packages(job: Job) -> list[str]:
    if not job.docker.packages:
        return []
    install = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
    names = command.shell(sorted(set(job.docker.packages)))
    return [
        "RUN apt-get update \\",
        f"    && {install} {names} \\",
        "    && rm -rf /var/lib/apt/lists/*",
    ]


def _user(job: Job) -> list[str]:
    """A user without rights, who owns what the job writes to: volumes take that over."""
    folders = [_WORK, *sorted({mount.path for mount in job.mounts if not mount.read_only})]
    return [
        f"RUN useradd --create-home --uid {_UID} {_USER} \\",
        f"    && install -d -o {_UID} -g {_UID} {command.shell(folders)}",
        f"WORKDIR {_WORK}",
    ]


def _dependencies(job: Job) -> list[str]:
    """Before the code, so that a change of it does not install everything anew."""
    found: list[str] = []
    wanted = job.docker.drumbeat
    if wanted is not None and is_local(wanted):
        name = Path(wanted).name
        found += [f"COPY {command_path(wanted)} /tmp/{name}", _pip(job, f"/tmp/{name}")]  # noqa: S108
    else:
        found.append(_pip(job, wanted))
    if (file := _requirements(job)) is not None:
        found += [f"COPY {command_path(file)} ./", f"RUN pip install -r {Path(file).name}"]
    return found


def _pip(job: Job, given: str | None) -> str:
    wanted = extras(job)
    names = f"[{','.join(wanted)}]" if wanted else ""
    words = [
        given + names if given and is_local(given) else given or f"drumbeat{names}=={__version__}"
    ]
    if job.devices.gpus:
        words.append(_tensorflow_with_cuda())
    return f"RUN pip install {command.shell(words)}"


def _tensorflow_with_cuda() -> str:
    """As drumbeat itself requires it, with CUDA's libraries from pip; the base needs none."""
    for each in requires("drumbeat") or ():
        if (found := re.fullmatch(r"tensorflow\s*\(?([<>=!~][^;)]*)\)?", each)) is not None:
            return f"tensorflow[and-cuda]{found[1]}"
    return "tensorflow[and-cuda]"


def _code() -> list[str]:
    # A number: Kubernetes can't tell by a name that it isn't root (runAsNonRoot).
    return [f"COPY --chown={_UID}:{_UID} . .", f"USER {_UID}:{_UID}"]


def command_path(path: str) -> str:
    """A file of the folder, as COPY takes it."""
    return json.dumps(path) if " " in path else path


def is_local(requirement: str) -> bool:
    """Whether what pip is to install is a file beside the job file."""
    return requirement.endswith((".whl", ".tar.gz")) and "://" not in requirement


def _requirements(job: Job) -> str | None:
    if job.docker.requirements is not None:
        return job.docker.requirements
    return _REQUIREMENTS if Path(_REQUIREMENTS).is_file() else None


def _needed(job: Job) -> Iterator[str]:
    """Files that the Dockerfile copies, whatever the patterns say."""
    for file in (job.docker.drumbeat, _requirements(job), job.script):
        if file is not None and (file is not job.docker.drumbeat or is_local(file)):
            yield file.removeprefix("./")


PLATFORM = Platform(
    name="docker",
    title="Docker",
    render=render,
    recognises=rehearsal.recognises,
    problems=rules.problems,
    rehearse=rehearsal.rehearse,
)
