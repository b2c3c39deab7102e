"""What is a secret by its name or by its form, and so belongs into no file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic_core import PydanticCustomError

SECRET_WRITTEN = "secret_written"
"""The type of pydantic's error, so that nobody shows what it was about."""


def _any_case(pattern: str) -> str:
    """The pattern for small letters, too: JSON schemas have no flags."""
    return re.sub("[A-Z]", lambda found: f"[{found[0]}{found[0].lower()}]", pattern)


_SECRET = _any_case(
    "(^|_)(TOKEN|(PG)?PASSWORD|PASSWD|PASSPHRASE|SECRET|CONNECTION_STRING"
    "|(API|ACCESS|PRIVATE|SECRET|ACCOUNT)_KEY)$"
)
# Keys, URLs with a password, and tokens that their makers mark as such.
_FORM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@?#]*:[^/\s@${}]+@|\b(gh[opsu]_|hf_)[A-Za-z0-9]{30}"
    r"|\bgithub_pat_\w{20}|\bglpat-[\w-]{20}|\bsk-[\w-]{30}|\bxox[abeprs]-[\w-]{10}"
)
# What models of language call pieces of text.
_PIECE = _any_case("(^|_)(PAD|EOS|BOS|UNK|MASK|SEP|CLS|START|END|STOP|SPECIAL)_TOKEN$")
SCHEMA = {"pattern": _SECRET, "not": {"pattern": _PIECE}}
"""The same as `names_secret`, as a JSON schema."""


def names_secret(variable: str) -> bool:
    """Whether such a variable is a secret, as far as its name tells."""
    return re.search(_SECRET, variable) is not None and re.search(_PIECE, variable) is None


def is_secret(text: str) -> bool:
    """Whether a text is a secret or holds one, as far as its form tells."""
    return _FORM.search(text) is not None


def refuse_text(where: str, value: object) -> None:
    """Refuses a text that is a secret by its form.

    Raises:
        PydanticCustomError: It is; it isn't said.
    """
    if isinstance(value, str) and is_secret(value):
        raise PydanticCustomError(
            SECRET_WRITTEN,
            "{where} holds a secret by its form (a key, a token, or a URL with a password), and "
            "this file and manifests are read by others; expected it in secrets:, whose variable "
            "or file the script reads",
            {"where": where},
        )


def refuse(variables: object) -> None:
    """Refuses variables that are secrets, in whatever form they were given.

    Args:
        variables: By name, or as NAME=VALUE, or as Kubernetes has them; anything else is refused
            elsewhere.

    Raises:
        PydanticCustomError: There is one; its value isn't said.
    """
    for name in filter(names_secret, _names(variables)):
        entry = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        raise PydanticCustomError(
            SECRET_WRITTEN,
            "{name} is a secret by its name, and this file and manifests are read by others; "
            "expected secrets: [{name: {entry}, key: value, env: {name}}], which says where the "
            "platform has it. Leave {name} out here",
            {"name": name, "entry": entry},
        )
    for name, value in variables.items() if isinstance(variables, dict) else ():
        refuse_text(str(name), value)


def _names(variables: object) -> Iterator[str]:
    if isinstance(variables, dict):
        yield from (name for name in (*variables, variables.get("name")) if isinstance(name, str))
    elif isinstance(variables, list):
        for each in variables:
            yield from _names(each)
    elif isinstance(variables, str):
        yield from re.findall(r"(\w+)\s*[=:]", variables)
