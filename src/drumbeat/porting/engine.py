"""Ports the text of a script: applies the rules until nothing changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst
from libcst import metadata

from drumbeat.errors import ConfigError
from drumbeat.porting import calls, downloads, files, methods, moved, values
from drumbeat.porting.context import Context, Note

Rule = Callable[[Context, Any, Any], Any]

# Rules by the kind of node; each sees what the ones before it have made of the node.
RULES: dict[type, tuple[Rule, ...]] = {
    cst.Attribute: (values.reduction, moved.attribute, methods.attribute),
    cst.ImportFrom: (moved.import_from,),
    cst.Import: (moved.import_modules,),
    cst.Call: (*calls.RULES, *methods.RULES, *values.RULES, *files.RULES, *downloads.RULES),
    cst.FunctionDef: (methods.own_reset_states,),
    cst.Expr: (methods.minimize, methods.model_reset_states, calls.notebook),
    cst.Assign: (methods.assigned_to_itself,),
}
_KERAS = re.compile(r"keras|tensorflow")
_KERAS_2 = re.compile(
    r"^[^#\n]*(TF_USE_LEGACY_KERAS\W+(1|true)|(import|from)\s+tf_keras\b)", re.M | re.I
)
_LEFT_ALONE = (
    "The script asks for Keras 2, which has these names: it is left as it is, and runs with "
    "drumbeat run --keras 2. Take this line out to have it ported."
)
_PASSES = 10  # what one pass writes, the next may go on with; two are usual


@dataclass(frozen=True)
class Ported:
    """A script in Keras 3's names.

    Attributes:
        text: All of it.
        notes: What is left to a human, by lines of the text that was given.
        notes_after: The same by lines of `text`.
    """

    text: str
    notes: Sequence[Note]
    notes_after: Sequence[Note]


def port(text: str) -> Ported:
    """Rewrites what Keras 3 no longer takes; doing it again changes nothing.

    Raises:
        ConfigError: `text` is not Python 3.
    """
    if not _KERAS.search(text):
        return Ported(text, (), ())
    asked = _KERAS_2.search(text)
    if asked is not None:
        note = Note(text.count("\n", 0, asked.start()) + 1, _LEFT_ALONE)
        return Ported(text, (note,), (note,))
    given = text
    first: Sequence[Note] | None = None
    for _ in range(_PASSES):
        new, notes = _pass(text)
        first = notes if first is None else first
        if new == text:
            return Ported(text, first, notes)
        text = new
    raise AssertionError(f"Rules undo each other: {given!r}")


def _pass(text: str) -> tuple[str, list[Note]]:
    try:
        wrapper = metadata.MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    except cst.ParserSyntaxError as error:
        raise ConfigError(f"line {error.raw_line} is not Python 3") from None
    context = Context(wrapper)
    module = wrapper.module.visit(_Porter(context))
    return _with_additions(module, context).code, sorted(context.notes)


class _Porter(cst.CSTTransformer):
    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        for rule in RULES.get(type(original_node), ()):
            if not isinstance(updated, type(original_node)):
                return updated
            updated = rule(self._context, original_node, updated)
        if isinstance(original_node, cst.SimpleStatementLine):
            return _with_lines_before(self._context, original_node, updated)
        return updated


def _with_lines_before(context: Context, original: cst.CSTNode, updated: Any) -> Any:
    texts = context.take_before(original)
    if not isinstance(updated, cst.SimpleStatementLine):
        return updated
    if original in context.comments:
        return _with_comment(updated, context.comments[original])
    if not texts:
        return updated
    config = context.scopes.module.config_for_parsing
    new: list[Any] = [part for text in texts for part in cst.parse_module(text, config).body]
    first = new[0].with_changes(leading_lines=updated.leading_lines)
    rest = [updated.with_changes(leading_lines=())] if updated.body else []
    return cst.FlattenSentinel([first, *new[1:], *rest])


def _with_comment(line: cst.SimpleStatementLine, text: str) -> cst.SimpleStatementLine:
    before = line.trailing_whitespace.comment
    comment = cst.Comment(f"# {text}  {before.value}" if before else f"# {text}")
    space = cst.SimpleWhitespace("  ")
    end = line.trailing_whitespace.with_changes(whitespace=space, comment=comment)
    return line.with_changes(trailing_whitespace=end)


def _with_additions(module: cst.Module, context: Context) -> cst.Module:
    config = context.scopes.module.config_for_parsing
    body = list(module.body)
    place = _after_header(body)
    for text in context.helpers.values():
        lines = cst.parse_module(text, config=config).body
        spaced = [line.with_changes(leading_lines=_blank(2)) for line in lines]
        body[place:place] = spaced
        after = place + len(spaced)
        if after < len(body):
            body[after] = _spaced(body[after])
    for text in sorted(context.imports, reverse=True):
        is_keras = "tensorflow" in text
        place = _after_import(body, keras=is_keras)
        body.insert(place, cst.parse_statement(text, config=config))
    return module.with_changes(body=body)


def _blank(number: int) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(indent=False)] * number


def _spaced(statement: Any) -> Any:
    lines = list(statement.leading_lines)
    while lines and lines[0].comment is None:
        del lines[0]
    return statement.with_changes(leading_lines=[*_blank(2), *lines])


def _imports(statement: cst.CSTNode) -> Iterator[cst.Import | cst.ImportFrom]:
    for part in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
        if isinstance(part, (cst.Import, cst.ImportFrom)):
            yield part


def _of_future(part: cst.Import | cst.ImportFrom) -> bool:
    module = part.module if isinstance(part, cst.ImportFrom) else None
    return isinstance(module, cst.Name) and module.value == "__future__"


def _after_import(body: Sequence[cst.CSTNode], *, keras: bool) -> int:
    """Right after the first import, or that of TensorFlow or Keras; else after the docstring."""
    start = 0
    for place, statement in enumerate(body):
        parts = list(_imports(statement))
        text = cst.Module([]).code_for_node(statement) if parts else ""
        if any(_of_future(part) for part in parts) or (place == 0 and _is_docstring(statement)):
            start = place + 1
        elif parts and (not keras or "tensorflow" in text or "keras" in text):
            return place + 1
    return start


def _after_header(body: Sequence[cst.CSTNode]) -> int:
    """Behind the last import in front of the first block."""
    place = _after_import(body, keras=True)
    for number, statement in enumerate(body):
        if isinstance(statement, (cst.ClassDef, cst.FunctionDef, cst.With, cst.If, cst.For)):
            break
        if any(_imports(statement)):
            place = max(place, number + 1)
    return place


def _is_docstring(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )
