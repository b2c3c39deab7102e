"""Anybody's Compose file: its services, and a rehearsal of those that train.

Source: the Compose specification (compose-spec/compose-spec, 2026-06).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from drumbeat.cluster.spec import ClusterSpec
from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms import command
from drumbeat.platforms.compose.interpolation import Interpolation
from drumbeat.platforms.jobfile.documents import read_text
from drumbeat.platforms.platform import Manifest, NoCommand, Places, Process, Rehearsal

OWN = "DRUMBEAT_"
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*", re.ASCII)
_LAST = 1 << 30
_NOT_HERE = (
    ("volumes", "Nothing is mounted here: {} of the file."),
    ("secrets", "No secrets are mounted here: {} of the file."),
    ("restart", "Compose starts containers that end again ({}); here nothing does."),
    ("shm_size", "/dev/shm is this machine's, not of {}."),
    ("mem_limit", "Memory is this machine's, without the limit of {}."),
    ("cpus", "All cores of this machine can be used, not {}."),
    ("deploy", "There are this machine's devices, without the limits under deploy."),
    ("gpus", "There are this machine's devices, not {} GPUs."),
    ("depends_on", "All processes start at the same time, whatever depends_on says."),
    ("healthcheck", "No healthcheck runs here."),
    ("user", "All run as this user, not as {}."),
)


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service as Compose starts it.

    Attributes:
        name: Its name.
        command: Entrypoint and command; empty where the image has them.
        env: Its variables.
        hosts: Names by which others reach it.
        given: All that the file says of it, interpolated.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    hosts: tuple[str, ...]
    given: Mapping[str, Any]

    @property
    def trains(self) -> bool:
        """Whether it takes part in a job of TF_CONFIG's or drumbeat's."""
        program = PurePosixPath(self.command[0]).name if self.command else ""
        return (
            "TF_CONFIG" in self.env
            or any(name.startswith(OWN) for name in self.env)
            or (program == "drumbeat" and "run" in self.command[1:2])
        )


def recognises(manifest: Manifest) -> bool:
    """Whether it has services as Compose has them."""
    value = manifest.documents[0].value if len(manifest.documents) == 1 else None
    if not isinstance(value, dict) or "kind" in value:
        return False
    return isinstance(value.get("services"), dict)


def read(manifest: Manifest, interpolation: Interpolation) -> list[Service]:
    """The services of the file.

    Args:
        manifest: The file.
        interpolation: Puts the values of variables in.

    Raises:
        ConfigError: The file is none that Compose would read.
    """
    given = manifest.documents[0].value if len(manifest.documents) == 1 else None
    services = given.get("services") if isinstance(given, dict) else None
    name = manifest.path.name
    if not isinstance(given, dict) or not isinstance(services, dict) or not services:
        raise ConfigError(f"{name} has no services; expected a Compose file with some.")
    if "include" in given or any(
        isinstance(each, dict) and "extends" in each for each in services.values()
    ):
        raise ConfigError(
            f"{name} takes parts of other files (include, extends). Write it as one: docker "
            f"compose -f {name} config > whole.yaml"
        )
    return [_service(key, each, manifest, interpolation) for key, each in services.items()]


def variables_of(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What Compose interpolates: the environment's variables, before those of `.env`.

    Raises:
        ConfigError: `.env` can't be read.
    """
    file = folder / ".env"
    return {**(_env_file(file) if file.is_file() else {}), **environ}


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """Its services that train, as processes of this machine.

    Raises:
        ConfigError: The file can't be used, or no service trains.
    """
    variables = variables_of(manifest.path.parent, os.environ)
    variables.setdefault(command.TOKEN, "rehearsed")
    interpolation = Interpolation(variables)
    services = read(manifest, interpolation)
    training = [each for each in services if each.trains]
    if not training:
        raise ConfigError(
            f"No service of {manifest.path.name} has TF_CONFIG or {OWN}… in its environment, or "
            "drumbeat run as its command; expected one that trains."
        )
    for each in training:
        if not each.command:
            raise NoCommand(
                f"service {each.name} has no command: it runs what its image starts, which is not "
                "here. Write command: into the file."
            )
    here = _addresses(training, places)
    processes = sorted((_process(each, here) for each in training), key=_rank)
    others = [each.name for each in services if not each.trains]
    differences = _differences(training, others, interpolation)
    return Rehearsal(platform="compose", processes=tuple(processes), differences=tuple(differences))


def _service(name: str, given: Any, manifest: Manifest, interpolation: Interpolation) -> Service:
    where = f"{manifest.path.name}, service {name}"
    if not isinstance(given, dict):
        raise ConfigError(f"{where} is {shown(given)}; expected keys such as image and command.")
    given = interpolation.of(given)
    words = [
        word for key in ("entrypoint", "command") for word in _words(given.get(key), where, key)
    ]
    env: dict[str, str] = {}
    for file in _listed(given.get("env_file")):
        env |= _optional_env_file(file, manifest.path.parent, where)
    env |= _variables(given.get("environment"), where, interpolation.variables)
    _check(where, env)
    hosts = [name, given.get("hostname"), given.get("container_name")]
    networks = given.get("networks")
    for network in networks.values() if isinstance(networks, dict) else ():
        hosts += _listed(network.get("aliases")) if isinstance(network, dict) else []
    return Service(
        name=name,
        command=tuple(words),
        env=env,
        hosts=tuple(host for host in hosts if isinstance(host, str) and host),
        given=given,
    )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _words(given: Any, where: str, key: str) -> list[str]:
    """A command as Compose splits it: words in the manner of a shell, without one."""
    if given is None:
        return []
    if isinstance(given, list):
        return [str(word) for word in given]
    if not isinstance(given, str):
        raise ConfigError(f"{where}: {key} is {shown(given)}; expected text or a list of words.")
    try:
        return shlex.split(given)
    except ValueError as error:
        raise ConfigError(f"{where}: {key} is {shown(given)}: {error}.") from None


def _variables(given: Any, where: str, shell: Mapping[str, str]) -> dict[str, str]:
    """`environment`, a mapping or a list; a name alone has the shell's value, if there is one."""
    if isinstance(given, list):
        pairs: list[tuple[str, Any]] = []
        for each in given:
            name, equals, value = str(each).partition("=")
            pairs.append((name, value if equals else None))
    elif isinstance(given, dict):
        pairs = list(given.items())
    elif given is None:
        pairs = []
    else:
        raise ConfigError(f"{where}: environment is {shown(given)}; expected a mapping or a list.")
    found: dict[str, str] = {}
    for name, value in pairs:
        if isinstance(value, (dict, list)):
            raise ConfigError(
                f"{where}: {name} is a {'mapping' if isinstance(value, dict) else 'list'}, and "
                "Compose takes text; expected it as JSON in single quotes: "
                f"{name}: '{{\"cluster\": …}}'"
            )
        if value is None and name not in shell:
            continue
        found[name] = shell[name] if value is None else _text(value)
    return found


def _check(where: str, env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"{where}: {shown(name)} can't be a variable.")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _optional_env_file(given: Any, folder: Path, where: str) -> dict[str, str]:
    path, required = given, True
    if isinstance(given, dict):
        path, required = given.get("path"), given.get("required", True)
    if not isinstance(path, str) or not path:
        raise ConfigError(f"{where}: env_file is {shown(given)}; expected the path of a file.")
    if not required and not (folder / path).is_file():
        return {}
    return _env_file(folder / path)


def _env_file(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in read_text(path).splitlines():
        pair = None if line.lstrip().startswith("#") else _LINE.fullmatch(line)
        if pair is None:
            continue
        value = pair[2]
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        found[pair[1]] = value[1:-1] if quoted else re.sub(r"\s+#.*", "", value)
    return found


def _addresses(training: Sequence[Service], places: Places) -> Callable[[str], str]:
    """A function that puts an address of this machine for each of a service's."""
    owners = {host: each.name for each in training for host in each.hosts}
    names = "|".join(re.escape(host) for host in sorted(owners, key=len, reverse=True))
    address = re.compile(rf"(?<![\w.-])({names}):(\d{{1,5}})(?!\d)", re.ASCII)
    ports: dict[tuple[str, str], int] = {}

    def replaced(found: re.Match[str]) -> str:
        place = owners[found[1]], found[2]
        if place not in ports:
            ports[place] = places.port()
        return f"127.0.0.1:{ports[place]}"

    return lambda text: address.sub(replaced, text)


def _process(service: Service, here: Callable[[str], str]) -> Process:
    process = Process(
        name=service.name,
        command=tuple(here(word) for word in service.command),
        env={name: here(value) for name, value in service.env.items()},
    )
    cluster = _cluster(process.env)
    is_ps = cluster is not None and cluster.task is not None and cluster.task.type == "ps"
    return replace(process, is_main=not is_ps)


def _cluster(env: Mapping[str, str]) -> ClusterSpec | None:
    try:
        return ClusterSpec.from_env(env)
    except ConfigError:
        return None  # the process itself says what is wrong


def _rank(process: Process) -> int:
    cluster = _cluster(process.env)
    if cluster is None or cluster.task is None:
        number = process.env.get("DRUMBEAT_NODE_RANK", "")
        return int(number) if re.fullmatch(r"\d{1,6}", number, re.ASCII) else _LAST
    rank = cluster.rank_of(cluster.task)
    return rank if rank >= 0 else _LAST


def _differences(
    training: Sequence[Service], others: Sequence[str], interpolation: Interpolation
) -> list[str]:
    images = sorted({str(each.given["image"]) for each in training if each.given.get("image")})
    what = f"the image {listed(images)}" if images else "an image that is built"
    found = [
        f"Containers have the Python and the packages of {what}; here they are this machine's.",
        f"Containers have a network of their own, in which {listed([s.name for s in training])} "
        f"{'is a name' if len(training) == 1 else 'are names'}; here all are 127.0.0.1.",
    ]
    for key, sentence in _NOT_HERE:
        values = [each.given[key] for each in training if each.given.get(key)]
        if not values:
            continue
        if key in ("volumes", "secrets"):
            values = [item for value in values for item in _listed(value)]
        shown_values = sorted({_short(value) for value in values})
        found.append(sentence.format(listed(shown_values)))
    if others:
        found.append(f"Not rehearsed, since they don't train: {listed(others)}.")
    for name, why in interpolation.required.items():
        found.append(f"{name} is not set here, and Compose would not start: {why or 'required'}.")
    if interpolation.unset:
        names = listed(sorted(interpolation.unset))
        found.append(f"Not set here, and so empty, as in Compose: {names}.")
    return found


def _short(value: Any) -> str:
    if isinstance(value, dict):
        place = value.get("target", value.get("source"))
        return str(place) if place is not None else ", ".join(map(str, value))
    return str(value)
