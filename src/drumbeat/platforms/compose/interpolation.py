"""Variables in a Compose file, as Compose puts their values in.

Source: Compose specification, "Interpolation": `$NAME`, `${NAME}`, with `:-` and `-` (default),
`:?` and `?` (required), `:+` and `+` (replacement), and `$$` for a dollar sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OPERATOR = re.compile(r":?[-?+]")
_MAX_DEPTH = 16


@dataclass
class Interpolation:
    """Puts values in, and notes which were missing.

    Attributes:
        variables: Values by name.
        required: Of those that are missing though the file requires them: what it says of each.
        unset: Names without a value and without a default; Compose puts nothing in.
    """

    variables: Mapping[str, str]
    required: dict[str, str] = field(default_factory=dict)
    unset: set[str] = field(default_factory=set)

    def of(self, value: Any) -> Any:
        """`value` with all of its text interpolated; keys stay as they are.

        Raises:
            ConfigError: A $ begins nothing that Compose reads.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.of(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.of(item) for item in value]
        return value

    def text(self, text: str, depth: int = 0) -> str:
        """`text` with the values of its variables.

        Raises:
            ConfigError: A $ begins nothing that Compose reads.
        """
        if depth > _MAX_DEPTH:
            raise _invalid(text)
        parts: list[str] = []
        at = 0
        while (dollar := text.find("$", at)) >= 0:
            parts.append(text[at:dollar])
            value, at = self._variable(text, dollar + 1, depth)
            parts.append(value)
        return "".join(parts) + text[at:]

    def _variable(self, text: str, at: int, depth: int) -> tuple[str, int]:
        """The value of what stands after a $ at `at`, and where it ends."""
        if text.startswith("$", at):
            return "$", at + 1
        if not text.startswith("{", at):
            name = _NAME.match(text, at)
            if name is None:
                raise _invalid(text)
            return self._value(name[0]), name.end()
        end = _closing(text, at)
        inner = text[at + 1 : end]
        name = _NAME.match(inner)
        if name is None:
            raise _invalid(text)
        rest = inner[name.end() :]
        operator = _OPERATOR.match(rest)
        if rest and operator is None:
            raise _invalid(text)
        if operator is None:
            return self._value(name[0]), end + 1
        return self._chosen(name[0], operator[0], rest[operator.end() :], depth), end + 1

    def _chosen(self, name: str, operator: str, word: str, depth: int) -> str:
        value = self.variables.get(name)
        is_there = bool(value) if operator.startswith(":") else value is not None
        if operator.endswith("+"):
            return self.text(word, depth + 1) if is_there else ""
        if is_there:
            return value or ""
        if operator.endswith("-"):
            return self.text(word, depth + 1)
        self.required[name] = word
        return ""

    def _value(self, name: str) -> str:
        if name not in self.variables:
            self.unset.add(name)
        return self.variables.get(name, "")


def _closing(text: str, at: int) -> int:
    """Where the brace at `at` is closed."""
    depth = 0
    for index in range(at, len(text)):
        if text[index] == "{" and (index == at or text[index - 1] == "$"):
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
    raise _invalid(text)


def _invalid(text: str) -> ConfigError:
    return ConfigError(
        f"{shown(text)} has a $ that begins no variable of Compose; write $$ for a dollar sign."
    )
