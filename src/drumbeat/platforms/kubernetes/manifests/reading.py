"""Values of a manifest that need not be what they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drumbeat.errors import ConfigError
from drumbeat.platforms.platform import Manifest


def objects(manifest: Manifest, kind: str) -> list[Mapping[str, Any]]:
    """The manifest's objects of a kind, those within a List, too."""
    found = [mapping(document.value) for document in manifest.documents]
    inner = [
        mapping(item)
        for each in found
        if each.get("kind") == "List"
        for item in sequence(each.get("items"))
    ]
    return [each for each in (*found, *inner) if each.get("kind") == kind]


def only_object(manifest: Manifest, kind: str) -> Mapping[str, Any]:
    """The manifest's object of a kind.

    Raises:
        ConfigError: There is none, or there are several.
    """
    found = objects(manifest, kind)
    if len(found) != 1:
        raise ConfigError(f"{manifest.path.name} has {len(found)} {kind}s; expected one.")
    return found[0]


def mapping(value: object) -> Mapping[str, Any]:
    """`value`, or an empty mapping in place of anything else."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> Sequence[Any]:
    """`value`, or an empty list in place of anything else."""
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """`value`, or "" in place of anything else."""
    return value if isinstance(value, str) else ""


def whole(value: object, default: int) -> int:
    """`value`, or `default` in place of anything but a number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return default
    return value


def inside(value: object, *keys: str) -> Any:
    """What is at the end of a path of keys; None where the path ends sooner."""
    for key in keys:
        value = mapping(value).get(key)
    return value


def texts(value: object) -> dict[str, str]:
    """Labels and such: what is text in a mapping."""
    return {key: item for key, item in mapping(value).items() if isinstance(item, str)}
