"""All platforms by name. Each is imported when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.docker.rehearsal import is_dockerfile
from drumbeat.platforms.jobfile.documents import parse_yaml, read_text
from drumbeat.platforms.jobfile.problems import unknown
from drumbeat.platforms.platform import Manifest, Platform


def _of(module: str) -> Callable[[], Platform]:
    return lambda: import_module(f"drumbeat.platforms.{module}").PLATFORM


PLATFORMS: dict[str, Callable[[], Platform]] = {
    "ai-platform": _of("ai_platform.render"),
    "compose": _of("compose.render"),
    "docker": _of("docker.render"),
    "jobset": _of("kubernetes.jobset"),
    "ray": _of("ray.render"),
    "runai": _of("runai.render"),
    "sagemaker": _of("sagemaker.render"),
    "slurm": _of("slurm.render"),
    "tfjob": _of("kubernetes.tfjob"),
    "trainjob": _of("kubernetes.trainjob"),
    "vertex": _of("vertex.render"),
}


_SCRIPTS = (".py", ".ipynb")
_ON_KUBERNETES = ("jobset", "tfjob", "trainjob")


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
        ConfigError: It can't be read, or is a script.
    """
    if path.suffix in _SCRIPTS and path.is_file():
        raise ConfigError(
            f"{path} is a script; expected a job file (drumbeat init {path.name} writes a first "
            f"one) or a platform's own file. `drumbeat check {path}` is for scripts."
        )
    return parse_manifest(read_text(path), path)


def parse_manifest(text: str, path: Path) -> Manifest:
    """As `read_manifest`, of a text that is to be in the file `path`.

    Raises:
        ConfigError: It is no YAML, no script and no Dockerfile.
    """
    is_other = text.startswith("#!") or is_dockerfile(text)
    documents = () if is_other else tuple(parse_yaml(text, path.name))
    return Manifest(path=path, text=text, documents=documents)


def recognise(manifest: Manifest) -> Platform:
    """The platform whose manifest this is.

    Raises:
        ConfigError: None of them knows it, or it is for several.
    """
    for name, make in PLATFORMS.items():
        platform = make()
        if platform.recognises(manifest):
            _check_alone(name, platform, manifest)
            return platform
    kinds = [each.value.get("kind") for each in manifest.documents if isinstance(each.value, dict)]
    named = listed(shown(kind) for kind in dict.fromkeys(map(str, filter(None, kinds))))
    its_kind = f" (kind: {named})" if named else ""
    raise ConfigError(
        f"{manifest.path.name} is no manifest of a platform that drumbeat knows{its_kind}; "
        f"expected one for {listed(PLATFORMS, len(PLATFORMS))}, or a job file, which has name: and "
        "script:."
    )


def _check_alone(name: str, platform: Platform, manifest: Manifest) -> None:
    """One file may have objects of several kinds for Kubernetes, of which only one is looked at."""
    others = [get(other) for other in _ON_KUBERNETES if name in _ON_KUBERNETES and other != name]
    also = [other.title for other in others if other.recognises(manifest)]
    if also:
        raise ConfigError(
            f"{manifest.path.name} has jobs for {listed([platform.title, *also])}; expected one "
            "job. Put each into a file of its own."
        )
