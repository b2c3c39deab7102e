"""What can be seen in a script's text without running it. Pure.

Sizes that the script computes, reads from its arguments or has in another file are not seen,
and nothing is said of them: `drumbeat check` runs the script and looks.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from typing import TypeGuard

from drumbeat.control.doctor.result import Result, error, ok, warning

_BATCH_ARGUMENTS = ("batch_size", "global_batch_size")
_MAX_DEPTH = 20


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is in a script's text.

    Attributes:
        problem: Why it is no Python; "" where it is.
        batches: Batch sizes that stand there as numbers, with their lines.
        file_sharding: The line that asks for AutoShardPolicy.FILE.
        imports: Top-level names of what it imports when it starts, with their lines.
    """

    problem: str = ""
    batches: tuple[tuple[int, int], ...] = ()
    file_sharding: int | None = None
    imports: dict[str, int] = field(default_factory=dict)


def look(text: str, name: str) -> Seen:
    """Reads a script's text.

    Args:
        text: The text.
        name: As messages call it.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as problem:
        where = f"{name}:{problem.lineno}" if problem.lineno else name
        return Seen(problem=f"{where}: {problem.msg}")
    except (ValueError, RecursionError, MemoryError) as problem:
        return Seen(problem=f"{name}: {problem or 'nested too deeply'}")
    constants = _constants(tree)
    batches: list[tuple[int, int]] = []
    file_sharding = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            batches += _batches(node, constants)
        elif _is_file_policy(node):
            file_sharding = file_sharding or node.lineno
    return Seen(
        batches=tuple(dict.fromkeys(batches)),
        file_sharding=file_sharding,
        imports=_imports(tree),
    )


def check(seen: Seen, name: str, *, workers: int, files: int | None = None) -> list[Result]:
    """What is to be said about it.

    Args:
        seen: What is in the text.
        name: As messages call the script.
        workers: How many train together.
        files: How many files the data has; None if unknown.
    """
    if seen.problem:
        return [error("script", f"{seen.problem}. Expected a Python script; mend that line.")]
    found = [ok("script", f"{name} is Python.")]
    for size, line in seen.batches:
        found += _check_batch(size, f"{name}:{line}", workers)
    if seen.file_sharding is not None and files is not None and files < workers:
        found.append(
            warning(
                "files",
                f"{name}:{seen.file_sharding}: AutoShardPolicy.FILE can't share {files} files "
                f"among {workers} workers; each will read all of them and take its rows of each "
                "batch, as with DATA. For less reading, write the data into a multiple of "
                f"{workers} files.",
            )
        )
    return found


def _check_batch(size: int, where: str, workers: int) -> list[Result]:
    meaning = "`batch` is the global batch, over all workers"
    if size < workers:
        return [
            warning(
                "batch",
                f"{where}: a batch of {size} for {workers} workers leaves some of them without any "
                f"row ({meaning}). Expected dozens of rows for each: raise it, or take fewer "
                "workers.",
            )
        ]
    if size % workers:
        even = round(size / workers) * workers
        return [
            warning(
                "batch",
                f"{where}: a batch of {size} can't be divided by {workers} workers: some take a "
                f"row more than others, who wait for them in each step ({meaning}). The model is "
                f"the same; {even} would be even.",
            )
        ]
    return [ok("batch", f"{where}: a batch of {size}, {size // workers} rows for each worker.")]


def _constants(tree: ast.Module) -> dict[str, int]:
    """Names that are given a number once, at the top of the script."""
    found: dict[str, int] = {}
    twice: set[str] = set()
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = [node.target]
        for target in targets:
            if not isinstance(target, ast.Name):
                continue
            value = getattr(node, "value", None)
            size = _number(value, {}) if node in tree.body and value is not None else None
            if size is None or target.id in found:
                twice.add(target.id)
            else:
                found[target.id] = size
    return {name: size for name, size in found.items() if name not in twice}


def _number(node: ast.expr, constants: dict[str, int], depth: int = 0) -> int | None:
    if depth > _MAX_DEPTH:
        return None
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left = _number(node.left, constants, depth + 1)
        right = _number(node.right, constants, depth + 1)
        if left is not None and right is not None and abs(left * right) < 2**62:
            return left * right
    return None


def _batches(call: ast.Call, constants: dict[str, int]) -> list[tuple[int, int]]:
    """Sizes in `….batch(64)`, and in `…(batch_size=64)`."""
    given: list[ast.expr] = []
    if isinstance(call.func, ast.Attribute) and call.func.attr == "batch" and call.args:
        given.append(call.args[0])
    given += [each.value for each in call.keywords if each.arg in _BATCH_ARGUMENTS]
    sizes = [(_number(each, constants), each.lineno) for each in given]
    return [(size, line) for size, line in sizes if size is not None and 0 < size < 10**9]


def _is_file_policy(node: ast.AST) -> TypeGuard[ast.Attribute]:
    if not isinstance(node, ast.Attribute) or node.attr != "FILE":
        return False
    return "AutoShardPolicy" in _dotted(node.value)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _MAX_DEPTH:
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _imports(tree: ast.Module) -> dict[str, int]:
    """What must be there for the script to start: not what is tried, or asked for later."""
    found: dict[str, int] = {}
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            if top and top not in sys.stdlib_module_names:
                found.setdefault(top, node.lineno)
    return found
