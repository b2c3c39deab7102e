"""What rules share: the script's names and kinds, what they add to it, and what they leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import libcst as cst
from libcst import metadata

from drumbeat.porting import edits
from drumbeat.porting.kinds import Kinds
from drumbeat.porting.options import Options
from drumbeat.porting.scopes import Scopes


@dataclass(frozen=True, order=True)
class Note:
    """A place that port leaves to a human.

    Attributes:
        line: Counted from 1.
        text: What is there, and what to do.
    """

    line: int
    text: str


class Context:
    """One pass over one script."""

    def __init__(self, wrapper: metadata.MetadataWrapper) -> None:
        self.scopes = Scopes(wrapper)
        self.kinds = Kinds(self.scopes)
        self.options = Options(self.scopes)
        self.notes: set[Note] = set()
        self.imports: list[str] = []
        self.helpers: dict[str, str] = {}
        self.files: Any = None  # for the rules about files, which fill it
        self.comments: dict[cst.CSTNode, str] = {}
        self._before: dict[cst.CSTNode, list[str]] = {}
        self._texts = {node.value for node in self.scopes.all(cst.Name)}

    def name(self, node: cst.CSTNode) -> str | None:
        """The full name that `node` stands for."""
        return self.scopes.name_of(node)

    def note(self, node: cst.CSTNode, text: str) -> None:
        """Leaves `node` to a human."""
        self.notes.add(Note(self.scopes.line(node), text))

    def arguments(self, node: cst.Name) -> list[cst.BaseExpression]:
        """What the script's own calls give for the parameter that `node` stands for."""
        param = self.scopes.defined(node, cst.Param)
        if param is None:
            return []
        function = self.scopes.enclosing(param, cst.FunctionDef)
        if function is None or param not in function.params.params:
            return []
        position = list(function.params.params).index(param)
        given = [param.default] if param.default is not None else []
        for call in self.scopes.all(cst.Call):
            if self.scopes.defined(call.func, cst.FunctionDef) is function:
                arg = edits.find(call, node.value, position)
                given += [arg.value] if arg is not None else []
        return given

    def code(self, node: cst.CSTNode) -> str:
        """The text of `node`."""
        return self.scopes.module.code_for_node(node)

    def unused(self, name: str) -> str:
        """`name`, or another one like it that the script doesn't use; the same each time."""
        found, number = name, 1
        while found in self._texts:
            number += 1
            found = f"{name}_{number}"
        return found

    def keras(self, path: str) -> str:
        """How the script can say `keras.<path>`; with an import, if need be."""
        for local, full in self.scopes.global_names():
            if full in ("keras", "tensorflow"):
                return f"{local}.{path}" if full == "keras" else f"{local}.keras.{path}"
        return self._imported("from tensorflow import keras", "keras", path)

    def tensorflow(self, path: str) -> str:
        """How the script can say `tensorflow.<path>`; with an import, if need be."""
        for local, full in self.scopes.global_names():
            if full == "tensorflow":
                return f"{local}.{path}"
        return self._imported("import tensorflow as tf", "tf", path)

    def module(self, name: str) -> str:
        """How the script can say the module `name` of Python's own."""
        for local, full in self.scopes.global_names():
            if full == name:
                return local
        return self._imported(f"import {name}", name, "")

    def _imported(self, statement: str, local: str, path: str) -> str:
        if local in {name for name, _ in self.scopes.global_names()}:
            new = self.unused(local)  # the name is another thing's
            statement = f"{statement.partition(' as ')[0]} as {new}"
            local = new
        if statement not in self.imports:
            self.imports.append(statement)
        return f"{local}.{path}" if path else local

    def before(self, node: cst.CSTNode, statement: str) -> bool:
        """Puts a statement in front of the one that `node` is in.

        Returns:
            Whether there is such a place: `node` may be in the head of a block.
        """
        around = self.scopes.enclosing(node, cst.SimpleStatementLine)
        block = self.scopes.enclosing(node, cst.BaseCompoundStatement)
        if not statement or around is None or (block is not None and _holds(around, block)):
            return False
        self._before.setdefault(around, []).append(statement)
        return True

    def comment(self, node: cst.CSTNode, text: str) -> bool:
        """Has `text` be a comment at the end of the line that `node` is in, if there is one."""
        around = self.scopes.enclosing(node, cst.SimpleStatementLine)
        if around is not None:
            self.comments[around] = text
        return around is not None

    def take_before(self, line: cst.CSTNode) -> Iterable[str]:
        """The statements to put in front of `line`."""
        return self._before.get(line, ())


def _holds(outer: cst.CSTNode, inner: cst.CSTNode) -> bool:
    return any(child is inner or _holds(child, inner) for child in outer.children)
