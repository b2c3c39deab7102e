"""What this machine says of itself. Nothing is imported that a script would have to pay for."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.util
import math
import os
import platform
import queue
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from drumbeat import __version__
from drumbeat.control.doctor import credentials
from drumbeat.control.doctor.machine import Machine, Place
from drumbeat.control.doctor.result import OK
from drumbeat.errors import ConfigError
from drumbeat.launch.environment import find_gpus
from drumbeat.launch.machine import cpu_limit, tensorflow_version
from drumbeat.launch.start import allowed_cpus
from drumbeat.state.folders import TEMPORARY_PREFIX, LocalFolder, open_folder

FILES_TIMEOUT_S = 20.0
"""Network file systems whose server is gone never answer; drivers of object stores are patient."""
METADATA_TIMEOUT_S = 1.0
MAX_FILE_BYTES = 64 * 1024
MAX_NAMED_FILES = 100
_MAX_SOURCES, _MAX_SOURCE_BYTES = 5000, 64 * 1024**2
_NOT_SOURCES = frozenset({"runs", "build", "dist", "node_modules", "site-packages", "__pycache__"})
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SHM = Path("/dev/shm")  # noqa: S108
T = TypeVar("T")


def of_this_machine(
    env: Mapping[str, str],
    *,
    folder: Path,
    script: str | None = None,
    data: str | None = None,
    output: str | None = None,
) -> Machine:
    """All of it, within the deadlines above."""
    size, free = _shm()
    sources = python_files(folder)
    return Machine(
        hostname=socket.gethostname(),
        boot_id=_read(_BOOT_ID) or socket.gethostname(),
        versions=versions(),
        script=_digest([folder / script]) if script is not None else "",
        sources=_digest(sources),
        files={
            str(path.relative_to(folder)): _digest([path])[:8]
            for path in sources[: MAX_NAMED_FILES * (len(sources) <= MAX_NAMED_FILES)]
        },
        cpus=_cpus(),
        memory_bytes=_memory(),
        gpus=len(find_gpus(env)),
        shm_bytes=size,
        shm_free_bytes=free,
        data=look_at(data, folder) if data is not None else None,
        output=try_output(output, folder) if output is not None else None,
    )


def versions() -> dict[str, str]:
    """Of Python, drumbeat and what it runs on; "" of what is not installed."""
    found = {"python": platform.python_version(), "drumbeat": __version__}
    found["tensorflow"] = tensorflow_version()
    for name in ("keras", "numpy"):
        found[name] = ""
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def credential_facts(env: Mapping[str, str]) -> credentials.Machine:
    """What the check of credentials looks at."""

    def read(name: str) -> str | None:
        try:
            with open(name, "rb") as file:
                return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None

    def has_metadata(cloud: str) -> bool:
        server = credentials.METADATA_SERVERS[cloud]
        host = (cloud == credentials.GOOGLE and env.get("GCE_METADATA_HOST")) or server.host

        def ask() -> bool:
            connection = http.client.HTTPConnection(host, timeout=METADATA_TIMEOUT_S)
            # Nothing is asked of it: its front page says in a header whose it is.
            connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
            name, value = server.header
            found = connection.getresponse().getheader(name) == value
            connection.close()
            return found

        return within(METADATA_TIMEOUT_S * 2, ask, False, "metadata")

    return credentials.Machine(
        read=read,
        has_metadata=has_metadata,
        has_driver=lambda name: importlib.util.find_spec(name) is not None,
    )


def look_at(place: str, folder: Path) -> Place:
    """Whether data is there, and how many files it has."""
    unanswered = Place(
        name=place,
        problem=f"{place} did not answer within {FILES_TIMEOUT_S:g} s. Is its file server there?",
    )
    return within(FILES_TIMEOUT_S, lambda: _look_at(place, folder), unanswered, "data")


def _look_at(place: str, folder: Path) -> Place:
    if "://" not in place:
        path = folder / Path(place).expanduser()
        if not path.exists():
            return Place(
                name=place,
                seen=False,
                problem=f"{path} does not exist here. Mount the data there, or name a URL.",
            )
        if path.is_file():
            return Place(name=place, seen=os.access(path, os.R_OK), files=1)
        with os.scandir(path) as scan:
            files = sum(not each.name.startswith(".") and each.is_file() for each in scan)
        return Place(name=place, seen=True, files=files)
    try:
        parent, _, name = place.rstrip("/").rpartition("/")
        entries = open_folder(place).entries()
        is_file = not entries and name in open_folder(parent).entries()
    except (OSError, ConfigError) as error:
        return Place(name=place, seen=False, problem=f"{place} can't be read: {error}")
    if not entries and not is_file:
        # A prefix with nothing but other prefixes below it looks the same.
        return Place(name=place, seen=None)
    return Place(name=place, seen=True, files=len(entries) or 1)


def try_output(place: str, folder: Path) -> Place:
    """Whether a file can be written and removed there; makes the folder, as a job would."""

    def attempt() -> Place:
        try:
            _folder(place, folder).check()
        except ConfigError as error:
            return Place(name=place, seen=False, problem=str(error))
        return Place(name=place, seen=True)

    unanswered = Place(
        name=place,
        problem=f"{place} did not answer within {FILES_TIMEOUT_S:g} s. Is its file server there?",
    )
    return within(FILES_TIMEOUT_S, attempt, unanswered, "output")


def _folder(place: str, folder: Path) -> Any:
    if "://" in place:
        return open_folder(place)
    return LocalFolder(folder / Path(place).expanduser())


class Marker:
    """A file in the output's folder by which nodes see whether they share it."""

    def __init__(self, place: str, folder: Path, job_id: str) -> None:
        self._folder = _folder(place, folder)
        self._name = f"{TEMPORARY_PREFIX}doctor-{job_id}"

    def write(self) -> str:
        """Writes it; returns why it can't be, or ""."""
        return self._try(lambda: self._folder.write(self._name, secrets.token_bytes(8)))

    def read(self) -> str:
        """Looks for it; returns why it is not seen, or ""."""
        return self._try(lambda: self._folder.read(self._name))

    def remove(self) -> None:
        """Removes it."""
        self._try(lambda: self._folder.remove(self._name))

    def _try(self, act: Callable[[], Any]) -> str:
        def attempt() -> str:
            try:
                act()
            except (OSError, ConfigError) as error:
                return getattr(error, "strerror", None) or str(error)
            return ""

        return within(FILES_TIMEOUT_S, attempt, f"no answer within {FILES_TIMEOUT_S:g} s", "marker")


def within(timeout_s: float, look: Callable[[], T], otherwise: T, name: str) -> T:
    """What `look` returns; `otherwise` where it fails or takes longer."""
    answers: queue.SimpleQueue[T] = queue.SimpleQueue()

    def run() -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            answers.put(look())
            return
        answers.put(otherwise)

    threading.Thread(target=run, name=f"drumbeat-doctor-{name}", daemon=True).start()
    try:
        return answers.get(timeout=timeout_s)
    except queue.Empty:
        return otherwise


def python_files(folder: Path) -> list[Path]:
    """The Python files of a working folder, without environments and what runs have left."""
    found: list[Path] = []
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "venv"))
            and name not in _NOT_SOURCES
            and not os.path.exists(os.path.join(top, name, "pyvenv.cfg"))
        )
        found += [Path(top) / name for name in sorted(files) if name.endswith(".py")]
        if len(found) > _MAX_SOURCES:
            break
    return found[:_MAX_SOURCES]


def _digest(paths: list[Path]) -> str:
    """Of names and contents; "" of none."""
    digest, left = hashlib.sha256(), _MAX_SOURCE_BYTES
    for path in paths:
        with contextlib.suppress(OSError):
            data = path.read_bytes()[:left]
            left -= len(data)
            digest.update(f"{path.name}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return digest.hexdigest()[:12] if left < _MAX_SOURCE_BYTES else ""


def _shm() -> tuple[int, int]:
    try:
        stat = os.statvfs(_SHM)
    except OSError:
        return 0, 0
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _cpus() -> float:
    cpus, limit = len(allowed_cpus()), cpu_limit()
    return cpus if limit is None else min(cpus, math.ceil(limit * 10) / 10)


def _memory() -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def login_problems(env: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """What the checks of this machine's credentials found, for the others."""
    found = credentials.check(places, env, credential_facts(env))
    return {each.check: each.text for each in found if each.state != OK}
