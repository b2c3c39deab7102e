"""Arguments whose values Keras 3 no longer takes: a shape that is a number, reduction="auto"."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m

from drumbeat.porting import edits, known, moved
from drumbeat.porting.calls import method_of, name_of
from drumbeat.porting.context import Context
from drumbeat.porting.options import text_of

_REDUCTIONS = {
    "AUTO": "sum_over_batch_size",
    "SUM_OVER_BATCH_SIZE": "sum_over_batch_size",
    "SUM": "sum",
    "NONE": "none",
}
_OF_FUNCTIONS = {"int": "int", "len": "int", "round": "int", "str": "str", "tuple": "tuple"}
_DEPTH = 8


def reduction(context: Context, original: cst.Attribute, updated: Any) -> Any:
    """`tf.keras.losses.Reduction.AUTO`."""
    name = context.name(original) or ""
    owner, _, last = name.rpartition(".")
    if owner != moved.REDUCTION or last not in _REDUCTIONS:
        return updated
    return cst.SimpleString(f'"{_REDUCTIONS[last]}"')


def auto(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`Loss(reduction="auto")`."""
    given = edits.find(updated, "reduction")
    if given is None or text_of(given.value) != "auto":
        return updated
    kind = known.kind_of(name_of(context, original))
    method = method_of(original)
    if method is not None and method[1] == "__init__":
        kind = context.kinds.of(method[0])
    own = context.scopes.defined(original.func, cst.ClassDef)
    if own is not None:
        kind = context.kinds.of_class(own)
    if kind != "loss":
        return updated
    return edits.with_value(updated, given, cst.SimpleString('"sum_over_batch_size"'))


def input_shape(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`Input(shape=n)`."""
    if name_of(context, original) not in ("keras.Input", "keras.layers.Input"):
        return updated
    before, shape = edits.find(original, "shape", 0), edits.find(updated, "shape", 0)
    if before is None or shape is None:
        return updated
    kind = type_of(context, before.value)
    code = context.code(shape.value.with_changes(lpar=(), rpar=()))
    if kind == "int":
        return edits.with_value(updated, shape, cst.parse_expression(f"({code},)"))
    if kind == "str":
        number = text_of(shape.value)
        inner = number if number and number.strip().isdigit() else f"int({code})"
        return edits.with_value(updated, shape, cst.parse_expression(f"({inner},)"))
    if kind is None and not _sounds_like_a_shape(shape.value):
        context.note(
            original,
            f"shape={code} must be a tuple since Keras 3, and it can't be seen here whether it "
            f"is one. Where it is a number, write shape=({code},).",
        )
    return updated


def _sounds_like_a_shape(node: cst.BaseExpression) -> bool:
    if m.matches(node, m.Name("None")):
        return True
    last = node.attr.value if isinstance(node, cst.Attribute) else ""
    word = node.value if isinstance(node, cst.Name) else last
    return any(part in word.lower() for part in ("shape", "size", "dims"))


def type_of(context: Context, node: cst.CSTNode, depth: int = _DEPTH) -> str | None:
    """What it is ("int", "str" or "tuple"), where that is certain."""
    if depth == 0:
        return None
    if isinstance(node, cst.Integer):
        return "int"
    if isinstance(node, (cst.Tuple, cst.List)):
        return "tuple"
    if text_of(node) is not None or isinstance(node, cst.FormattedString):
        return "str"
    if isinstance(node, cst.Call):
        function = node.func
        if isinstance(function, cst.Name) and context.name(function) is None:
            return _OF_FUNCTIONS.get(function.value)
        is_of_environment = context.name(function) in ("os.getenv", "os.environ.get")
        return "str" if is_of_environment else None
    if isinstance(node, cst.BinaryOperation):
        kinds = {type_of(context, side, depth - 1) for side in (node.left, node.right)}
        return kinds.pop() if len(kinds) == 1 and not m.matches(node.operator, m.Divide()) else None
    if isinstance(node, cst.Subscript):
        return _of_subscript(context, node)
    return _of_variable(context, node, depth)


def _of_subscript(context: Context, node: cst.Subscript) -> str | None:
    if context.name(node.value) == "os.environ":
        return "str"
    if not m.matches(node.value, m.Attribute(attr=m.Name("shape"))):
        return None
    place: Any = node.slice[0].slice
    if isinstance(place, cst.Slice):
        return "tuple"
    number = place.value.expression if isinstance(place.value, cst.UnaryOperation) else place.value
    return "int" if isinstance(number, cst.Integer) else None


def _of_variable(context: Context, node: cst.CSTNode, depth: int) -> str | None:
    if isinstance(node, cst.Attribute):
        option = context.options.of(node)
        if option is not None:
            return option.type if option.type in ("int", "str") else None
        return "tuple" if node.attr.value == "shape" else None
    if not isinstance(node, cst.Name):
        return None
    kinds = {
        type_of(context, value, depth - 1) if value is not None else None
        for value in context.scopes.values(node)
    }
    if len(kinds) == 1 and None not in kinds:
        return kinds.pop()
    annotated = _annotated(context, node)
    given = {type_of(context, value, depth - 1) for value in context.arguments(node)}
    return annotated or (given.pop() if len(given) == 1 else None)


def _annotated(context: Context, node: cst.Name) -> str | None:
    """What a parameter is declared to be."""
    param = context.scopes.defined(node, cst.Param)
    if param is None or param.annotation is None:
        return None
    word = context.code(param.annotation.annotation)
    return word if word in ("int", "str", "tuple") else None


RULES = (auto, input_shape)
