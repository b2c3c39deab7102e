"""YAML, JSON and TOML files as plain values, with the line of each key.

Everything that is read here may be somebody else's, or broken: whatever is in it, there is a
message and no traceback, and what is made of it has a limited size.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.deadline import within

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

MAX_SIZE_BYTES = 1024**2
"""Kubernetes keeps no larger objects, and a parser takes seconds for it."""
MAX_VALUES = 100_000
"""A YAML file of a few lines can stand for any number of values."""
MAX_DEPTH = 64
_PIPE_S = 30.0

MAX_DIGITS = 300
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")

KeyPath = tuple[str | int, ...]


class WrittenInt(int):
    """A number that remembers how it was written, for where it stands for text."""

    written: str


class WrittenFloat(float):
    """As `WrittenInt`: 1.10 is a version, and 1e-4 an argument."""

    written: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of a file.

    Attributes:
        value: Of mappings, lists, text, numbers, booleans and None; keys are text.
        lines: The line, from 1, of each key and item by its path.
    """

    value: Any
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line(self, path: Sequence[str | int]) -> int | None:
        """The line of `path`, or of what is around it."""
        for end in range(len(path), 0, -1):
            if (line := self.lines.get(tuple(path[:end]))) is not None:
                return line
        return None


def read_text(path: Path) -> str:
    """The file's text.

    Raises:
        ConfigError: It is not there, not text, or too large.
        DrumbeatError: It is a pipe that nobody writes to.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError
        if path.is_file():
            data = _first_bytes(path)
        else:
            hint = "It is no file but a pipe or a device, which nobody ends; expected a file."
            data = within(_PIPE_S, lambda: _first_bytes(path), f"Reading {path}", hint)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist (looked in {Path.cwd()}).") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; expected a file.") from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise ConfigError(f"{shown(str(path))} is no path: {error}.") from None
    if len(data) > MAX_SIZE_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_SIZE_BYTES // 1024**2} MiB.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8.") from None


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_SIZE_BYTES + 1)


def parse_yaml(text: str, name: str) -> list[Document]:
    """The documents of a YAML or JSON text; empty ones are left out.

    Args:
        text: The file's text.
        name: As messages call the file.

    Raises:
        ConfigError: It is no YAML, or more than can be meant.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="rt")
    yaml.Constructor = _constructor()
    try:
        loaded = [each for each in yaml.load_all(text) if each is not None]
        if "{{" in text and any(_is_template(each) for each in loaded):
            raise ConfigError(f"{name} is a template.{_hint(text)}")
        return [_plain(each, name) for each in loaded]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        what = (error.problem or error.context or "no YAML").splitlines()[0]
        raise ConfigError(f"{where}: {what}; expected YAML.{_hint(text)}") from None
    except YAMLError as error:
        raise ConfigError(f"{name}: {str(error).splitlines()[0]}; expected YAML.") from None
    except RecursionError:
        raise _too_deep(name) from None
    except ConfigError:
        raise
    # The parser raises all kinds of errors on what fuzzers write: KeyError, AttributeError, …
    except Exception as error:
        raise ConfigError(f"{name} can't be read as YAML: {error!r}.") from None


def _is_template(loaded: Any) -> bool:
    """Whether {{ … }} stands in it, which YAML takes for a mapping that is a key."""
    ahead, seen = [loaded], 0
    while ahead and seen < MAX_VALUES:
        each, seen = ahead.pop(), seen + 1
        if isinstance(each, Mapping):
            if any(isinstance(key, Mapping) for key in each):
                return True
            ahead += each.values()
        elif isinstance(each, list):
            ahead += each
    return False


def _hint(text: str) -> str:
    return " Fill in its {{ … }} first, as helm template does." if "{{" in text else ""


def parse_toml(text: str, name: str) -> Document:
    """The TOML text.

    Raises:
        ConfigError: It is none.
    """
    try:
        return _plain(tomllib.loads(text, parse_float=_written_float), name)
    except RecursionError:
        raise _too_deep(name) from None
    except ConfigError:
        raise
    except ValueError as error:  # of TOML's, or a number of too many digits
        raise ConfigError(f"{name}: {error}; expected TOML.") from None


def check_text(text: str, where: str) -> str:
    """`text`, if files, programs and screens can take it.

    Raises:
        ConfigError: It has NUL characters, or halves of characters.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: {shown(text)} is not text in UTF-8.") from None
    if "\0" in text:
        raise ConfigError(f"{where}: {shown(text)} has a NUL character, which no program takes.")
    return text


@functools.cache
def _constructor() -> type:
    """Of ruamel's, with numbers that remember how they were written."""
    from ruamel.yaml.constructor import RoundTripConstructor
    from ruamel.yaml.error import MarkedYAMLError

    class Constructor(RoundTripConstructor):
        pass

    def number(constructor: Any, node: Any) -> Any:
        if len(node.value) > MAX_DIGITS:
            problem = f"the number {shown(node.value, 30)} has more than {MAX_DIGITS} digits"
            raise MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        is_int = node.tag.endswith(":int")
        construct = constructor.construct_yaml_int if is_int else constructor.construct_yaml_float
        made = (WrittenInt if is_int else WrittenFloat)(construct(node))
        made.written = node.value
        return made

    for kind in ("int", "float"):
        Constructor.add_constructor(f"tag:yaml.org,2002:{kind}", number)
    return Constructor


def _written_float(text: str) -> WrittenFloat:
    made = WrittenFloat(text)
    made.written = text
    return made


def _plain(loaded: Any, name: str) -> Document:
    lines: dict[KeyPath, int] = {}
    count = 0

    def walk(value: Any, path: KeyPath) -> Any:
        nonlocal count
        count += 1
        if count > MAX_VALUES:
            raise ConfigError(f"{name} stands for more than {MAX_VALUES:,} values.")
        if len(path) > MAX_DEPTH:
            raise _too_deep(name)
        if isinstance(value, Mapping):
            found = {}
            # Merged keys (<<: *name) are in the items, and not among the lines.
            for key, item in value.items():
                if isinstance(key, bool) or not isinstance(key, (str, int)):
                    raise ConfigError(f"{name}: the key {shown(key)} is not text; quote it.")
                text = check_text(_whole(str(key)), name)
                place = (*path, text)
                if (at := getattr(value, "lc", None)) is not None and key in (at.data or {}):
                    lines[place] = at.data[key][0] + 1
                found[text] = walk(item, place)
            return found
        if isinstance(value, list):
            at = getattr(value, "lc", None)
            for index in range(len(value)):
                if at is not None and index in (at.data or {}):
                    lines[(*path, index)] = at.data[index][0] + 1
            return [walk(item, (*path, index)) for index, item in enumerate(value)]
        scalar = _scalar(value)
        return check_text(_whole(scalar), name) if isinstance(scalar, str) else scalar

    return Document(value=walk(loaded, ()), lines=lines)


def _whole(text: str) -> str:
    """Text in which JSON wrote a character as two halves, as it does beyond 16 bits."""
    if not _HALVES.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _scalar(value: Any) -> Any:
    """Without what the parser adds to text and numbers to write them as they were."""
    if value is None or isinstance(value, (bool, WrittenInt, WrittenFloat)):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if type(value).__name__ == "ScalarBoolean":
        return bool(value)
    return str(value)  # a date, binary data, a tag of somebody's


def _too_deep(name: str) -> ConfigError:
    return ConfigError(f"{name} is nested deeper than {MAX_DEPTH} levels.")
