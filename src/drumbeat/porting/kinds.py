"""What an expression of a script is: an optimizer, a metric, a model ..., or not to be known."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from drumbeat.porting import known
from drumbeat.porting.scopes import Scopes

_DEPTH = 8  # assignments that lead to one another: more are a riddle for readers as well
_OF_MODEL = {"optimizer": "optimizer", "layers": "layers", "metrics": "metrics"}
_PARSES = ("parse_args", "parse_known_args", "parse_params")
_ONE_OF = {"layers": "layer", "metrics": "metric"}


class Kinds:
    """Kinds of expressions: those of `known`, "layers", "metrics" and "other"."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes

    def of(self, node: cst.CSTNode, depth: int = _DEPTH) -> str | None:
        """The kind, or None where it can't be known."""
        if depth == 0:
            return None
        if isinstance(node, cst.Call):
            return self._of_call(node, depth)
        if isinstance(node, cst.Attribute):
            return self._of_attribute(node, depth)
        if isinstance(node, cst.Subscript):
            kind = self.of(node.value, depth - 1)
            is_part = isinstance(node.slice[0].slice, cst.Slice)
            return kind if is_part else _ONE_OF.get(kind or "")
        if isinstance(node, cst.Name):
            return self._of_name(node, depth)
        if isinstance(node, (cst.List, cst.Tuple)):
            kinds = {self.of(each.value, depth - 1) for each in node.elements}
            return "metrics" if kinds == {"metric"} else None
        return None

    def likely(self, node: cst.CSTNode) -> str | None:
        """The kind, and where it can't be known the one that the name suggests."""
        if self._scopes.name_of(node) is not None:
            return self.of(node)  # tf.saved_model is no model
        return self.of(node) or self._by_name(node)

    def _by_name(self, node: cst.CSTNode) -> str | None:
        if isinstance(node, cst.Attribute):
            return known.by_name(node.attr.value)
        return known.by_name(node.value) if isinstance(node, cst.Name) else None

    def of_class(self, node: cst.ClassDef, depth: int = _DEPTH) -> str:
        """What a class of the script makes."""
        for base in node.bases:
            name = self._scopes.name_of(base.value)
            kind = known.kind_of(name) if name else None
            inner = self._scopes.defined(base.value, cst.ClassDef)
            if kind is None and inner is not None and depth:
                kind = self.of_class(inner, depth - 1)
            if kind not in (None, "other"):
                return kind
        return "other"

    def _of_call(self, node: cst.Call, depth: int) -> str | None:
        name = self._scopes.name_of(node.func)
        if name is not None:
            return known.kind_of(name)
        own = self._scopes.defined(node.func, cst.ClassDef)
        if own is not None:
            return self.of_class(own)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in _PARSES:
            return "other"
        if m.matches(node.func, m.Name("super")):
            around = self._scopes.enclosing(node, cst.ClassDef)
            return self.of_class(around) if around is not None else None
        function = self._scopes.defined(node.func, cst.FunctionDef)
        if function is None:
            return None
        kinds = {self.of(value, depth - 1) for value in returned(function)}
        return kinds.pop() if len(kinds) == 1 else None

    def _of_attribute(self, node: cst.Attribute, depth: int) -> str | None:
        last = node.attr.value
        if last == "optimizer":
            return "optimizer"
        if last in _OF_MODEL and self.likely(node.value) in ("model", "sequential"):
            return _OF_MODEL[last]
        if not m.matches(node.value, m.Name("self")):
            return None
        kinds = {self.of(value, depth - 1) for value in self.attribute_values(node)} - {None}
        return kinds.pop() if len(kinds) == 1 else None

    def attribute_values(self, node: cst.Attribute) -> Iterator[cst.BaseExpression]:
        """What the class around assigns to the attribute `self.x`."""
        around = self._scopes.enclosing(node, cst.ClassDef)
        target = m.AssignTarget(m.Attribute(m.Name("self"), m.Name(node.attr.value)))
        for found in self._scopes.all(cst.Assign) if around is not None else ():
            is_it = m.matches(found, m.Assign(targets=[target]))
            if is_it and self._scopes.enclosing(found, cst.ClassDef) is around:
                yield found.value

    def _of_name(self, node: cst.Name, depth: int) -> str | None:
        if node.value == "self":
            around = self._scopes.enclosing(node, cst.ClassDef)
            return self.of_class(around) if around is not None else None
        loop = self._scopes.loop_over(node)
        if loop is not None:
            return _ONE_OF.get(self.of(loop, depth - 1) or "")
        values = self._scopes.values(node)
        kinds = {self.of(value, depth - 1) for value in values if value is not None} - {None}
        return kinds.pop() if len(kinds) == 1 else None


def returned(function: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
    """What `function` returns, but for functions within it."""
    inner = {
        id(found)
        for nested in m.findall(function.body, m.FunctionDef())
        for found in m.findall(nested, m.Return())
    }
    for found in m.findall(function.body, m.Return()):
        assert isinstance(found, cst.Return)  # noqa: S101
        if id(found) not in inner and found.value is not None:
            yield found.value
