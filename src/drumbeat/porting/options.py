"""Options that a script reads from its command line with argparse or absl."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst
from libcst import matchers as m

from drumbeat.porting.scopes import Scopes

_FLAGS = {"DEFINE_integer": "int", "DEFINE_string": "str", "DEFINE_float": "float"}
_HOLDERS = ("args", "FLAGS", "flags", "opt", "opts", "options", "hparams", "params")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        type: "int", "str", "float", or "" where it is something else.
        default: What it is unless given.
    """

    type: str
    default: cst.BaseExpression | None


class Options:
    """All options that the script declares."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._found: dict[str, Option] = {}
        for call in scopes.all(cst.Call):
            if not isinstance(call.func, cst.Attribute):
                continue
            if call.func.attr.value == "add_argument":
                self._add_argparse(call)
            elif call.func.attr.value in _FLAGS and len(call.args) >= 2:
                name = text_of(call.args[0].value)
                if name is not None:
                    kind = _FLAGS[call.func.attr.value]
                    self._found[name] = Option(type=kind, default=call.args[1].value)

    def _add_argparse(self, call: cst.Call) -> None:
        words = [text_of(each.value) for each in call.args if each.keyword is None]
        long = [word for word in words if word and word.startswith("--")]
        name = text_of(keyword(call, "dest")) or next(iter(long or filter(None, words)), "")
        kind, default = keyword(call, "type"), keyword(call, "default")
        for other in ("action", "nargs"):
            if keyword(call, other) is not None:
                return
        type_name = "str" if kind is None else kind.value if isinstance(kind, cst.Name) else ""
        self._found[name.lstrip("-").replace("-", "_")] = Option(type=type_name, default=default)

    def default_of(self, node: cst.Attribute) -> str | None:
        """What an option says unless it is given, where that is text."""
        is_holder = isinstance(node.value, cst.Name) and node.value.value in _HOLDERS
        option = self._found.get(node.attr.value) if is_holder else None
        return text_of(option.default) if option is not None else None

    def of(self, node: cst.CSTNode) -> Option | None:
        """The option that `args.name` stands for, or None."""
        if not isinstance(node, cst.Attribute) or not isinstance(node.value, cst.Name):
            return None
        values = [each for each in self._scopes.values(node.value) if each is not None]
        parsed = m.Call(func=m.Attribute(attr=m.Name("parse_args")))
        is_holder = node.value.value in _HOLDERS or any(m.matches(v, parsed) for v in values)
        return self._found.get(node.attr.value) if is_holder else None


def keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """The value of a keyword argument."""
    return next((a.value for a in call.args if a.keyword and a.keyword.value == name), None)


def text_of(node: cst.CSTNode | None) -> str | None:
    """What a string literal says."""
    if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None
