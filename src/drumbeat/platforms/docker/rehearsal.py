"""A Dockerfile as a process of this machine: what `docker run` would start in its image.

Source: Dockerfile reference of Docker (parser directives, ARG, ENV, ENTRYPOINT and CMD).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.platform import Manifest, NoCommand, Places, Process, Rehearsal

_BEGINS = re.compile(r"(?:\s*#[^\n]*\n|\s*\n|\s*ARG\s[^\n]*\n)*\s*FROM\s+\S", re.IGNORECASE)
_VARIABLE = re.compile(r"\\\$|\$(?:\{(\w+)(?::([-+])([^}]*))?\}|(\w+))")
_PAIR = re.compile(r"""(\w+)=((?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])*)\s*""", re.DOTALL)
_SHELL = ("/bin/sh", "-c")


@dataclass
class _Stage:
    base: str
    variables: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def filled(self, text: str) -> str:
        """`text` with the variables that it names; those that nobody has set are empty."""
        known = self.arguments | self.variables

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[4]
            if name is None:
                return "$"
            if found[2] == "+":
                return found[3] if known.get(name) else ""
            return known.get(name) or (found[3] or "")

        return _VARIABLE.sub(value, text)


def is_dockerfile(text: str) -> bool:
    """Whether it begins as a Dockerfile does."""
    return _BEGINS.match(text) is not None


def recognises(manifest: Manifest) -> bool:
    """Whether it is a Dockerfile."""
    return is_dockerfile(manifest.text)


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """What a container of the last stage's image runs.

    Raises:
        ConfigError: It has no command of its own, or can't be read.
    """
    stage = _last_stage(manifest.text, manifest.path.name)
    # ENTRYPOINT as text is given to a shell, which takes no further words.
    takes_more = stage.entrypoint[:2] != _SHELL
    words = stage.entrypoint + (stage.command if takes_more else ())
    if not words:
        raise NoCommand(
            f"{manifest.path.name} has neither CMD nor ENTRYPOINT, so a container runs what "
            f"{stage.base} says, which is not known here. Add the command, such as "
            'CMD ["drumbeat", "run", "train.py"].'
        )
    return Rehearsal(
        platform="docker",
        processes=(Process(name="container", command=words, env=stage.variables),),
        differences=(
            f"The container runs in an image made of {stage.base}: its Python, its packages and "
            "what RUN lines install, with what .dockerignore leaves of the folder.",
            "It has 64 MiB of /dev/shm without --shm-size, and sees GPUs with --gpus alone.",
            "It runs as the image's user, who may write to fewer places than you.",
            "Variables and files that `docker run` is given with -e and -v are missing here; "
            "--env adds a variable.",
            "Several containers of one job need DRUMBEAT_NODES, DRUMBEAT_NODE_RANK, "
            "DRUMBEAT_RENDEZVOUS and DRUMBEAT_TOKEN with -e, or Compose.",
        ),
    )


def _last_stage(text: str, name: str) -> _Stage:
    stages: dict[str, _Stage] = {}
    before: dict[str, str] = {}
    stage = _Stage(base="scratch")
    for line, word, rest in instructions(text):
        where = f"{name}:{line}: "
        if word == "FROM":
            stage = _from(rest, before, stages)
        elif word == "ARG":
            key, _, value = rest.partition("=")
            known = before if not stages else stage.arguments
            known.setdefault(key.strip(), stage.filled(value.strip().strip("\"'")))
        elif word == "ENV":
            stage.variables |= pairs(rest, stage.filled, where)
        elif word == "CMD":
            stage.command = _words(rest, where)
        elif word == "ENTRYPOINT":
            stage.entrypoint, stage.command = _words(rest, where), ()
    return stage


def _from(rest: str, before: dict[str, str], stages: dict[str, _Stage]) -> _Stage:
    words = [word for word in rest.split() if not word.startswith("--")]
    base = _Stage(base="", arguments=before).filled(words[0]) if words else "scratch"
    parent = stages.get(base.lower())
    stage = _Stage(base=base)
    if parent is not None:
        stage = _Stage(
            base=parent.base,
            variables=dict(parent.variables),
            entrypoint=parent.entrypoint,
            command=parent.command,
        )
    stages[str(len(stages))] = stage
    if len(words) > 2 and words[1].upper() == "AS":
        stages[words[2].lower()] = stage
    return stage


def instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, instruction and arguments; lines that are continued are one, here-documents are not."""
    parts: list[str] = []
    begin = 0
    until = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if until:
            until = "" if line == until else until
            continue
        if line.startswith("#") or (not line and parts):
            continue
        begin = begin if parts else number
        parts.append(line.removesuffix("\\"))
        if line.endswith("\\"):
            continue
        word, _, rest = " ".join(parts).strip().partition(" ")
        parts = []
        if (here := re.search(r"<<-?[\"']?(\w+)[\"']?", rest)) and word.upper() in ("RUN", "COPY"):
            until = here[1]
        if word:
            yield begin, word.upper(), rest.strip()


def pairs(rest: str, filled: Callable[[str], str] = str, where: str = "") -> dict[str, str]:
    """Variables of an ENV, with their values.

    Args:
        rest: What stands behind ENV.
        filled: Puts in the variables that a value names.
        where: Comes first in errors.

    Raises:
        ConfigError: It has another form.
    """
    name, _, value = rest.partition(" ")
    if "=" not in name:  # ENV NAME value, of old
        return {name: filled(value.strip())} if name else {}
    found: dict[str, str] = {}
    at = 0
    while at < len(rest):
        pair = _PAIR.match(rest, at)
        if pair is None:
            raise ConfigError(f"{where}ENV is {shown(rest)}; expected NAME=value.")
        found[pair[1]] = _unquoted(filled(pair[2]))
        at = pair.end()
    return found


def _unquoted(text: str) -> str:
    try:
        return " ".join(shlex.split(text)) if text else ""
    except ValueError:
        return text


def _words(rest: str, where: str) -> tuple[str, ...]:
    if not rest.startswith("["):
        return (*_SHELL, rest) if rest else ()
    try:
        words = json.loads(rest)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(
            f'{where}the command is {shown(rest)}; expected a list in JSON, such as ["drumbeat", '
            '"run", "train.py"], with double quotes.'
        )
    return tuple(words)
