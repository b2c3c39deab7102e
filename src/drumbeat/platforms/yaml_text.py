"""Manifests as YAML, with comments where drumbeat chose a value."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chosen:
    """A value with the reason for it, which stands behind it as a comment.

    Attributes:
        value: Any that YAML has; of mappings and lists the comment stands at their key.
        why: One line.
    """

    value: Any
    why: str


def dump(documents: Sequence[Mapping[str, Any]], header: Iterable[str] = ()) -> str:
    """The documents in their order, keys in theirs; the same text for the same documents.

    Text that YAML would read as something else is quoted; lines are not broken.

    Args:
        documents: Of mappings, lists, text, numbers, booleans, None and `Chosen`.
        header: Lines of comment at the top.
    """
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.default_flow_style = False
    yaml.width = 2**16
    yaml.indent(mapping=2, sequence=4, offset=2)
    texts = []
    for document in documents:
        stream = io.StringIO()
        yaml.dump(_commented(document), stream)
        texts.append(stream.getvalue())
    top = "".join(f"# {line}".rstrip() + "\n" for line in header)
    return top + "---\n".join(texts)


def plain(value: Any) -> Any:
    """`value` without its comments, for JSON and clients."""
    if isinstance(value, Chosen):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _commented(value: Any) -> Any:
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    if isinstance(value, Chosen):
        return _commented(value.value)
    if isinstance(value, Mapping):
        made = CommentedMap()
        for key, item in value.items():
            made[key] = _commented(item)
            if isinstance(item, Chosen):
                made.yaml_add_eol_comment(item.why, key=key, column=0)
        return made
    if isinstance(value, (list, tuple)):
        made_list = CommentedSeq()
        for index, item in enumerate(value):
            made_list.append(_commented(item))
            if isinstance(item, Chosen):
                made_list.yaml_add_eol_comment(item.why, key=index, column=0)
        return made_list
    return value
