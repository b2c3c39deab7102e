"""What is wrong in somebody's Dockerfile: no image would have TensorFlow, or it would have a key.

Source: Dockerfile reference of Docker; the wheels of TensorFlow are for glibc (manylinux).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms import left_out
from drumbeat.platforms.docker.rehearsal import instructions, pairs
from drumbeat.platforms.jobfile.documents import read_text
from drumbeat.platforms.jobfile.sections import ALPINE, is_alpine
from drumbeat.platforms.platform import Manifest
from drumbeat.platforms.secret_names import is_secret, names_secret

_MIN_SECRET = 4
"""Characters; shorter ones are placeholders."""


def problems(manifest: Manifest) -> list[str]:
    """A sentence for each; see `Platform.problems`."""
    folder = manifest.path.parent
    found: dict[str, None] = {}
    for line, word, rest in instructions(manifest.text):
        where = f"{manifest.path.name}:{line}: "
        for each in _of_instruction(word, rest, folder):
            found[where + each] = None
    return list(found)


def _of_instruction(word: str, rest: str, folder: Path) -> Iterator[str]:
    if word == "FROM":
        images = [each for each in rest.split() if not each.startswith("--")]
        if images and is_alpine(images[0]):
            yield f"FROM {images[0]}: {ALPINE}."
    elif word in ("ENV", "ARG"):
        for name, value in _variables(word, rest):
            named = names_secret(name) and len(value) >= _MIN_SECRET and "$" not in value
            if named or is_secret(value):
                yield (
                    f"the value of {name} is in the image, for all who can pull it. Leave it out, "
                    "and give it to the containers: docker run -e, or secrets: of the job file."
                )
    elif word in ("COPY", "ADD"):
        yield from _copied(rest, folder)


def _variables(word: str, rest: str) -> list[tuple[str, str]]:
    if word == "ARG":
        name, _, value = rest.partition("=")
        return [(name.strip(), value.strip().strip("\"'"))]
    try:
        return list(pairs(rest).items())
    except ConfigError:
        return []  # said by the rehearsal


def _copied(rest: str, folder: Path) -> Iterator[str]:
    try:
        words = shlex.split(rest.strip("[]").replace('",', '" ') if rest[:1] == "[" else rest)
    except ValueError:
        return
    if any(each.startswith("--from") for each in words):
        return
    sources = [each for each in words if not each.startswith("--")][:-1]
    secret = [each for each in sources if "://" not in each and left_out.is_secret(each)]
    if secret:
        yield (
            f"{listed(secret)} would be in the image, for all who can pull it. Leave it out, and "
            "mount it where the containers run."
        )
    if any(each.rstrip("/") in (".", "") for each in sources):
        there = _secrets_of(folder)
        if there:
            yield (
                f"it copies the folder, and {shown(there[0])} with it, for all who can pull the "
                "image. Write it into .dockerignore; drumbeat render docker has a list."
            )


def _secrets_of(folder: Path) -> list[str]:
    """Keys at the top of the folder that its .dockerignore lets in."""
    try:
        names = sorted(each.name for each in folder.iterdir())
    except OSError:
        return []
    try:
        ignores = read_text(folder / ".dockerignore").splitlines()
    except ConfigError:
        ignores = []
    return [
        name
        for name in names
        if left_out.is_secret(name) and not left_out.is_left_out(name, ignores)
    ]
