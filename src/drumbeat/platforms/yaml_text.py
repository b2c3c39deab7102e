"""Manifests as YAML, with comments where drumbeat chose a value."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Words and numbers of YAML 1.1, as kubectl and Compose read it, that are text in 1.2.
_OLD = re.compile(
    r"(?i:y|n|yes|no|on|off|true|false|null)|=|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"
)
# Breaks lines, or can't be seen: such text is written with escapes.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


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
    return _number(value)


def reads_otherwise(text: str) -> bool:
    """Whether some reader of YAML takes `text` for a number or a boolean where it isn't quoted."""
    return _OLD.fullmatch(text) is not None


def _commented(value: Any) -> Any:
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, SingleQuotedScalarString

    if isinstance(value, Chosen):
        return _commented(value.value)
    if isinstance(value, Mapping):
        made = CommentedMap()
        for key, item in value.items():
            made[_commented(key)] = _commented(item)
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
    if isinstance(value, str) and reads_otherwise(value):
        return SingleQuotedScalarString(value)
    if isinstance(value, str) and _UNSEEN.search(value):
        return DoubleQuotedScalarString(value)
    return _number(value)


def _number(value: Any) -> Any:
    """Without what a job file's numbers remember of how they were written."""
    if isinstance(value, bool):
        return value
    return next((kind(value) for kind in (int, float) if isinstance(value, kind)), value)
