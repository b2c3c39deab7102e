"""One machine: versions, /dev/shm, data and output as its processes see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.control.comparison import workers as count_of
from drumbeat.control.doctor.result import Result, error, ok, warning

MIB = 1024**2
SHM_OF_WORKER = 2 * MIB
"""MPICH takes 1.01 MiB of /dev/shm for each worker of a machine (measured, mpich 4.3)."""
SHM_OF_GPUS = 1024 * MIB
"""What NVIDIA recommends for NCCL between several GPUs of a container (--shm-size=1g)."""
TENSORFLOW, KERAS = (2, 21), (3, 12)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A path or URL, as a machine sees it.

    Attributes:
        name: As given.
        seen: Whether it is there; None where that was not tried.
        files: How many files are in it; None if unknown.
        problem: Why it is not there, or can't be written.
    """

    name: str
    seen: bool | None = None
    files: int | None = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a machine says of itself.

    Attributes:
        hostname: Its name.
        boot_id: Equal for two nodes on one machine.
        versions: Of Python and packages, by name; "" where one is not installed.
        script: Digest of the script, "" without one.
        sources: Digest of the Python files of the working folder.
        files: Of each of them, by its path, where they are few.
        cpus: CPUs that may be used.
        memory_bytes: Memory that may be used; 0 if unknown.
        gpus: GPUs.
        shm_bytes: Size of /dev/shm; 0 if there is none.
        shm_free_bytes: What is free of it.
        data: Where the data is.
        output: Where the output goes.
        problems: What checks of this machine alone found, as texts by their names.
    """

    hostname: str
    boot_id: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    script: str = ""
    sources: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    cpus: float = 0
    memory_bytes: int = 0
    gpus: int = 0
    shm_bytes: int = 0
    shm_free_bytes: int = 0
    data: Place | None = None
    output: Place | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON carries it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Machine:
        """Inverse of `to_json`; keys of another version of drumbeat are left out."""
        known = {each.name for each in fields(cls)}
        given = {key: item for key, item in value.items() if key in known}
        for key in ("data", "output"):
            given[key] = Place(**given[key]) if given.get(key) else None
        return cls(**given)


def check(machine: Machine, *, workers: int, gpus_per_node: int = 0) -> list[Result]:
    """What is to be said about one machine.

    Args:
        machine: The machine.
        workers: How many workers it is to have.
        gpus_per_node: On how many GPUs.
    """
    gpus = max(machine.gpus, gpus_per_node)
    found = [*check_versions(machine.versions), *check_shm(machine, workers, gpus)]
    for name, place in (("data", machine.data), ("output", machine.output)):
        if place is not None and place.problem:
            found.append(error(name, place.problem))
        elif place is not None and place.seen:
            files = "" if place.files is None else f", {place.files} files"
            found.append(ok(name, f"{shown(place.name)} can be used{files}."))
    return found


def check_versions(versions: Mapping[str, str]) -> list[Result]:
    """Whether TensorFlow and Keras are here, in versions that work."""
    said = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    found: list[Result] = []
    for name, (major, minor), exact in (("tensorflow", TENSORFLOW, True), ("keras", KERAS, False)):
        version = versions.get(name, "")
        expected = f"{major}.{minor}" + ("" if exact else " or later")
        if not version:
            found.append(
                error(
                    "versions",
                    f"{name} is not installed in this Python; expected {expected}. Install it, or "
                    "run drumbeat by the Python that has it.",
                )
            )
            continue
        have = _numbers(version)
        if have[:2] < (major, minor) or (exact and have[:2] != (major, minor)):
            found.append(
                warning(
                    "versions",
                    f"{name} is {version}; drumbeat is made for {expected}. Install that, or "
                    "expect errors that name internals of the package.",
                )
            )
    return found or [ok("versions", f"{said}.")]


def check_shm(machine: Machine, workers: int, gpus: int) -> list[Result]:
    """Whether /dev/shm is large enough for the workers that meet there."""
    if not machine.shm_bytes:
        return [warning("shm", "There is no /dev/shm here, where workers of a machine meet.")]
    need = SHM_OF_WORKER * workers
    size, free = machine.shm_bytes // MIB, machine.shm_free_bytes // MIB
    more = "docker run --shm-size=1g, shm_size: in Compose, resources.shm in the job file"
    if machine.shm_free_bytes < need:
        return [
            error(
                "shm",
                f"/dev/shm has {size} MiB, {free} of them free; {count_of(workers)} of one machine "
                f"take {need // MIB}. Give the container more ({more}).",
            )
        ]
    if gpus > 1 and machine.shm_bytes < SHM_OF_GPUS:
        return [
            warning(
                "shm",
                f"/dev/shm has {size} MiB; NCCL between {gpus} GPUs is made for 1 GiB, and fails "
                f"with less. Give the container more ({more}).",
            )
        ]
    return [ok("shm", f"/dev/shm has {size} MiB, enough for {count_of(workers)}.")]


def _numbers(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split(".")[:2]:
        digits = "".join(letter for letter in part if letter.isdigit())
        parts.append(int(digits[:6] or 0))
    return tuple(parts)
