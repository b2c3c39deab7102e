"""All platforms by name. Each is imported when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from drumbeat.cluster.wording import listed
from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile.documents import parse_yaml, read_text
from drumbeat.platforms.jobfile.problems import unknown
from drumbeat.platforms.platform import Manifest, Platform


def _tfjob() -> Platform:
    return import_module("drumbeat.platforms.tfjob").PLATFORM


def _trainjob() -> Platform:
    return import_module("drumbeat.platforms.trainjob").PLATFORM


def _compose() -> Platform:
    return import_module("drumbeat.platforms.compose").PLATFORM


def _docker() -> Platform:
    return import_module("drumbeat.platforms.docker").PLATFORM


def _ray() -> Platform:
    return import_module("drumbeat.platforms.ray").PLATFORM


def _runai() -> Platform:
    return import_module("drumbeat.platforms.runai").PLATFORM


def _jobset() -> Platform:
    return import_module("drumbeat.platforms.jobset").PLATFORM


def _vertex() -> Platform:
    return import_module("drumbeat.platforms.vertex").PLATFORM


def _ai_platform() -> Platform:
    return import_module("drumbeat.platforms.ai_platform").PLATFORM


def _sagemaker() -> Platform:
    return import_module("drumbeat.platforms.sagemaker").PLATFORM


def _slurm() -> Platform:
    return import_module("drumbeat.platforms.slurm").PLATFORM


PLATFORMS: dict[str, Callable[[], Platform]] = {
    "ai-platform": _ai_platform,
    "compose": _compose,
    "docker": _docker,
    "jobset": _jobset,
    "ray": _ray,
    "runai": _runai,
    "sagemaker": _sagemaker,
    "slurm": _slurm,
    "tfjob": _tfjob,
    "trainjob": _trainjob,
    "vertex": _vertex,
}


def get(name: str) -> Platform:
    """The platform of that name.

    Raises:
        ConfigError: There is none.
    """
    if name not in PLATFORMS:
        raise ConfigError(unknown(name, PLATFORMS, "The platform "))
    return PLATFORMS[name]()


def read_manifest(path: Path) -> Manifest:
    """A platform's file, whatever it is in.

    Raises:
        ConfigError: It can't be read.
    """
    return parse_manifest(read_text(path), path)


def parse_manifest(text: str, path: Path) -> Manifest:
    """As `read_manifest`, of a text that is to be in the file `path`.

    Raises:
        ConfigError: It is no YAML, and no script.
    """
    is_script = text.startswith("#!")
    documents = () if is_script else tuple(parse_yaml(text, path.name))
    return Manifest(path=path, text=text, documents=documents)


def recognise(manifest: Manifest) -> Platform:
    """The platform whose manifest this is.

    Raises:
        ConfigError: None of them knows it.
    """
    for make in PLATFORMS.values():
        platform = make()
        if platform.recognises(manifest):
            return platform
    raise ConfigError(
        f"{manifest.path.name} is no manifest of a platform that drumbeat knows; expected one for "
        f"{listed(PLATFORMS, len(PLATFORMS))}."
    )
