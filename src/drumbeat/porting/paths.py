"""Paths as a script writes them: what is known of their text, and how to lengthen them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import libcst as cst

from drumbeat.porting import kinds
from drumbeat.porting.context import Context
from drumbeat.porting.options import text_of
from drumbeat.porting.scopes import dotted

MODEL_ENDINGS = (".keras", ".weights.h5", ".h5", ".hdf5")
_JOINS = ("os.path.join", "posixpath.join", "pathlib.Path", "pathlib.PurePath")
_SAME = ("os.fspath", "os.path.normpath", "os.path.realpath", "os.path.expandvars")
_FULL = ("os.path.abspath", "os.path.expanduser")
# Holes whose text starts with the root of the file system.
_ROOTED = re.compile(r"getcwd|gettempdir|mkdtemp|abspath|expanduser")
_FOLDER = re.compile(r"(dir|directory|folder)['\"\])]*$", re.I)
_NUMBER = re.compile(
    r"(^|[._])(epoch|step|version|number|timestamp|time|index|rank|id)s?(\(\))?$", re.I
)
_HOLE = re.compile(r"\x00([^\x00]*)\x00")
# What is filled in later: by str.format, Keras's callbacks, or the operator %.
_FILLED = re.compile(r"\{[^{}]*\}|%[-#0-9.]*[sdif]|\x00[^\x00]*\x00")
_DEPTH = 10

Bound = Mapping[str, str]


def hole(code: str) -> str:
    """What stands in a template for text that isn't known."""
    return f"\x00{code}\x00"


class Paths:
    """Reads the paths of one script.

    A template is a path's text with holes for what isn't known.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def template(self, node: cst.CSTNode, bound: Bound | None = None, depth: int = _DEPTH) -> str:
        """The template of an expression; `bound` are those of a function's parameters."""
        bound = bound or {}
        literal = text_of(node)
        if literal is not None:
            return literal
        if depth > 0:
            found = self._composed(node, bound, depth - 1)
            if found is not None:
                return found
        return hole(self._context.code(node))

    def _composed(self, node: cst.CSTNode, bound: Bound, depth: int) -> str | None:
        if isinstance(node, cst.FormattedString):
            return "".join(self._part(part, bound, depth) for part in node.parts)
        if isinstance(node, cst.ConcatenatedString):
            sides = (node.left, node.right)
            return "".join(self.template(side, bound, depth) for side in sides)
        if isinstance(node, cst.BinaryOperation):
            return self._of_operation(node, bound, depth)
        if isinstance(node, cst.Call):
            return self._of_call(node, bound, depth)
        if isinstance(node, cst.Name):
            return self._of_name(node, bound, depth)
        if isinstance(node, cst.Attribute) and dotted(node.value) == "self":
            values = list(self._context.kinds.attribute_values(node))
            return self.template(values[0], bound, depth) if len(values) == 1 else None
        return None

    def _part(self, part: cst.CSTNode, bound: Bound, depth: int) -> str:
        if isinstance(part, cst.FormattedStringText):
            return part.value
        expression = cst.ensure_type(part, cst.FormattedStringExpression).expression
        return self.template(expression, bound, depth)

    def _of_operation(self, node: cst.BinaryOperation, bound: Bound, depth: int) -> str | None:
        left = self.template(node.left, bound, depth)
        if isinstance(node.operator, cst.Add):
            return left + self.template(node.right, bound, depth)
        if isinstance(node.operator, cst.Divide):
            return _joined([left, self.template(node.right, bound, depth)])
        return left if isinstance(node.operator, cst.Modulo) else None

    def _of_call(self, node: cst.Call, bound: Bound, depth: int) -> str | None:
        name = self._context.name(node.func) or dotted(node.func) or ""
        given = [self.template(arg.value, bound, depth) for arg in node.args if not arg.keyword]
        if name in _JOINS and given:
            return _joined(given)
        if name in (*_SAME, "str") and len(given) == 1:
            return given[0]
        if name in _FULL and len(given) == 1:
            return given[0] if given[0].startswith("/") else hole(name) + f"/{given[0]}"
        if name == "os.path.basename" and len(given) == 1:
            return given[0].rpartition("/")[2] if "/" in given[0] else given[0]
        if isinstance(node.func, cst.Attribute):
            if node.func.attr.value == "format":
                return self.template(node.func.value, bound, depth)
            if node.func.attr.value == "joinpath":
                return _joined([self.template(node.func.value, bound, depth), *given])
        return self._returned(node, bound, depth)

    def _returned(self, node: cst.Call, bound: Bound, depth: int) -> str | None:
        """What a function of the script makes of the paths that it gets."""
        function = self._context.scopes.defined(node.func, cst.FunctionDef)
        if function is None:
            return None
        values = list(kinds.returned(function))
        if len(values) != 1:
            return None
        params = [param.name.value for param in function.params.params]
        inner = {
            (arg.keyword.value if arg.keyword else name): self.template(arg.value, bound, depth)
            for name, arg in zip(params, node.args, strict=False)
        }
        return self.template(values[0], inner, depth)

    def _of_name(self, node: cst.Name, bound: Bound, depth: int) -> str | None:
        values = self._context.scopes.values(node)
        if len(values) != 1:
            return None
        if values[0] is not None:
            return self.template(values[0], bound, depth)
        if node.value in bound:
            return bound[node.value]
        given = {self.template(value, {}, depth) for value in self._context.arguments(node)}
        return given.pop() if len(given) == 1 else None

    def tail(self, node: cst.CSTNode, depth: int = _DEPTH) -> str | None:
        """The end of the path's text: "" for some folder, None where it can't be known."""
        values = self._context.scopes.values(node) if isinstance(node, cst.Name) else []
        if len(values) > 1 and depth:
            tails = [self.tail(value, depth - 1) if value else None for value in values]
            return _common([tail for tail in tails if tail is not None], len(tails))
        template = self.template(node)
        if not template.endswith("\x00"):
            return template.rpartition("\x00")[2].rpartition("/")[2]
        if re.search(r"[-_.0-9]\x00[^\x00/]*\x00$", template):
            return ""  # a name with a number at its end
        last = _HOLE.findall(template)[-1]
        default = self._default(last)
        if default is not None:
            return default.rpartition("/")[2]
        return "" if _FOLDER.search(last) or _NUMBER.search(last) else None

    def _default(self, code: str) -> str | None:
        try:
            attribute = cst.parse_expression(code)
        except cst.ParserSyntaxError:
            return None
        if not isinstance(attribute, cst.Attribute):
            return None
        return self._context.options.default_of(attribute)


def _common(tails: list[str], wanted: int) -> str | None:
    """One of the tails, where all are known and have the same ending."""
    if len(tails) < wanted or len({ending(tail) for tail in tails}) != 1:
        return None
    return tails[0]


def _joined(parts: list[str]) -> str:
    text = ""
    for part in parts:
        starts_anew = part.startswith("/") or not text or text == "."
        text = part if starts_anew else f"{text.rstrip('/')}/{part}"
    return text


def is_full(template: str) -> bool:
    """It starts at the root of the file system."""
    first = _HOLE.match(template)
    return template.startswith("/") or (first is not None and bool(_ROOTED.search(first[1])))


def ending(text: str) -> str:
    """The ending by which Keras knows what is in a file, or ""."""
    return next((each for each in MODEL_ENDINGS if text.endswith(each)), "")


def folder(template: str) -> str:
    """The template of the folder that the path is in, "" for the present one."""
    return template.rstrip("/").rpartition("/")[0]


def may_be_same(one: str, other: str) -> bool:
    """Two templates can stand for one path."""
    one, other = (_base(each) for each in (one, other))
    return one == other or _covers(one, other) or _covers(other, one)


def _base(template: str) -> str:
    template = template.rstrip("/")
    return template.removesuffix(ending(template)).removeprefix("./")


def _covers(pattern: str, template: str) -> bool:
    literals = _FILLED.split(pattern)
    if not "".join(literals).strip("/."):
        return False  # it would cover everything
    text = _FILLED.sub("*", template)
    return re.fullmatch(".*".join(map(re.escape, literals)), text, re.DOTALL) is not None


def lengthened(context: Context, node: Any, old: str, new: str, *, strip: bool) -> Any:
    """The path with the ending `new` in place of `old`.

    Args:
        context: The pass.
        node: An expression; what it is made of decides where the ending goes.
        old: An ending that the path is known to have, or "".
        new: The ending.
        strip: The path may end in a slash.
    """
    inside = _inside(context, node, old, new)
    if inside is not None:
        return inside
    code = context.code(node)
    plain = not any(sign in code for sign in "\"'\\{}\n")
    if plain and not old and not strip:
        return cst.parse_expression(f'f"{{{code}}}{new}"')
    is_sum = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add)
    is_text = code.startswith("str(") or (is_sum and not old and not strip)
    text = code if is_text else f"str({code})"
    text += '.rstrip("/")' if strip else ""
    text += f'.removesuffix("{old}")' if old else ""
    return cst.parse_expression(f'{text} + "{new}"')


def _inside(context: Context, node: Any, old: str, new: str) -> Any:
    """The same expression with a literal in it changed, or None."""
    if isinstance(node, cst.SimpleString):
        raw = node.raw_value.rstrip("/").removesuffix(old)
        return node.with_changes(value=f"{node.prefix}{node.quote}{raw}{new}{node.quote}")
    if isinstance(node, cst.FormattedString) and node.parts:
        last = node.parts[-1]
        if not isinstance(last, cst.FormattedStringText):
            return node.with_changes(parts=[*node.parts, cst.FormattedStringText(new)])
        text = last.value.rstrip("/").removesuffix(old) + new
        return node.with_changes(parts=[*node.parts[:-1], cst.FormattedStringText(text)])
    if isinstance(node, cst.ConcatenatedString):
        right = _inside(context, node.right, old, new)
        return None if right is None else node.with_changes(right=right)
    if isinstance(node, cst.BinaryOperation):
        side = "left" if isinstance(node.operator, cst.Modulo) else "right"
        value = getattr(node, side)
        changed = _inside(context, value, old, new) if text_of(value) != "" else None
        return None if changed is None else node.with_changes(**{side: changed})
    if isinstance(node, cst.Call):
        return _inside_call(context, node, old, new)
    return None


def _inside_call(context: Context, node: cst.Call, old: str, new: str) -> Any:
    func = node.func
    if isinstance(func, cst.Attribute) and func.attr.value == "format":
        changed = _inside(context, func.value, old, new)
        return None if changed is None else node.with_changes(func=func.with_changes(value=changed))
    name = dotted(func) or ""
    last = name.rpartition(".")[2]
    if last not in ("join", "Path", "joinpath", "str") or not node.args:
        return None
    value = node.args[-1].value
    changed = _inside(context, value, old, new) if text_of(value) != "" else None
    if changed is None:
        return None
    return node.with_changes(args=[*node.args[:-1], node.args[-1].with_changes(value=changed)])
